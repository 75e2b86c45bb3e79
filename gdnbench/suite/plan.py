# SPDX-License-Identifier: Apache-2.0
"""A suite as plain values: what is replayed, by which rules, and which failures are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from gdnbench.judge.record import ORACLE
from gdnbench.report.report import RecordResult
from gdnbench.store.address import Address

FACTOR = 2.0
"""Default limit of an error relative to the accepted one; docs/ci.md derives it."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """The rule of a tensor; with None and False throughout, it is k = 2."""

    k: float | None = None
    tol: tuple[float, float] | None = None
    bitwise: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a [[replay]] table, named as those of `replay`.

    `tensors`: rules of single tensors, by TENSOR or OPERATION.TENSOR. `optional`: what cannot run here is no
    failure. `machine`, `sms`: the GPU of simulated kernels. `factor`: limit of an error relative to the
    accepted one.
    """

    against: str = ORACLE
    rule: TensorRule = TensorRule()
    tensors: Mapping[str, TensorRule] = field(default_factory=dict)
    records: tuple[int, ...] | None = None
    op: str | None = None
    stages: bool = False
    check: bool = False
    accept: Path | None = None
    timeout: float | None = None
    isolate: bool | None = None
    machine: str | None = None
    sms: int | None = None
    optional: bool = False
    factor: float = FACTOR

    def rule_of(self, op: str, tensor: str) -> TensorRule:
        """The rule of a tensor: for OPERATION.TENSOR, else for TENSOR, else the table's."""
        return self.tensors.get(f"{op}.{tensor}") or self.tensors.get(tensor) or self.rule


@dataclass(frozen=True, slots=True)
class Entry:
    """One capture, or file of made records, with one kernel on one device.

    `capture`: the baseline's name for it, relative to the suite's folder; `path`, `kernel`: arguments for
    `replay` from the current folder. `written`: the kernel as written in the suite, which baselines use.
    """

    name: str
    where: str
    capture: str
    path: Address
    kernel: str
    written: str
    on: str
    options: Options
    made: bool = False  # `path` describes made records

    @property
    def key(self) -> tuple[str, str, str]:
        return self.capture, self.written, self.on


@dataclass(frozen=True, slots=True)
class Known:
    """A known failure, valid through the day `until`. Patterns use `*` and `?`; None matches everything.

    `record` matches a record's number, key or label. With `tensor` only that tensor's failures are known,
    with `outcome` only those with that outcome.
    """

    where: str
    entry: str
    reason: str
    until: date
    record: str | None = None
    tensor: str | None = None
    outcome: str | None = None
    link: str | None = None

    def is_of(self, entry: str, record: RecordResult) -> bool:
        names = (str(record.number), record.key, record.label)
        return fnmatchcase(entry, self.entry) and (
            self.record is None or any(fnmatchcase(name, self.record) for name in names)
        )

    def expired(self, today: date) -> bool:
        return today > self.until

    def __str__(self) -> str:
        parts = [("record", self.record), ("tensor", self.tensor), ("outcome", self.outcome)]
        return ", ".join([self.entry, *(f"{name} {text}" for name, text in parts if text is not None)])


@dataclass(frozen=True, slots=True)
class LineageCheck:
    """A capture of which `gdnbench lineage` is asked: a [[lineage]] table with one of its captures."""

    name: str
    where: str
    capture: str
    path: Address


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite with its captures resolved. `baselines`: the file of accepted errors, or None."""

    path: Path
    entries: tuple[Entry, ...]
    known: tuple[Known, ...] = ()
    baselines: Path | None = None
    lineage: tuple[LineageCheck, ...] = ()
