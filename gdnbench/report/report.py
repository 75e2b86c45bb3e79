# SPDX-License-Identifier: Apache-2.0
"""The results of a replay or diff, record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdnbench.error_frames import KernelError
from gdnbench.errors import Exit
from gdnbench.judge.error_attribution import StageShare
from gdnbench.judge.result import TensorResult
from gdnbench.printable import printable
from gdnbench.report.outcome import Outcome, exit_code
from gdnbench.store.reader import StoredRecord
from gdnbench.units import counted
from gdnbench_kernels.contract import Ranges

if TYPE_CHECKING:
    from gdnbench.sim import Finding
    from gdnbench.sim.predict import PredictedTime
    from gdnbench.timing.result import RecordTiming


@dataclass(frozen=True, slots=True, repr=False)
class RecordResult:
    """The result of one record: its outcome, a one-line reason unless it passed, and its tensors.

    `faults`: forbidden writes of the kernel. `notes`: conversions, and parts of the caller's layout that were
    not rebuilt. `findings`: those of the simulator's checker, None if it did not run. `error`: where the
    kernel raised, crashed or hung, if that is known; `reason` says it in one line.
    """

    number: int
    key: str
    op: str
    layer: str
    layer_index: int | None
    step: int
    outcome: Outcome
    reason: str = ""
    faults: tuple[str, ...] = ()
    tensors: tuple[TensorResult, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    other: str | None = None  # in a diff: the key of the record that it is compared with
    timing: RecordTiming | None = None  # for a record that passed, if timed
    predicted: tuple[PredictedTime, ...] = ()  # of simulated kernels, for a record that passed
    findings: tuple[Finding, ...] | None = None
    imported: bool = True  # False: the kernel failed before it could be called
    waterfall: tuple[StageShare, ...] | None = None  # with stages and grids
    ranges: tuple[Ranges, ...] | None = None  # ranges of the inputs; with grids
    printed: str = ""  # what a kernel in a process of its own printed, of bounded length; with grids
    error: KernelError | None = None

    @classmethod
    def from_record(cls, record: StoredRecord, outcome: Outcome, reason: str = "") -> RecordResult:
        """The result of `record` without any judged tensor."""
        info = record.info
        return cls(
            record.number, record.key, info.op, info.layer, info.layer_index, info.step, outcome, reason
        )

    def __repr__(self) -> str:
        count = counted(len(self.tensors), "tensor")
        return printable(f"<RecordResult {self.label}: {self.outcome}, {count}>")

    @property
    def label(self) -> str:
        """`3 gdn_prefill model.layers.0 step 0`, for tables and test names."""
        return f"{self.number} {self.op} {self.layer} step {self.step}"

    @property
    def ran_wrong(self) -> bool:
        """Whether a kernel that could be called, and compiles, mismatched, crashed or hung."""
        compiles = self.imported and self.outcome is not Outcome.COMPILE_FAILURE
        return compiles and self.outcome.exit_code is Exit.MISMATCH


class Report(ABC):
    """The results of a command over many records."""

    __slots__ = ()
    records: tuple[RecordResult, ...]

    @property
    @abstractmethod
    def header(self) -> dict[str, str]:
        """What was compared with what, and the rule."""

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter(record.outcome for record in self.records)

    @property
    def exit_code(self) -> Exit:
        """CANNOT_RUN at best where a kernel has no predicted time."""
        without = [
            Outcome.UNSUPPORTED for record in self.records for one in record.predicted if one.call is None
        ]
        return exit_code([*self.outcomes, *without])


@dataclass(frozen=True, slots=True)
class ReplayReport(Report):
    """A kernel replayed on the records of a store."""

    store: str
    kernel: str
    against: str
    on: str
    rule: str
    records: tuple[RecordResult, ...]

    @property
    def header(self) -> dict[str, str]:
        return {
            "command": "replay",
            "store": self.store,
            "kernel": self.kernel,
            "against": self.against,
            "on": self.on,
            "rule": self.rule,
        }


@dataclass(frozen=True, slots=True)
class DiffReport(Report):
    """Two stores compared. A record that only one of them has is a mismatch."""

    a: str
    b: str
    rule: str
    records: tuple[RecordResult, ...]

    @property
    def header(self) -> dict[str, str]:
        return {"command": "diff", "a": self.a, "b": self.b, "rule": self.rule}
