#!/usr/bin/env python
"""Replays a prefill kernel, stages and all, on calls that kernels have gone wrong on and on shipped captures.

    python scripts/prove_prefill.py                      the SM100 kernels, simulated: about ten minutes
    python scripts/prove_prefill.py --quick              the few small cases that meet every branch
    python scripts/prove_prefill.py 'gate*' 'keys*'      cases by name; --list prints them
    python scripts/prove_prefill.py --kernel torch --on cpu

A case passes when its record does: every stage and output within twice torch's error, and within its limit
where it has one; outputs alone of a kernel that shows no stages. A call outside what the kernels are written
for passes when it is refused. The table gives
for each case the stage whose RMS error is largest beside torch's. Exit status: 0 all pass, 1 one does not.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from gdnbench.cli.console import table
from gdnbench.errors import Exit
from gdnbench.judge.result import TensorResult
from gdnbench.ops import operation
from gdnbench.replay.kernels import load
from gdnbench.replay.replay import replay
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.recover import open_store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.gdn_prefill.cases import Case, cases

OP = "gdn_prefill"
CAPTURES = Path(__file__).parents[1] / "captures"


def made(case: Case, store: Path) -> None:
    """Writes the record of `case`, as `gdnbench synth` does."""
    with StoreWriter(store, kind="synth") as writer:
        writer.write("0", [draft(OP, synthesise(OP, **case.options))])


def furthest(record: RecordResult) -> TensorResult | None:
    """The tensor whose RMS error is the largest multiple of torch's; those that torch has exact come last."""
    return max((t for t in record.tensors if t.errors is not None), key=multiple, default=None)


def multiple(tensor: TensorResult) -> float:
    if tensor.errors is None or tensor.yardstick is None or tensor.yardstick.rms == 0:
        return 0.0
    return tensor.errors.rms / tensor.yardstick.rms


def row(name: str, verdict: str, record: RecordResult) -> tuple[object, ...]:
    worst = furthest(record)
    if worst is None or worst.errors is None or worst.yardstick is None:
        return (name, verdict, f"{record.seconds:.1f}", "", "", "", "", record.reason)
    figures = (f"{multiple(worst):.2f}", f"{worst.errors.rms_ratio:.2g}", f"{worst.yardstick.rms_ratio:.2g}")
    return (name, verdict, f"{record.seconds:.1f}", worst.tensor, *figures, record.reason)


def proven(case: Case, kernel: str, on: str) -> tuple[str, RecordResult]:
    """The verdict on one case, and its record."""
    with tempfile.TemporaryDirectory(prefix="gdnbench-prove-") as folder:
        made(case, Path(folder) / "case.zarr")
        with open_store(Path(folder) / "case.zarr") as store:
            (record,) = replay(store, kernel=kernel, on=on, stages=shows_stages(kernel)).records
    wanted = Outcome.UNSUPPORTED if case.refused else Outcome.PASS
    if record.outcome is not wanted:
        return "FAIL", record
    return ("refused" if case.refused else "pass"), record


def captured(names: Sequence[str], kernel: str, on: str) -> Iterator[tuple[str, str, RecordResult]]:
    """(name, verdict, record) of every prefill record of the shipped captures."""
    for path in sorted(CAPTURES.glob("*.zarr.zip")):
        with open_store(path) as store:
            numbers = [record.number for record in store.records if record.info.op == OP]
            for number in numbers:
                name = f"capture {path.name.partition('.')[0]} {number}"
                if chosen(name, names):
                    replayed = replay(
                        store, kernel=kernel, on=on, records=[number], stages=shows_stages(kernel)
                    )
                    (record,) = replayed.records
                    yield name, "pass" if record.outcome is Outcome.PASS else "FAIL", record


def shows_stages(kernel: str) -> bool:
    return "stages" in inspect.signature(load(kernel, operation(OP)).function).parameters


def chosen(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def prove(names: Sequence[str], quick: bool, kernel: str, on: str) -> Iterator[tuple[str, str, RecordResult]]:
    for case in cases():
        if chosen(case.name, names) and (case.quick or not quick):
            # What is outside the SM100 kernels need not be outside another kernel.
            if case.refused and kernel not in ("sm100", "sm100_fused"):
                continue
            yield case.name, *proven(case, kernel, on)
    if not quick:
        yield from captured(names, kernel, on)


def main() -> Exit:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="patterns of case names; all if left out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--kernel", default="sm100")
    parser.add_argument("--on", default="sim")
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.name for case in cases()))
        return Exit.PASS
    found = []
    for name, verdict, record in prove(options.names, options.quick, options.kernel, options.on):
        found.append((name, verdict, record))
        print(f"{len(found):3} {verdict:8} {name} {record.reason}", file=sys.stderr, flush=True)
    heads = ("case", "verdict", "seconds", "worst", "of torch's", "RMS ratio", "torch's", "reason")
    print(table(heads, [row(*one) for one in found], right=heads[2:3] + heads[4:7]))
    failed = sum(verdict == "FAIL" for _, verdict, _ in found)
    print(f"{len(found)} cases, {failed} failed")
    return Exit.MISMATCH if failed or not found else Exit.PASS


if __name__ == "__main__":
    sys.exit(main())
