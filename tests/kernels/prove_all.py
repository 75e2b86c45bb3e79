# SPDX-License-Identifier: Apache-2.0
"""Replays the made and shipped records of operations through all of their kernels."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from gdnbench.errors import CannotRunError
from gdnbench.ops import operation
from gdnbench.replay.kernel_packages import kernel_packages
from gdnbench.replay.replay import replay
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store
from gdnbench.store.recover import open_store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench_kernels.contract import KernelEntry
from tests.kernels.proving import CAPTURES, GRIDS, chosen, furthest, multiple

ENVIRONMENT = {
    "vllm": "GDNBENCH_VLLM",
    "sglang": "GDNBENCH_SGLANG",
    "flash-linear-attention": "GDNBENCH_THIRD_PARTY",
    "flashinfer-python": "GDNBENCH_THIRD_PARTY",
}
"""The variable that names the folder with a package that a kernel needs, by package."""
WITHIN = {"flash-linear-attention": "with-triton"}
"""The folder in that folder."""
NOT_RUN = (Outcome.MISSING, Outcome.COMPILE_FAILURE)
SHIPPED = "capture "


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel of an operation on a device: cpu, sim or cuda."""

    op: str
    kernel: str
    on: str

    def __str__(self) -> str:
        return f"{self.op} {self.kernel} {self.on}"

    @property
    def entry(self) -> KernelEntry:
        return operation(self.op).kernels[self.kernel]

    def packages(self) -> Path | None:
        """The folder with the packages that the kernel needs; None if it needs none or no variable names
        one. A GPU's environment has them."""
        for package, variable in ENVIRONMENT.items():
            folder = os.environ.get(variable)
            if self.on == SIM and package in self.entry.needs and folder:
                return Path(folder) / WITHIN.get(package, "")
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a record. `ratio`: the largest of its tensors' RMS errors over torch's, 0 without."""

    subject: str
    record: str
    outcome: str
    reason: str
    ratio: float
    seconds: float

    @staticmethod
    def create(subject: Subject, name: str, result: RecordResult) -> Verdict:
        worst = furthest(result)
        ratio = 0.0 if worst is None else multiple(worst)
        return Verdict(str(subject), name, result.outcome, result.reason, ratio, result.seconds)


def subjects(ops: Iterable[str], cuda: bool) -> Iterator[Subject]:
    """Every kernel of the operations: in the simulator, or on CUDA if `cuda`, where it can; else on the
    CPU."""
    device = "cuda" if cuda else SIM
    for op in ops:
        for name, entry in operation(op).kernels.items():
            if device in entry.devices:
                yield Subject(op, name, device)
            elif "cpu" in entry.devices:
                yield Subject(op, name, "cpu")


class Records:
    """The records of the operations: the cases of their grids, made in `folder`, and the shipped captures."""

    def __init__(self, folder: Path, ops: Iterable[str], names: tuple[str, ...], quick: bool) -> None:
        """`names`: patterns of records, all if empty; `quick`: the few small cases."""
        self._stack = ExitStack()
        self._found: dict[str, list[tuple[Store, int, str]]] = {}
        for op in ops:
            cases = [
                case
                for case in GRIDS[op].cases()
                if not case.refused and (case.quick or not quick) and chosen(case.name, names)
            ]
            self._found[op] = []
            if cases:
                path = folder / f"{op}.zarr"
                with StoreWriter(path, kind="synth", durable=False) as writer:
                    for index, case in enumerate(cases):
                        call = synthesise(op, **case.options)
                        writer.write(f"{index:06}", [draft(op, call, index=index)])
                store = self._stack.enter_context(open_store(path))
                self._found[op] += [(store, number, case.name) for number, case in enumerate(cases)]
        for path in sorted(CAPTURES.glob("*.zarr.zip")):
            self._add_shipped(path, names)

    def _add_shipped(self, path: Path, names: tuple[str, ...]) -> None:
        store = self._stack.enter_context(open_store(path))
        for record in store.records:
            name = f"{SHIPPED}{path.name.partition('.')[0]} {record.number}"
            if record.info.op in self._found and chosen(name, names):
                self._found[record.info.op].append((store, record.number, name))

    def of(self, op: str) -> list[tuple[Store, int, str]]:
        """(store, number, name) of each record."""
        return self._found[op]

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()


def prove(
    subject: Subject,
    records: Records,
    known: Mapping[tuple[str, str], Verdict],
    timeout: float,
    told: Callable[[Verdict], None],
) -> None:
    """Replays the records of a kernel of which no verdict is known, each for at most `timeout` seconds."""
    left: dict[int, tuple[Store, list[tuple[int, str]]]] = {}
    for store, number, name in records.of(subject.op):
        if (str(subject), name) not in known:
            left.setdefault(id(store), (store, []))[1].append((number, name))
    with kernel_packages(subject.packages()):
        for store, few in left.values():
            names = dict(few)
            try:
                replay(
                    store,
                    kernel=subject.kernel,
                    on=subject.on,
                    records=list(names),
                    timeout=timeout,
                    progress=lambda _, __, result: told(
                        Verdict.create(subject, names[result.number], result)  # noqa: B023
                    ),
                )
            except CannotRunError as error:
                for name in names.values():
                    told(Verdict(str(subject), name, Outcome.MISSING, str(error), 0.0, 0.0))


def read(path: Path) -> dict[tuple[str, str], Verdict]:
    """The verdicts in a file of lines, by kernel and record. A last line without its end is left out."""
    if not path.exists():
        return {}
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    found = [Verdict(**json.loads(line)) for line in whole]
    return {(one.subject, one.record): one for one in found}


def write(path: Path, verdict: Verdict) -> None:
    """Adds a line to the file."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(verdict)) + "\n")


HEADS = ("kernel", "made", "shipped", "mismatch", "unsupported", "not run", "of torch's", "seconds", "first")


def row(subject: str, verdicts: list[Verdict]) -> tuple[object, ...]:
    """A line of the table. "made" and "shipped" count records that pass; "first" names the first that is a
    mismatch, else the first reason why one was not run."""
    passed = [one for one in verdicts if one.outcome == Outcome.PASS]
    shipped = sum(one.record.startswith(SHIPPED) for one in passed)
    not_run = [one for one in verdicts if one.outcome in NOT_RUN]
    unsupported = [one for one in verdicts if one.outcome == Outcome.UNSUPPORTED]
    wrong = failures(verdicts)
    first = (wrong or not_run or unsupported)[:1]
    ratio = max((one.ratio for one in passed), default=0.0)
    return (
        subject,
        len(passed) - shipped,
        shipped,
        len(wrong),
        len(unsupported),
        len(not_run),
        f"{ratio:.2f}" if ratio else "",
        f"{sum(one.seconds for one in verdicts):.0f}",
        f"{first[0].record}: {first[0].reason}" if first else "",
    )


def failures(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those of records that ran and did not pass."""
    fine = (Outcome.PASS, Outcome.UNSUPPORTED, *NOT_RUN)
    return [one for one in verdicts if one.outcome not in fine]
