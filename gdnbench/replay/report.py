"""What a replay came to, record by record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gdnbench.diff.result import TensorResult
from gdnbench.errors import Exit
from gdnbench.replay.outcome import Outcome, exit_code


@dataclass(frozen=True, slots=True)
class RecordResult:
    """One record: what became of it, in one line where it is not a pass, and its tensors.

    `faults`: what the kernel wrote that it must not. `notes`: what was converted, or of the caller's layout
    not rebuilt.
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

    @property
    def label(self) -> str:
        """`3 gdn_prefill model.layers.0 step 0`, for tables and test names."""
        return f"{self.number} {self.op} {self.layer} step {self.step}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """A kernel replayed on the records of a store."""

    store: str
    kernel: str
    against: str
    on: str
    rule: str
    records: tuple[RecordResult, ...]
    saved: str | None = None

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter(record.outcome for record in self.records)

    @property
    def exit_code(self) -> Exit:
        return exit_code(self.outcomes)
