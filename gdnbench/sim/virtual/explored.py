# SPDX-License-Identifier: Apache-2.0
"""What running a launch under several schedules and in several engines showed; as JSON, it travels in the log
of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.machine.engine_interface import Dim3


def run_names(schedules: Sequence[str], engine: str, engines: Sequence[str]) -> tuple[str, ...]:
    """The runs of a launch under `schedules`, in `engine` and then in the others of `engines`. A run in
    `engine` has the name of its schedule, one in another engine both names: "interpreter late"."""
    others = [f"{other} {one}" for other in engines if other != engine for one in schedules]
    return (*schedules, *others)


def schedule_and_engine(name: str) -> tuple[str, str | None]:
    """The schedule of a run that `run_names` named, and its engine if the name has one."""
    engine, _, schedule = name.rpartition(" ")
    return schedule, engine or None


def _varied(names: Iterable[str]) -> str:
    """What differs between runs of these names."""
    engines = any(schedule_and_engine(name)[1] for name in names)
    return "the schedule or the engine" if engines else "the schedule"


@dataclass(frozen=True, slots=True)
class BitDifference:
    """Other bytes in the run `schedule` than in the run `against`. `place` is the first place that differs,
    with both values, `count` the number of bytes that do, and `lines` the lines of the kernel that write the
    first. `unsteady`: a second run under `against` left other bytes too, so the schedule need not be the
    cause."""

    tensor: str
    place: str
    count: int
    schedule: str
    against: str
    unsteady: bool
    lines: tuple[str, ...]

    def __str__(self) -> str:
        why = f"; a second run under {self.against} differs too" if self.unsteady else ""
        count = f"{self.count} byte{'' if self.count == 1 else 's'} differ{'s' if self.count == 1 else ''}"
        wrote = f"\nwritten at {', '.join(self.lines)}" if self.lines else ""
        return f"{self.tensor}: {self.place}; {count}{why}{wrote}"


@dataclass(frozen=True, slots=True)
class ScheduleFinding:
    """A finding that runs under some schedules have and runs under the others do not."""

    finding: Finding
    under: tuple[str, ...]
    not_under: tuple[str, ...]

    @property
    def is_fault(self) -> bool:
        """Whether it is an illegal act, and not a finding of the checker."""
        return self.finding.evidence is None and self.finding.severity is Severity.ERROR

    def __str__(self) -> str:
        return f"{self.finding}\nunder {', '.join(self.under)}; not under {', '.join(self.not_under)}"


@dataclass(frozen=True, slots=True)
class ExploredLaunch:
    """The launch `number` of its process in all runs of `schedules`, see `run_names`; the program had the
    result of the first. `refused` is why it was not run under all others."""

    number: int
    entry: str
    grid: Dim3
    origin: str | None
    schedules: tuple[str, ...]
    difference: BitDifference | None = None
    findings: tuple[ScheduleFinding, ...] = ()
    refused: str = ""

    @property
    def depends(self) -> bool:
        """Whether its bytes or faults depend on the schedule."""
        return self.difference is not None or any(
            one.is_fault and one.finding.accepted is None for one in self.findings
        )

    @property
    def failed(self) -> bool:
        """Whether it depends on the schedule, or the checker found an error under one of them."""
        return self.depends or any(one.finding.fails for one in self.findings)

    def accepting(self, findings: Sequence[Finding]) -> ExploredLaunch:
        """A copy with these findings in place of its own, one for one."""
        judged = zip(self.findings, findings, strict=True)
        return replace(self, findings=tuple(replace(one, finding=finding) for one, finding in judged))

    def as_json(self) -> dict[str, Any]:
        """The launch as JSON values."""
        return {
            **asdict(self),
            "depends": self.depends,
            "findings": [
                {"finding": one.finding.as_json(), "under": one.under, "not_under": one.not_under}
                for one in self.findings
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExploredLaunch:
        """Read what `as_json` wrote."""
        difference = data["difference"]
        x, y, z = data["grid"]
        return cls(
            data["number"],
            data["entry"],
            (x, y, z),
            data["origin"],
            tuple(data["schedules"]),
            difference and BitDifference(**{**difference, "lines": tuple(difference["lines"])}),
            tuple(
                ScheduleFinding(
                    Finding.from_json(one["finding"]), tuple(one["under"]), tuple(one["not_under"])
                )
                for one in data["findings"]
            ),
            data["refused"],
        )


def explored_text(
    explored: Sequence[ExploredLaunch], *, verbose: bool = False
) -> list[tuple[ExploredLaunch, str]]:
    """For each kernel and line of the program with a launch that failed, the first such launch and a text of
    it. `verbose` includes what somebody accepted."""
    found: dict[tuple[str, str | None], list[ExploredLaunch]] = {}
    for launch in explored:
        if launch.failed or (verbose and launch.findings):
            found.setdefault((launch.entry, launch.origin), []).append(launch)
    return [(launches[0], _text(launches, verbose=verbose)) for launches in found.values()]


def _text(launches: Sequence[ExploredLaunch], *, verbose: bool) -> str:
    first = launches[0]
    often = f", the first of {len(launches)} such launches" if len(launches) > 1 else ""
    what = f"depends on {_varied(first.schedules)}"
    if not first.depends:
        what = "has findings under some schedules only"
    said = [] if first.difference is None else [str(first.difference)]
    said += [str(one) for one in first.findings if verbose or one.finding.accepted is None]
    lines = (f"  {line}" for text in said for line in text.split("\n"))
    head = f"launch {first.number}, {first.entry}, launched at {first.origin}{often}, {what}"
    return "\n".join([head, *lines])


def explored_summary(explored: Sequence[ExploredLaunch], schedules: Iterable[str]) -> str:
    """One line: how many launches ran under which schedules, and how many depend on them. A run in another
    engine is a schedule of its own name, see `run_names`."""
    schedules = tuple(schedules)
    ran = [launch for launch in explored if not launch.refused]
    depend = sum(launch.depends for launch in ran)
    result = "equal bits"
    if depend:
        result = f"{depend} of them depend{'s' if depend == 1 else ''} on {_varied(schedules)}"
    left = len(explored) - len(ran)
    out = f"; {left} not under all of them" if left else ""
    return (
        f"explored {len(ran)} launch{'' if len(ran) == 1 else 'es'} under {', '.join(schedules)}:"
        f" {result if ran else 'nothing compared'}{out}"
    )
