#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Checks all orders of the barrier protocols of every kernel here that runs on the simulator.

    python scripts/prove_orders.py                     the kernels of this repository
    python scripts/prove_orders.py 'kda*' flashinfer   kernels by operation or name; --list prints them

A row for each launch: the CTAs that were checked, the most events of one, the decimal logarithm of the number
of orders in which each warp keeps its own, the verdict and the seconds of the whole record (docs/checker.md,
"All orders"). Kernels of other packages run only if they are named, with the variable GDNBENCH_THIRD_PARTY.
Exit status: 0 all proved, 1 an order is broken, 2 bad arguments, 3 not all could be checked.
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gdnbench.cli.pipes import leave_stdout  # noqa: E402
from gdnbench.errors import Exit, GdnbenchError  # noqa: E402
from gdnbench.replay.orders import check_records  # noqa: E402
from gdnbench.sim.protocol import CheckedLaunch, Verdict  # noqa: E402
from gdnbench.store.recover import open_store  # noqa: E402

OWN = (
    ("prefill", 3, "sm100"),
    ("prefill", 4, "sm100_fused"),
    ("prefill", 4, "tests/kernels/prefill_plans.py:cut_at_64"),
    ("prefill", 4, "sm90_fused"),
    ("prefill", 4, "tests/kernels/prefill_plans.py:sm90_wide"),
    ("prefill", 4, "tests/kernels/prefill_plans.py:sm90_cut_at_64"),
    ("prefill", 4, "tests/kernels/prefill_plans.py:sm90_prepared_cut_at_64"),
    ("packed", 0, "sm100_fused"),
    ("kda_prefill", 0, "sm100_fused"),
    ("decode", 0, "cute"),
    ("kda_decode", 1, "cute"),
    ("swa_fp8_ds_mla", 1, "portable"),
    ("swa_fp8_ds_mla", 1, "wgmma"),
    ("swa_fp8_ds_mla", 1, "sm100"),
    ("v4_decode", 1, "portable"),
    ("v4_decode", 1, "wgmma"),
    ("v4_decode", 1, "sm100"),
)
OTHERS = (("prefill", 3, "flashinfer"),)
HEADERS = ("capture", "record", "kernel", "launch", "CTAs", "events", "log10 orders", "verdict", "seconds")


def main() -> Exit:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of captures or kernels; all of ours if left out")
    parser.add_argument("--list", action="store_true", help="print the cases")
    given = parser.parse_args()
    every = (*OWN, *OTHERS)
    unknown = [name for name in given.names if not any(_is_called(case, name) for case in every)]
    if unknown:
        names = " or ".join(unknown)
        print(f"error: no capture or kernel is called {names}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    cases = [case for case in every if any(_is_called(case, name) for name in given.names)] or [*OWN]
    if given.list:
        try:
            print("\n".join(" ".join(map(str, case)) for case in cases), flush=True)
        except BrokenPipeError:  # a reader that has seen enough
            leave_stdout()
        return Exit.PASS
    print("| " + " | ".join(HEADERS) + " |\n" + "|---" * len(HEADERS) + "|")
    status = Exit.PASS
    for capture, number, kernel in cases:
        status = _worse(status, _print_case(capture, number, kernel))
    return status


def _is_called(case: tuple[str, int, str], pattern: str) -> bool:
    return fnmatch(case[0], pattern) or fnmatch(case[2], pattern)


def _worse(one: Exit, other: Exit) -> Exit:
    return Exit.MISMATCH if Exit.MISMATCH in (one, other) else max(one, other)


def _print_case(capture: str, number: int, kernel: str) -> Exit:
    begin, name = time.perf_counter(), f"record {number}"
    try:
        with open_store(str(ROOT / f"captures/{capture}.zarr.zip")) as store:
            found = check_records(store, [number], kernel)
    except GdnbenchError as error:
        print(f"| {capture} | {number} | {kernel} | | | | | {error} | |", flush=True)
        return Exit.CANNOT_RUN
    seconds, status = time.perf_counter() - begin, Exit.PASS
    if name in found.failed:
        print(f"| {capture} | {number} | {kernel} | | | | | {found.failed[name]} | |", flush=True)
        status = Exit.CANNOT_RUN
    for launch in found.launches[name]:
        most = max(launch.parts, key=lambda part: part.events, default=None)
        cells = ("", "", "") if most is None else (len(launch.parts), most.events, f"{most.orders:.0f}")
        row = (capture, number, kernel, launch.number, *cells, _verdict(launch), f"{seconds:.0f}")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        this = Exit.MISMATCH if launch.broken else Exit.PASS if launch.proved else Exit.CANNOT_RUN
        status = _worse(status, this)
    return status


def _verdict(launch: CheckedLaunch) -> str:
    if launch.refused:
        return f"not checked: {launch.refused}"
    words = []
    for verdict in Verdict:
        count = sum(part.verdict is verdict for part in launch.parts)
        words += [f"{verdict.name.lower()} {count}"] if count else []
    drains = len({text for part in launch.parts for text in part.drains})
    return ", ".join(words) + f"; {drains} harmless early passes" * bool(drains)


if __name__ == "__main__":
    sys.exit(main())
