# SPDX-License-Identifier: Apache-2.0
"""Runs specimens on records and judges them as `gdnbench replay` does.

    places = [*captured("gdn_decode"), *made("gdn_decode", folder)]
    for one in outcomes(places, faults("gdn_decode")): ...

Every specimen is called through `gdnbench.replay`: on poisoned outputs, in conventions that it takes, on its
own copies of pools. One judge serves all specimens of a record, so that oracle and torch run once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.result import LimitCheck, Side
from gdnbench.judge.rule import Bound
from gdnbench.ops import operation
from gdnbench.poison import same_bits
from gdnbench.prove.records import read_made, write_made
from gdnbench.replay.execute import Execution
from gdnbench.replay.kernels import of_function
from gdnbench.replay.replay import Replayer
from gdnbench.replay.run import InProcess
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store, StoredRecord
from tests.power.library import Specimen, faults, variants

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
CAUGHT = (Outcome.MISMATCH, Outcome.CRASH)
"""Outcomes that call a kernel wrong: one that raises is wrong too."""


@dataclass(frozen=True)
class Place:
    """Where a record is: its store and number, and what to call it."""

    path: Path
    number: int
    label: str


@dataclass(frozen=True)
class Judged:
    """The outcome of one specimen on one record. `closest` is the limit of all that it came closest to, or
    exceeded most, `tensor` the one that has it."""

    specimen: str
    record: str
    outcome: Outcome
    reason: str = ""
    tensor: str = ""
    closest: LimitCheck | None = None

    @property
    def caught(self) -> bool:
        return self.outcome in CAUGHT

    @property
    def ratio(self) -> float:
        """The error over its limit; 0 where no limit was held."""
        return 0.0 if self.closest is None else self.closest.ratio


def captured(op: str) -> list[Place]:
    """The captured records of an operation."""
    found = []
    for path in sorted(CAPTURES.glob("*.zarr.zip")):
        with Store.open(path) as store:
            name = path.name.removesuffix(".zarr.zip")
            found += [
                Place(path, record.number, f"{name} {record.number}")
                for record in store.records
                if record.info.op == op
            ]
    return found


def made(op: str, folder: Path, seed_shift: int = 0, names: Sequence[str] | None = None) -> list[Place]:
    """The made records of an operation, or those of the given names, written to a store in `folder`."""
    records = [one for one in read_made() if one.op == op and (names is None or one.name in names)]
    path = folder / f"{op}_{len(list(folder.iterdir()))}.zarr"
    write_made(path, records, seed_shift)
    suffix = f", seed + {seed_shift}" if seed_shift else ""
    return [Place(path, number, one.name + suffix) for number, one in enumerate(records)]


def made_names(op: str) -> list[str]:
    """The names of an operation's made records."""
    return [one.name for one in read_made() if one.op == op]


def judge_record(record: StoredRecord, label: str, specimens: Iterable[Specimen]) -> Iterator[Judged]:
    """The outcome of each specimen on one record."""
    judge = Judge(Bound(), torch.device("cpu"))
    for one in specimens:
        runner = InProcess(of_function(one.kernel, one.label), "cpu")
        yield _judged(one, label, Replayer(runner, None, ORACLE, judge).replay(record))


def _judged(specimen: Specimen, label: str, result: RecordResult) -> Judged:
    checks = [
        (check, tensor.tensor)
        for tensor in result.tensors
        if tensor.side is Side.KERNEL
        for check in tensor.held
    ]
    closest, name = max(checks, key=lambda pair: pair[0].ratio, default=(None, ""))
    return Judged(specimen.label, label, result.outcome, result.reason, name, closest)


def outcomes(
    places: Sequence[Place], specimens: Sequence[Specimen], workers: int = 1
) -> Iterator[list[Judged]]:
    """The outcomes of all specimens, record after record; over several processes if `workers` is above 1."""
    names = [(one.operation, one.right, one.label) for one in specimens]
    if workers == 1:
        for place in places:
            yield _judge_place(place, specimens)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(_judge_named, places, [names] * len(places))


def _judge_place(place: Place, specimens: Sequence[Specimen]) -> list[Judged]:
    with Store.open(place.path) as store:
        return list(judge_record(store.records[place.number], place.label, specimens))


def _judge_named(place: Place, names: Sequence[tuple[str, bool, str]]) -> list[Judged]:
    """For a worker process, to which functions cannot be sent."""
    torch.set_num_threads(1)
    known = {
        (one.operation, one.right, one.label): one
        for op in {op for op, _, _ in names}
        for one in (*variants(op), *faults(op))
    }
    return _judge_place(place, [known[name] for name in names])


def unequal_bits(first: StoredRecord, between: StoredRecord, specimen: Specimen) -> str:
    """What differs when `first` runs three times, with `between` run after the first time; empty if nothing
    does."""
    runner = InProcess(of_function(specimen.kernel, specimen.label), "cpu")
    op = operation(first.info.op)
    runs = [runner.run_record(record, op) for record in (first, between, first, first)]
    found = [run.outputs for run in (runs[0], *runs[2:]) if isinstance(run, Execution)]
    if len(found) < 3:
        return "a run failed"
    one, *others = found
    wrong = [name for name, x in one.items() if not all(same_bits(x, other[name]) for other in others)]
    return f"{', '.join(wrong)}: other bits in a later run" if wrong else ""


def unrepeatable(places: Sequence[Place], specimens: Iterable[Specimen]) -> dict[str, str]:
    """What differs when the first of two records runs repeatedly, by label, for specimens of which something
    does."""
    first, between = places[0], places[1]
    with Store.open(first.path) as store, Store.open(between.path) as other:
        found = {
            one.label: unequal_bits(store.records[first.number], other.records[between.number], one)
            for one in specimens
        }
    return {label: text for label, text in found.items() if text}
