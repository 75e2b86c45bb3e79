"""Runs a kernel under many schedules and on several inputs. Reports whether its output bits depend on when
asynchronous effects land, and what the race checker finds in any run.

This module does not know how a kernel is called: a `Shape` runs it under a schedule and returns a `Run`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.report import Finding

ENDS = ("late", "early")
"""The schedules of the first two runs: effects land as late as allowed, then at once."""
_SEEDS = 1 << 32


def fresh_seed() -> int:
    """A random seed, small enough to be typed."""
    return secrets.randbelow(_SEEDS)


def schedules(count: int) -> tuple[str, ...]:
    """`count` schedules: late, early, then random ones of fresh seeds."""
    return (*ENDS, *(f"random:{fresh_seed()}" for _ in range(count - len(ENDS))))[:count]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run. `tensors` are the outputs by name, None if the run stopped early. `failed` is
    one line on what is wrong besides `findings`; `refused` is why the kernel could not run."""

    tensors: Mapping[str, Tensor] | None = None
    findings: tuple[Finding, ...] = ()
    failed: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """One input. `run` runs the kernel on it under a schedule. `command` is the command line that repeats
    such a run."""

    name: str
    run: Callable[[str], Run]
    command: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first tensor, by name, whose bits under `schedule` differ from those under `against`. `unsteady`: a
    second run under `against` differs too, so the schedule need not be the cause."""

    tensor: str
    schedule: str
    against: str
    unsteady: bool
    command: str

    def __str__(self) -> str:
        if self.unsteady:
            return (
                f"{self.tensor} has other bits each time, under {self.against} too: are its inputs the same?"
            )
        return f"{self.tensor} has other bits under {self.schedule} than under {self.against}"


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that failed by itself, the first with this `reason`."""

    reason: str
    schedule: str
    command: str


@dataclass(slots=True)
class Tried:
    """The result of all runs of one shape. `compared` counts the runs that produced outputs. `refused` is why
    the shape was not run."""

    shape: str
    schedules: list[str] = field(default_factory=list)
    difference: Difference | None = None
    failed: list[Failed] = field(default_factory=list)
    compared: int = 0
    refused: str = ""

    @property
    def ok(self) -> bool:
        return self.difference is None and not self.failed


@dataclass(slots=True)
class Found:
    """A finding of one or more runs, with the first run that has it and the command that repeats that run.
    `shapes` are all shapes whose runs have it."""

    finding: Finding
    schedule: str
    command: str
    shapes: list[str]
    runs: int = 1


