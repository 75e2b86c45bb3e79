# SPDX-License-Identifier: Apache-2.0
"""Replays a kernel on the made calls of its operation's grid and on the shipped captures.

A case passes when its record does. A call outside what the compiled kernels are written for passes when it is
refused. With several schedules of the simulator, it must pass under the first and give the same bits under
the others. With the simulator's checker it must be free of errors, too.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from gdnbench.cli.console import table
from gdnbench.errors import BAD_INPUT_ERRORS, Exit
from gdnbench.judge import calls
from gdnbench.judge.result import TensorResult
from gdnbench.judge.valid_rows import keep_valid_rows
from gdnbench.ops import operation
from gdnbench.replay.kernels import load
from gdnbench.replay.replay import replay
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.sim import Accepted, Settings, active
from gdnbench.sim.explore import first_difference
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.cases import Case
from gdnbench_kernels.gdn_decode.cases import cases as gdn_decode_cases
from gdnbench_kernels.gdn_prefill.cases import cases as gdn_prefill_cases
from gdnbench_kernels.kda_decode.cases import cases as kda_decode_cases
from gdnbench_kernels.kda_prefill.cases import cases as kda_prefill_cases
from gdnbench_kernels.swa_decode.cases import cases as swa_decode_cases
from gdnbench_kernels.swa_decode.contract import SERVED
from gdnbench_kernels.v4_decode.cases import cases as v4_decode_cases
from gdnbench_kernels.v4_decode.contract import SERVED as V4_SERVED

CUT = f"{Path(__file__).with_name('prefill_plans.py')}:cut_at_64"
"""gdn_prefill's sm100_fused_cp with segments of 64 tokens: those of its own cut none of the grid's calls."""
SM90_PLANS = tuple(
    f"{Path(__file__).with_name('prefill_plans.py')}:{name}"
    for name in ("sm90_wide", "sm90_cut_at_64", "sm90_prepared_wide", "sm90_prepared_cut_at_64")
)
"""Hopper's kernels with all rows of a state in a CTA, and by segments of 64 tokens."""
CAPTURES = Path(__file__).parents[2] / "captures"

CASE_SECONDS = 60.0
"""Of a case on a GPU, after which its process is killed: what has to be compiled for it takes up to 10 s."""

Proof = tuple[str, str, RecordResult]
"""Name, verdict, record."""
Told = Callable[[Proof], None]
"""Called with each proof, as soon as there is one."""


def never(conventions: Mapping[str, str]) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Grid:
    """The calls that kernels of one operation are proven on."""

    op: str
    cases: Callable[[], Iterable[Case]]
    compiled: tuple[str, ...]
    """The kernels that are proven if none is named, the first by default; they refuse the cases marked so."""
    schedules: tuple[str, ...] = ("late", "early", "random:0")
    """The schedules of the simulator by default."""
    refused: Callable[[Mapping[str, str]], bool] = never
    """Whether the compiled kernels refuse a captured call, by its conventions."""


