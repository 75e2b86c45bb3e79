# SPDX-License-Identifier: Apache-2.0
"""The results of `gdnbench.replay`, `diff` and `sim`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from gdnbench.api.html import report_html, sim_html
from gdnbench.api.tables import data_frame
from gdnbench.judge.result import Side
from gdnbench.printable import printable
from gdnbench.report.export import to_json, to_junit
from gdnbench.report.render import render_text, summary_line
from gdnbench.report.report import DiffReport, RecordResult, ReplayReport, Report
from gdnbench.units import counted

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

    from gdnbench.sim import Finding
    from gdnbench.sim import Report as SimReport

RESULT_COLUMNS = (
    *("record", "key", "op", "layer", "step", "outcome", "reason", "tensor", "when", "side", "stage"),
    *("judged", "passed", "elements", "unequal", "max_abs", "rms_ratio", "torch_rms_ratio", "of_limit"),
    "max_ulp",
)
FINDING_COLUMNS = (
    "call",
    "launch",
    "severity",
    "kind",
    "finding",
    "file",
    "line",
    "thread",
    "count",
    "accepted",
)
LAUNCH_COLUMNS = (
    *("call", "kernel", "grid", "block", "shared_bytes", "registers", "finished", "warp_instructions"),
    *("mma_macs", "seconds"),
)


class _Records(Report):
    """What results of records have in common: they are sequences of them."""

    __slots__ = ()

    @property
    def ok(self) -> bool:
        """Whether every record passed."""
        return all(record.outcome.exit_code == 0 for record in self.records)

    @property
    def failures(self) -> Self:
        """The same result with only the records that did not pass."""
        return self._with([record for record in self.records if record.outcome.exit_code != 0])

    def _with(self, records: Sequence[RecordResult]) -> Self:
        found: Self = replace(self, records=tuple(records))  # type: ignore[type-var]
        return found

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> RecordResult: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> RecordResult | Self:
        """The result at that place, or the same result with only those of the slice."""
        if isinstance(index, slice):
            return self._with(self.records[index])
        return self.records[index]

    def __iter__(self) -> Iterator[RecordResult]:
        return iter(self.records)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each tensor and side of each record; CannotRunError without pandas."""
        return data_frame(list(result_rows(self.records)), RESULT_COLUMNS)

    def to_json(self) -> str:
        """What `--json` prints."""
        return to_json(self)

    def to_junit(self) -> str:
        """What `--junit` writes."""
        return to_junit(self)

    def __str__(self) -> str:
        """The table that the command prints."""
        return render_text(self)

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__} {summary_line(self)}>")

    def _repr_html_(self) -> str:
        return report_html(self, summary_line(self))

    @classmethod
    def from_report(cls, report: Any, **more: Any) -> Self:
        """This result with the fields of the workbench's."""
        return cls(**{one.name: getattr(report, one.name) for one in fields(report)}, **more)


@dataclass(frozen=True, slots=True, repr=False)
class ReplayResult(_Records, ReplayReport):
    """The records that `gdnbench.replay` ran and judged. `unused`: entries of `accept` that accepted
    nothing."""

    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class DiffResult(_Records, DiffReport):
    """The records that `gdnbench.diff` compared."""


@dataclass(frozen=True, slots=True, repr=False)
class SimResult:
    """A simulated call. `calls` has a report for each call of a compiled kernel, `tensors` its arguments as
    the kernel left them, by name, `notes` what the compiler of a FILE.cu printed."""

    calls: tuple[SimReport, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no fault occurred, and every error of the checker was accepted."""
        return all(call.ok for call in self.calls)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Faults, and what the checker found."""
        return tuple(finding for call in self.calls for finding in call.findings)

    def to_pandas(self, rows: Literal["findings", "launches"] = "findings") -> pandas.DataFrame:
        """A row for each finding, or for each launch; CannotRunError without pandas."""
        if rows == "launches":
            return data_frame(list(self._launches()), LAUNCH_COLUMNS)
        return data_frame(list(self._found()), FINDING_COLUMNS)

    def _found(self) -> Iterator[dict[str, Any]]:
        for number, call in enumerate(self.calls):
            for one in call.findings:
                place = {"file": one.file, "line": one.line, "thread": one.thread, "count": one.count}
                what = {"severity": str(one.severity), "kind": one.kind, "finding": one.summary}
                yield {"call": number, "launch": one.launch, **what, **place, "accepted": one.accepted}

    def _launches(self) -> Iterator[dict[str, Any]]:
        for number, call in enumerate(self.calls):
            for one in call.launches:
                known = {name: getattr(one, name) for name in LAUNCH_COLUMNS[2:]}
                yield {"call": number, "kernel": one.entry, **known}

    def __str__(self) -> str:
        """The text that the command prints."""
        return "\n".join(call.text() for call in self.calls)

    def __repr__(self) -> str:
        count = sum(len(call.launches) for call in self.calls)
        launches = f"{count} launch{'' if count == 1 else 'es'}"
        errors = counted(sum(finding.fails for finding in self.findings), "error")
        return f"<SimResult {launches}, {errors}>"

    def _repr_html_(self) -> str:
        return sim_html(self.calls, self.tensors)


def result_rows(records: Sequence[RecordResult]) -> Iterator[dict[str, Any]]:
    """A row for each judged or shown tensor, and one for a record without any."""
    for record in records:
        about = {
            "record": record.number,
            "key": record.key,
            "op": record.op,
            "layer": record.layer,
            "step": record.step,
            "outcome": str(record.outcome),
            "reason": record.reason,
        }
        if not record.tensors:
            yield about
        for tensor in record.tensors:
            errors, torchs = tensor.errors, tensor.yardstick
            yield about | {
                "tensor": tensor.tensor,
                "when": str(tensor.when),
                "side": str(tensor.side),
                "stage": tensor.stage,
                "judged": tensor.judged,
                "passed": tensor.passed,
                "elements": tensor.elements,
                "unequal": tensor.unequal,
                "max_abs": errors and errors.max_abs,
                "rms_ratio": errors and errors.rms_ratio,
                "torch_rms_ratio": torchs and torchs.rms_ratio,
                "of_limit": tensor.of_limit,
                # Conversions are compared in fp64, where a distance in ULP says nothing.
                "max_ulp": errors.max_ulp if errors and tensor.side is not Side.CONVERSION else None,
            }
