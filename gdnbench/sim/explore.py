# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel under many schedules, on several inputs and on GPUs of several numbers of SMs. Reports
whether its output bits depend on when asynchronous effects land or on the number of SMs, and what the race
checker finds in any run.

This module does not know how a kernel is called: a `Shape` runs it under a schedule and returns a `Run`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.finding import Finding

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
class SmsDifference:
    """The first tensor, by name, whose bits on a GPU of `sms` multiprocessors differ from those on one of
    `against`: the first element that does, the values of both, and how many of how many elements do."""

    tensor: str
    sms: int
    against: int
    index: tuple[int, ...]
    value: float
    value_against: float
    elements: int
    size: int
    command: str
    command_against: str

    def __str__(self) -> str:
        place = f"{self.tensor}[{', '.join(map(str, self.index))}]"
        return (
            f"{self.tensor} depends on the number of SMs: {place} is {self.value!r} with --sms {self.sms} and"
            f" {self.value_against!r} with --sms {self.against}; {self.elements} of {self.size} elements"
            " differ"
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """A run that failed by itself, the first with this `reason`."""

    reason: str
    schedule: str
    command: str


@dataclass(slots=True)
class Tried:
    """The result of all runs of one shape, on a GPU of `sms` multiprocessors if that is varied. `compared`
    counts the runs that produced outputs; those of the first are `outputs`, for `across_sms`, and `command`
    repeats it. `refused` is why the shape was not run."""

    shape: str
    schedules: list[str] = field(default_factory=list)
    difference: Difference | None = None
    failed: list[Failed] = field(default_factory=list)
    compared: int = 0
    refused: str = ""
    sms: int | None = None
    sms_difference: SmsDifference | None = None
    outputs: Mapping[str, Tensor] | None = None
    command: str = ""

    @property
    def ok(self) -> bool:
        return self.difference is None and self.sms_difference is None and not self.failed

    @property
    def name(self) -> str:
        """The shape, and the number of SMs if that is varied."""
        return self.shape if self.sms is None else f"{self.shape}, --sms {self.sms}"


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
        return tried.ok and not any(one.finding.fails and tried.name in one.shapes for one in self.found)

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
    shapes: Sequence[Shape],
    schedules: Sequence[str],
    progress: Progress | None = None,
    *,
    keep: bool = False,
) -> Exploration:
    """Run every shape under every schedule. If a shape refuses the first schedule, its others are skipped.

    KeyboardInterrupt stops the exploration; the results so far are returned. With `keep` the results have the
    outputs of each shape's first run.
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
            if not keep:
                tried.outputs = None
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
            tried.outputs, tried.command = bits, shape.command(schedule)
        elif run.tensors is not None and against is not None and tried.difference is None:
            name = first_difference(bits, run.tensors)
            tried.difference = _difference(shape, name, schedule, against, bits) if name else None
        yield run, schedule


def across_sms(explored: Mapping[int, Exploration]) -> Exploration:
    """One exploration of those that were made with `keep` on GPUs of these numbers of SMs, of the same shapes
    under the same schedules. The outputs of each shape must have the same bits on all."""
    first = next(iter(explored.values()))
    result = Exploration(first.schedules, interrupted=any(one.interrupted for one in explored.values()))
    tried = [replace(one, sms=sms) for sms, exploration in explored.items() for one in exploration.tried]
    for shape in dict.fromkeys(one.shape for one in tried):
        same = [one for one in tried if one.shape == shape]
        against = next((one for one in same if one.outputs is not None), None)
        for one in same:
            if against is not None and one is not against and one.outputs is not None:
                one.sms_difference = _sms_difference(one, against)
        result.tried += same
    for one in result.tried:
        one.outputs = None
    merged: dict[tuple[object, ...], Found] = {}
    for sms, exploration in explored.items():
        for found in exploration.found:
            shapes = [f"{shape}, --sms {sms}" for shape in found.shapes]
            known = merged.setdefault(finding_cause(found.finding), replace(found, shapes=[], runs=0))
            known.shapes += shapes
            known.runs += found.runs
    result.found = list(merged.values())
    return result


def _sms_difference(one: Tried, against: Tried) -> SmsDifference | None:
    assert one.outputs is not None
    assert one.sms is not None
    assert against.outputs is not None
    assert against.sms is not None
    name = first_difference(one.outputs, against.outputs)
    if not name:
        return None
    place, values, elements, size = _first_element(one.outputs.get(name), against.outputs.get(name))
    commands = one.command, against.command
    return SmsDifference(name, one.sms, against.sms, place, *values, elements, size, *commands)


def _first_element(
    one: Tensor | None, other: Tensor | None
) -> tuple[tuple[int, ...], tuple[float, float], int, int]:
    """Where two tensors differ first, both values, and how many of how many elements differ. NaN stands for a
    tensor that is not there, or has another shape or dtype."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        present = one if one is not None else other
        size = 0 if present is None else present.numel()
        return (), (nan, nan), size, size
    width = one.element_size()
    different = (_bytes(one) != _bytes(other)).reshape(-1, width).any(1)
    flat = int(different.nonzero()[0])
    place = tuple(int(number) for number in torch.unravel_index(torch.tensor(flat), one.shape))
    values = (float(one.reshape(-1)[flat].double()), float(other.reshape(-1)[flat].double()))
    return place, values, int(different.sum()), one.numel()


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
    difference, by_sms = tried.difference, tried.sms_difference
    return {
        "shape": tried.shape,
        "sms": tried.sms,
        "sms_difference": None
        if by_sms is None
        else {
            "tensor": by_sms.tensor,
            "sms": by_sms.sms,
            "against": by_sms.against,
            "index": list(by_sms.index),
            "value": by_sms.value,
            "value_against": by_sms.value_against,
            "elements": by_sms.elements,
            "size": by_sms.size,
            "command": by_sms.command,
            "command_against": by_sms.command_against,
        },
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