GRIDS: Final = {
    grid.op: grid
    for grid in (
        # test_chunk_*.py run each of its kernels under the other schedules.
        Grid(
            "gdn_prefill",
            gdn_prefill_cases,
            ("sm100", "sm100_fused", CUT, "sm90_fused", "sm90_prepared", *SM90_PLANS),
            schedules=("late",),
        ),
        Grid("gdn_decode", gdn_decode_cases, ("cute",)),
        Grid("kda_decode", kda_decode_cases, ("cute",)),
        Grid("kda_prefill", kda_prefill_cases, ("sm100_fused",), schedules=("late",)),
        Grid(
            "swa_decode",
            swa_decode_cases,
            ("sm100", "portable", "wgmma"),
            refused=lambda conventions: conventions["cache_layout"] not in SERVED["cache_layout"],
        ),
        Grid(
            "v4_decode",
            v4_decode_cases,
            ("portable", "sm100", "wgmma"),
            refused=lambda conventions: any(
                conventions[name] not in V4_SERVED[name] for name in ("cache_layout", "extra_layout")
            ),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Prover:
    """Proves `kernel` on device `on`; `schedules` are those of the simulator. `seed` is added to that of
    every case. `stages`: whether the kernel shows them, None for wherever it can. `check`: the simulator's
    checker follows every launch, and what is not `accepted` fails. `skip`: cases that are not proven.
    `threads` bounds those of a launch, `sms` the simulated GPU's SMs."""

    grid: Grid
    kernel: str
    on: str
    schedules: tuple[str, ...] = ("late",)
    seed: int = 0
    stages: bool | None = None
    check: bool = False
    accepted: Accepted | None = None
    skip: frozenset[str] = frozenset()
    threads: int | None = None
    sms: int | None = None

    @property
    def shown(self) -> bool:
        return shows_stages(self.grid.op, self.kernel) if self.stages is None else self.stages

    def _asked(self, name: str, names: Sequence[str]) -> bool:
        return chosen(name, names) and name not in self.skip

    def case(self, case: Case) -> tuple[str, RecordResult]:
        """The verdict on one case, and its record."""
        with self._made([case]) as store:
            record = self.record(store, 0)
        return verdict(record, case.refused), record

    @contextlib.contextmanager
    def _made(self, cases: Sequence[Case]) -> Iterator[Store]:
        """A store of the calls of `cases`, in their order, which nobody keeps. Batches are read in that of
        their names."""
        with tempfile.TemporaryDirectory(prefix="gdnbench-prove-") as folder:
            path = Path(folder) / "cases.zarr"
            with StoreWriter(path, kind="synth", durable=False) as writer:
                for index, case in enumerate(cases):
                    options = {**case.options, "seed": int(case.options.get("seed", 0)) + self.seed}
                    call = synthesise(self.grid.op, **options)
                    writer.write(f"{index:06}", [draft(self.grid.op, call, index=index)])
            with open_store(path) as store:
                yield store

    def captured(self, names: Sequence[str], told: Told) -> None:
        """Every record of the operation in the shipped captures."""
        for path in sorted(CAPTURES.glob("*.zarr.zip")):
            with open_store(path) as store:
                few = []
                for info, number in [(record.info, record.number) for record in store.records]:
                    name = f"capture {path.name.partition('.')[0]} {number}"
                    if info.op == self.grid.op and self._asked(name, names):
                        refused = self.kernel in self.grid.compiled and self.grid.refused(info.conventions)
                        few.append((number, name, refused))
                self._records(store, few, told)

    def _records(self, store: Store, few: Sequence[tuple[int, str, bool]], told: Told) -> None:
        """Proves records by number, name, and whether they are to be refused. Where none is simulated, in one
        replay: each on a GPU starts a process, which takes seconds to import torch and compile the kernel."""
        if self.on == SIM:
            for number, name, refused in few:
                record = self.record(store, number)
                told((name, verdict(record, refused), record))
        elif few:
            replay(
                store,
                kernel=self.kernel,
                on=self.on,
                records=[number for number, _, _ in few],
                stages=self.shown,
                timeout=CASE_SECONDS if self.on == "cuda" else None,
                progress=lambda done, total, record: told(
                    (few[done - 1][1], verdict(record, few[done - 1][2]), record)
                ),
            )

    def record(self, store: Store, number: int) -> RecordResult:
        """Record `number` replayed under the first schedule, and its bits under the others. Its findings are
        those of all schedules."""
        with tempfile.TemporaryDirectory(prefix="gdnbench-prove-") as folder:
            schedules = self.schedules if self.on == SIM else self.schedules[:1]
            first, bits = self._replayed(store, number, schedules[0], Path(folder) / "0.zarr")
            if first.outcome is not Outcome.PASS:
                return first
            for index, schedule in enumerate(schedules[1:], 1):
                other, others = self._replayed(store, number, schedule, Path(folder) / f"{index}.zarr")
                found = (first.findings or ()) + (other.findings or ())
                first = replace(first, findings=found if self.check else None)
                if other.outcome is not Outcome.PASS:
                    reason = f"under schedule {schedule}: {other.reason}"
                    return replace(other, findings=first.findings, reason=reason)
                if wrong := first_difference(bits, others):
                    reason = f"{wrong} under schedule {schedule} has not the bits of {schedules[0]}"
                    return replace(first, outcome=Outcome.MISMATCH, reason=reason)
        return first

    def _replayed(
        self, store: Store, number: int, schedule: str, run: Path
    ) -> tuple[RecordResult, dict[str, Tensor]]:
        """The verdict, and what counts of the outputs and stages, as they were kept in the store `run`."""
        simulated = self.on == SIM
        with (
            active(Settings(schedule=schedule, threads=self.threads))
            if simulated
            else contextlib.nullcontext()
        ):
            (record,) = replay(
                store,
                kernel=self.kernel,
                on=self.on,
                records=[number],
                stages=self.shown,
                # A schedule is this process' own.
                isolate=False if simulated else None,
                save=run,
                check=self.check and simulated,
                accepted=self.accepted,
                sms=self.sms if simulated else None,
            ).records
        with open_store(run) as saved:
            left = {name: handle.read() for name, handle in saved.records[0].after.items()}
        if record.outcome is not Outcome.PASS:
            return record, left
        found = operation(self.grid.op)
        return record, keep_valid_rows(
            found, calls.compact_call(store.records[number], found, torch.device("cpu")), left
        )

    def prove(self, names: Sequence[str], quick: bool, told: Told) -> None:
        cases = [
            case
            for case in self.grid.cases()
            if self._asked(case.name, names)
            and (case.quick or not quick)
            # What is outside the compiled kernels need not be outside another one.
            and not (case.refused and self.kernel not in self.grid.compiled)
        ]
        if self.on == SIM:
            for case in cases:
                told((case.name, *self.case(case)))
        else:
            with self._made(cases) as store:
                few = [(number, case.name, case.refused) for number, case in enumerate(cases)]
                self._records(store, few, told)
        if not quick:
            self.captured(names, told)


def verdict(record: RecordResult, refused: bool) -> str:
    """Of a record that should pass, or be refused."""
    if record.outcome is not (Outcome.UNSUPPORTED if refused else Outcome.PASS):
        return "FAIL"
    return "refused" if refused else "pass"


def shows_stages(op: str, kernel: str) -> bool:
    return "stages" in inspect.signature(load(kernel, operation(op)).function).parameters


def chosen(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


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


def main(description: str) -> Exit:
    """The command line of scripts/kernel_grid.py."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("op", choices=GRIDS)
    parser.add_argument("names", nargs="*", help="patterns of case names; all if left out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--kernel", help="one of the operation or FILE.py:FUNCTION (default: compiled)")
    parser.add_argument("--on", default=SIM)
    parser.add_argument("--seed", type=int, default=0, help="added to the seed of every case")
    parser.add_argument(
        "--schedules",
        help="of the simulator, separated by commas: late, early, random:SEED",
    )
    parser.add_argument(
        "--check", action="store_true", help="with the simulator's checker, whose errors fail"
    )
    parser.add_argument("--sms", type=int, help="of the simulated GPU (default: an H200's or B200's)")
    options = parser.parse_intermixed_args()
    grid = GRIDS[options.op]
    if options.list:
        print("\n".join(case.name for case in grid.cases()))
        return Exit.PASS
    schedules = tuple(options.schedules.split(",")) if options.schedules else grid.schedules
    if options.kernel is None and not grid.compiled:
        parser.error(f"--kernel is needed: {grid.op} has no compiled kernel")
    kernel = options.kernel or grid.compiled[0]
    prover = Prover(grid, kernel, options.on, schedules, options.seed, check=options.check, sms=options.sms)
    found: list[Proof] = []
    begin = time.monotonic()

    def told(proof: Proof) -> None:
        found.append(proof)
        name, verdict, record = proof
        seconds = time.monotonic() - begin
        line = f"{seconds:6.1f} s {len(found):3} {verdict:8} {name} {record.reason}".rstrip()
        print(line, file=sys.stderr, flush=True)

    try:
        prover.prove(options.names, options.quick, told)
    except BAD_INPUT_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    if not found:
        print(f"error: no case is called {' or '.join(options.names)}; --list prints them", file=sys.stderr)
        return Exit.BAD_INPUT
    heads = ("case", "verdict", "seconds", "worst", "of torch's", "RMS ratio", "torch's", "reason")
    print(table(heads, [row(*one) for one in found], right=heads[2:3] + heads[4:7]))
    failed = sum(verdict == "FAIL" for _, verdict, _ in found)
    print(f"{len(found)} cases, {failed} failed")
    return Exit.MISMATCH if failed else Exit.PASS
