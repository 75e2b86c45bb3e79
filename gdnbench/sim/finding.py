# SPDX-License-Identifier: Apache-2.0
"""A finding of a simulated call: a fault, or what the checker found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gdnbench.sim.checker.evidence import Evidence
from gdnbench.sim.errors import KernelFault, Place


class Severity(StrEnum):
    """How bad a finding is: an illegal act or unordered accesses; an order that the PTX ISA leaves open;
    something that the checker cannot judge; or something legal that the reader should know."""

    ERROR = "error"
    REVIEW = "review"
    INCOMPLETE = "incomplete"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its kind, place and thread, as far as they are known. A finding of the checker has
    `evidence`, and `accepted` is the reason if somebody accepted it. When two kernels are compared, `of`
    names the kernel if it is not the one being judged. `skipped`: a fault after which the launch went on."""

    severity: Severity
    kind: str
    message: str
    launch: int  # which of the call's launches, from 0
    thread: str | None = None
    count: int = 1
    ptx_line: int | None = None
    ptx: str | None = None
    file: str | None = None
    line: int | None = None
    evidence: Evidence | None = None
    accepted: str | None = None
    of: str | None = None
    skipped: bool = False

    @classmethod
    def at_place(cls, place: Place | None, **what: Any) -> Finding:
        """Make a finding with the lines of `place`."""
        if place is None:
            return cls(**what)
        return cls(**what, ptx_line=place.line, ptx=place.text, file=place.file, line=place.file_line)

    @classmethod
    def of_fault(cls, fault: KernelFault, launch: int) -> Finding:
        """Make the finding for a fault."""
        return cls.at_place(
            fault.place,
            severity=Severity.ERROR,
            kind=fault.kind.value,
            message=fault.message,
            launch=launch,
            thread=fault.thread,
        )

    @classmethod
    def of_evidence(cls, evidence: Evidence, launch: int) -> Finding:
        """Make the finding for the checker's evidence, at the later of its two accesses."""
        return cls.at_place(
            None if evidence.second is None else evidence.second.place,
            severity=Severity(evidence.verdict.value),
            kind=evidence.cause,
            message=evidence.message,
            launch=launch,
            count=evidence.count,
            evidence=evidence,
        )

    @property
    def fails(self) -> bool:
        """Whether this is an error that nobody accepted."""
        return self.severity is Severity.ERROR and self.accepted is None

    @property
    def summary(self) -> str:
        """One line that is equal for every launch with this finding."""
        summary = self.message.split("\n")[0] if self.evidence is None else self.evidence.summary
        return summary if self.of is None else f"{self.of}: {summary}"

    def as_json(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {**asdict(self), "evidence": self.evidence and self.evidence.as_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Read what `as_json` wrote."""
        evidence = data["evidence"] and Evidence.from_json(data["evidence"])
        return cls(**{**data, "severity": Severity(data["severity"]), "evidence": evidence})

    def __str__(self) -> str:
        if self.evidence is not None:
            accepted = [] if self.accepted is None else [f"accepted: {self.accepted}"]
            launch = f"{self.launch}" if self.of is None else f"{self.launch} of {self.of}"
            head = f"{self.severity} in launch {launch}: {self.kind}: {self.message}"
            return "\n  ".join([head, *self.evidence.lines(), *accepted])
        who = f" in {self.thread}" if self.thread else ""
        often = f" ({self.count} times)" if self.count > 1 else ""
        first, *rest = self.message.split("\n")
        lines = [f"{self.severity} in launch {self.launch}: {self.kind}: {first}{who}{often}", *rest]
        if self.ptx_line is not None:
            lines.append(f"  PTX line {self.ptx_line}: {self.ptx}")
        if self.file is not None:
            lines.append(f"  {self.file}:{self.line}")
        return "\n".join(lines)
