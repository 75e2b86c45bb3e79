# SPDX-License-Identifier: Apache-2.0
"""The report of a simulated call, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.finding_groups import text_of_groups
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.profile.recorder import LaunchRecord
from gdnbench.sim.profile.table import profile_table
from gdnbench.sim.profile.trace import write_trace

AFTER_A_FAULT = "keep_going: results after a fault are not those of a correct run"


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """One launch. `found` counts the checker's findings by verdict; None if the launch was not checked.
    `instructions`, `traffic`, `waits` and `timeline` are set only with profile=True. `printed` are the texts
    of the kernel's printf with the block and the thread, by block."""

    entry: str
    grid: Dim3
    block: Dim3
    shared_bytes: int
    registers: int | None
    finished: bool
    ctas: int = 0
    warp_instructions: int = 0
    mma_macs: int = 0
    seconds: float = 0.0
    instructions: Mapping[str, int] | None = None
    traffic: Mapping[str, int] | None = None
    waits: Mapping[str, int] | None = None
    timeline: LaunchRecord | None = None
    found: Mapping[str, int] | None = None
    printed: tuple[str, ...] = ()

    def __str__(self) -> str:
        shared = f"{self.shared_bytes} bytes of dynamic shared memory"
        size = f"grid {_by(self.grid)}, block {_by(self.block)}, {shared}"
        registers = f", {self.registers} registers" if self.registers is not None else ""
        done = (
            f"{self.warp_instructions:,} warp instructions, {self.mma_macs:,} MACs in {self.seconds:.2f} s"
            if self.finished
            else "stopped"
        )
        texts = f"\n  printf: {len(self.printed):,} texts" if self.printed else ""
        return f"{self.entry}\n  {size}{registers}\n  {done}{texts}"


@dataclass(frozen=True, slots=True)
class Report:
    """A simulated call: its launches in order, the findings, and the settings. `origin` is the program's line
    that made the call, if it is known."""

    launches: tuple[LaunchReport, ...]
    findings: tuple[Finding, ...]
    engine: str
    schedule: str
    mma: str
    checked: bool = False
    origin: str | None = None

    @property
    def ok(self) -> bool:
        """Whether no fault occurred and every error of the checker was accepted."""
        return not any(finding.fails for finding in self.findings)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """The report for people: findings by pair of source lines. `verbose`: each pair of instructions, also
        of findings that somebody accepted."""
        checked = ", checked" if self.checked else ""
        how = f"engine {self.engine}, schedule {self.schedule}, mma {self.mma}{checked}"
        launches = [f"launch {number}: {launch}" for number, launch in enumerate(self.launches)]
        profiles = [text for number, launch in enumerate(self.launches) if (text := _profile(number, launch))]
        if any(finding.skipped for finding in self.findings):
            launches.append(AFTER_A_FAULT)
        if verbose:
            shown = [str(finding) for finding in self.findings]
        else:
            standing = [finding for finding in self.findings if finding.accepted is None]
            shown = text_of_groups(standing)
        if self.origin is not None:
            how += f"; called at {self.origin}"
        return "\n".join([how, *launches, *profiles, *shown, self._verdict()])

    def _verdict(self) -> str:
        errors = sum(finding.fails for finding in self.findings)
        parts = [f"{errors} error{'' if errors == 1 else 's'} found" if errors else "no error found"]
        standing = Counter(finding.severity for finding in self.findings if finding.accepted is None)
        counts = {
            "to review": standing[Severity.REVIEW],
            "incomplete": standing[Severity.INCOMPLETE],
            "accepted": sum(finding.accepted is not None for finding in self.findings),
        }
        return ", ".join([*parts, *(f"{count} {what}" for what, count in counts.items() if count)])

    def write_trace(self, path: Path) -> None:
        """Write the timelines for Perfetto or chrome://tracing; LaunchError if none was recorded."""
        recorded = [(one.entry, one.timeline) for one in self.launches if one.timeline is not None]
        if not recorded:
            raise LaunchError("there is no timeline to write: launch with profile=True")
        write_trace(path, recorded)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "ok": self.ok,
            "engine": self.engine,
            "schedule": self.schedule,
            "mma": self.mma,
            "checked": self.checked,
            "origin": self.origin,
            "launches": [_plain(launch) for launch in self.launches],
            "findings": [finding.as_json() for finding in self.findings],
        }


def _plain(launch: LaunchReport) -> dict[str, Any]:
    """All fields but the timeline, which has its own file format."""
    return {field.name: getattr(launch, field.name) for field in fields(launch) if field.name != "timeline"}


def _profile(number: int, launch: LaunchReport) -> str:
    """The counts of one launch as text; empty without a profile."""
    if launch.timeline is None or launch.instructions is None or launch.traffic is None:
        return ""
    table = profile_table(launch.instructions, launch.traffic, launch.mma_macs, launch.timeline)
    return f"profile of launch {number}\n{table}"


def _by(extent: Dim3) -> str:
    return "x".join(map(str, extent))
