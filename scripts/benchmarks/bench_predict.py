#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""How long a predicted time takes, beside the simulation of the same launches.

    python scripts/benchmarks/bench_predict.py                 every shipped capture, and two larger calls
    python scripts/benchmarks/bench_predict.py 'swa_*' --repeats 1

A row is the first record of a shipped capture, or a larger call of made-up values, through one kernel. Each
repetition is a new process, with the caches on disk filled; `first` is one whose cache of machine code is
empty, so that ptxas runs. Medians of the repetitions; seconds of the launches alone: what compiles kernels
and what reads records is not counted.

Exit status: 0 each prediction takes at most 3 times as long as the simulation, 1 one takes longer, 2 no such
row, 3 a call was not predicted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gdnbench.cli.console import progress, table
from gdnbench.errors import Exit

CAPTURES = Path(__file__).parents[2] / "captures"
MOST = 3.0
KERNELS = {
    "gdn_decode": ("cute", "h200"),
    "kda_decode": ("cute", "h200"),
    "gdn_prefill": ("sm100_fused", "b200"),
    "kda_prefill": ("sm100_fused", "b200"),
    "swa_decode": ("wgmma", "h200"),
    "v4_decode": ("wgmma", "h200"),
}
"""By operation; operations without a kernel of CuTe DSL are left out."""
LEFT_OUT = ("swa_bfloat16",)  # its cache has a layout that no kernel of CuTe DSL takes
LARGER: dict[str, tuple[str, dict[str, Any]]] = {
    "gdn_decode, 64 sequences": ("gdn_decode", {"batch": 64, "heads": (16, 32)}),
    "gdn_prefill, 4x512 tokens": ("gdn_prefill", {"seqlens": (512,) * 4, "heads": (2, 4)}),
}


def rows() -> dict[str, str]:
    """By name, the operation of a row."""
    from gdnbench.store.recover import open_store

    found = {}
    for path in sorted(CAPTURES.glob("*.zarr.zip")):
        with open_store(str(path)) as store:
            op = store.records[0].info.op
        name = path.name.partition(".")[0]
        if op in KERNELS and name not in LEFT_OUT:
            found[name] = op
    return found | {name: op for name, (op, _) in LARGER.items()}


@dataclass(slots=True)
class Clock:
    """The seconds of predictions and of launches."""

    predictor: Any
    predicted: float = 0.0
    simulated: float = 0.0
    begun: float = field(default=0.0)

    def before(self, *launch: Any) -> None:
        start = time.perf_counter()
        self.predictor(*launch)
        self.begun = time.perf_counter()
        self.predicted += self.begun - start

    def on_launch_begin(self, entry: str, grid: Any, regions: Sequence[Any]) -> None:
        """Record no values."""

    def on_launch_end(self, regions: Sequence[Any]) -> None:
        self.simulated += time.perf_counter() - self.begun


def measure(name: str) -> dict[str, Any]:
    """The row's seconds in this process, and why it has no prediction."""
    import torch

    from gdnbench.judge import calls
    from gdnbench.ops import operation
    from gdnbench.replay.call import call_kernel, conversion
    from gdnbench.replay.kernels import load
    from gdnbench.replay.simulated import replay_gpu, simulated
    from gdnbench.sim import Settings, active
    from gdnbench.sim.predict import Predictor, machine_model
    from gdnbench.store.recover import open_store
    from gdnbench.synth import synthesise
    from gdnbench_kernels.contract import Call

    op = operation(rows()[name])
    if name in LARGER:
        made = synthesise(op.name, **LARGER[name][1])
        call = Call(made.tensors, made.scalars, {**op.default_conventions, **made.conventions})
    else:
        with open_store(str(CAPTURES / f"{name}.zarr.zip")) as store:
            call = calls.compact_call(store.records[0], op, torch.device("cpu"))
    kernel, machine = KERNELS[op.name]
    loaded, clock = load(kernel, op), Clock(Predictor(machine_model(machine)))
    with active(Settings(before=clock.before, watch=clock)), replay_gpu(machine), simulated("sim"):
        call_kernel(op.convert(call, conversion(call, op, loaded).target), op, loaded)
    return {
        "predicted": clock.predicted,
        "simulated": clock.simulated,
        "refused": clock.predictor.refused,
        "us": 1e6 * sum(each.seconds for each in clock.predictor.launches),
    }


def in_process(name: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", name],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def first(name: str) -> dict[str, Any]:
    """In a process whose cache has all but machine code."""
    from gdnbench.artifact_cache import cache_home

    with tempfile.TemporaryDirectory() as folder:
        for path in cache_home().iterdir():
            if path.name != "machine-code":
                (Path(folder) / path.name).symlink_to(path)
        return in_process(name, GDNBENCH_CACHE_DIR=folder)


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of a prediction without and with machine code in the cache, and of the simulation."""

    first: float
    predicted: float
    simulated: float
    refused: str

    @property
    def ratio(self) -> float:
        return self.predicted / self.simulated


def compare(name: str, repeats: int) -> Compared:
    """The row in new processes."""
    in_process(name)  # which fills the caches
    cold = first(name)
    warm = [in_process(name) for _ in range(repeats)]
    predicted, simulated = (statistics.median(one[key] for one in warm) for key in ("predicted", "simulated"))
    return Compared(cold["predicted"], predicted, simulated, cold["refused"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of rows; all if none is given")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each row; default 3")
    parser.add_argument("--one", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return Exit.PASS
    chosen = {
        n: op
        for n, op in rows().items()
        if not options.names or any(fnmatchcase(n, p) for p in options.names)
    }
    if not chosen:
        print(f"error: no row is called {' or '.join(options.names)}", file=sys.stderr)
        return Exit.BAD_INPUT
    lines, code = [], Exit.PASS
    with progress("predict") as advance:
        for number, name in enumerate(chosen):
            found = compare(name, options.repeats)
            advance(number + 1, len(chosen))
            if found.refused:
                print(f"not predicted: {name}: {found.refused}", file=sys.stderr)
                code = Exit.CANNOT_RUN
                continue
            if found.ratio > MOST and code is Exit.PASS:
                code = Exit.MISMATCH
            kernel, machine = KERNELS[chosen[name]]
            seconds = (found.first, found.predicted, found.simulated, found.ratio)
            lines.append((name, chosen[name], kernel, machine, *(f"{one:.2f}" for one in seconds)))
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    headers = ("row", "operation", "kernel", "machine", "first s", "predicted s", "simulated s", "ratio")
    print(table(headers, lines, headers[4:]))
    return code


if __name__ == "__main__":
    sys.exit(main())