@dataclass(slots=True)
class Exploration:
    """All results. `schedules` are those planned for each shape; `interrupted` is True if some did not
    run."""

    schedules: tuple[str, ...]
    tried: list[Tried] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether all bits are equal, no run failed, and every error of the checker was accepted."""
        return all(one.ok for one in self.tried) and not any(one.finding.fails for one in self.found)

    def passed(self, tried: Tried) -> bool:
        """Whether one shape fulfils `ok` by itself."""
        return tried.ok and not any(one.finding.fails and tried.shape in one.shapes for one in self.found)

    @property
    def runs(self) -> int:
        return sum(len(one.schedules) for one in self.tried)

    def accepting(self, accept: Callable[[Iterable[Finding]], tuple[Finding, ...]]) -> Exploration:
        """A copy whose findings `accept` has judged."""
        found = accept(one.finding for one in self.found)
        judged = [replace(one, finding=finding) for one, finding in zip(self.found, found, strict=True)]
        return replace(self, found=judged)

    def as_json(self) -> dict[str, Any]:
        """The exploration as JSON values."""
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "schedules": list(self.schedules),
            "runs": self.runs,
            "shapes": [{**_plain_tried(one), "ok": self.passed(one)} for one in self.tried],
            "findings": [
                {
                    **one.finding.as_json(),
                    "runs": one.runs,
                    "shapes": one.shapes,
                    "first": {"shape": one.shapes[0], "schedule": one.schedule, "command": one.command},
                }
                for one in self.found
            ],
        }


Progress = Callable[[int, int], None]
"""Called after each run with (runs done, runs in all)."""


def explore(
    shapes: Sequence[Shape], schedules: Sequence[str], progress: Progress | None = None
) -> Exploration:
    """Run every shape under every schedule. If a shape refuses the first schedule, its others are skipped.

    KeyboardInterrupt stops the exploration; the results so far are returned.
    """
    result = Exploration(tuple(schedules))
    found: dict[tuple[object, ...], Found] = {}
    done, total = 0, len(shapes) * len(schedules)
    try:
        for number, shape in enumerate(shapes, 1):
            tried = Tried(shape.name)
            result.tried.append(tried)
            for run, schedule in _runs(shape, schedules, tried):
                _merge(found, run.findings, shape, schedule)
                done += 1
                if progress is not None:
                    progress(done, total)
            done = number * len(schedules)
    except KeyboardInterrupt:
        result.interrupted = True
    result.found = list(found.values())
    return result


def _runs(shape: Shape, schedules: Sequence[str], tried: Tried) -> Iterator[tuple[Run, str]]:
    """Yield the runs of `shape` and record their results in `tried`."""
    against: str | None = None
    bits: Mapping[str, Tensor] = {}
    for schedule in schedules:
        run = shape.run(schedule)
        if run.refused and not tried.schedules:
            tried.refused = run.refused
            return
        tried.schedules.append(schedule)
        failed = run.failed or run.refused
        if failed and failed not in (one.reason for one in tried.failed):
            tried.failed.append(Failed(failed, schedule, shape.command(schedule)))
        tried.compared += run.tensors is not None
        if run.tensors is not None and against is None:
            against, bits = schedule, run.tensors
        elif run.tensors is not None and against is not None and tried.difference is None:
            name = first_difference(bits, run.tensors)
            tried.difference = _difference(shape, name, schedule, against, bits) if name else None
        yield run, schedule


def _difference(
    shape: Shape, tensor: str, schedule: str, against: str, bits: Mapping[str, Tensor]
) -> Difference:
    again = shape.run(against).tensors
    unsteady = again is None or bool(first_difference(bits, again))
    return Difference(tensor, schedule, against, unsteady, shape.command(schedule))


def first_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """The first tensor, by name, whose bits differ between two runs; "" if none does."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or not _same(one[name], other[name]):
            return name
    return ""


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in shape, dtype and every bit."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _merge(
    found: dict[tuple[object, ...], Found], findings: Iterable[Finding], shape: Shape, schedule: str
) -> None:
    """Add the findings of one run. Findings at the same places count as one, whatever the shape."""
    first: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        first.setdefault(finding_cause(finding), finding)
    for key, finding in first.items():
        if key not in found:
            found[key] = Found(finding, schedule, shape.command(schedule), [shape.name])
            continue
        found[key].runs += 1
        if shape.name not in found[key].shapes:
            found[key].shapes.append(shape.name)


def finding_cause(finding: Finding) -> tuple[object, ...]:
    """The part of a finding that is equal in every run: a fault's message contains addresses, which vary."""
    if finding.evidence is None and finding.ptx_line is not None:
        return finding.severity, finding.kind, finding.file, finding.line or finding.ptx_line, finding.ptx
    return finding.severity, finding.kind, finding.summary


def _plain_tried(tried: Tried) -> dict[str, Any]:
    difference = tried.difference
    return {
        "shape": tried.shape,
        "schedules": tried.schedules,
        "refused": tried.refused or None,
        "difference": None
        if difference is None
        else {
            "tensor": difference.tensor,
            "schedule": difference.schedule,
            "against": difference.against,
            "unsteady": difference.unsteady,
            "command": difference.command,
        },
        "failed": [
            {"reason": one.reason, "schedule": one.schedule, "command": one.command} for one in tried.failed
        ],
    }
