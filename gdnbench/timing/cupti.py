# SPDX-License-Identifier: Apache-2.0
"""Times launches on a GPU by CUPTI's activity records: when each kernel began and ended on the device.

A launch's seconds are from the begin of its first kernel to the end of its last one. What lies between
launches is not counted, which events cannot leave out, so times of the two methods are never compared with
each other.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdnbench.errors import CannotRunError
from gdnbench.timing.clocks import Clock, Recorded
from gdnbench_kernels.contract import Launch

PACKAGE = "cupti-python"
BUFFER_BYTES = 8 << 20
FORCED = 1
"""Of a flush: records of kernels that are done are handed over although their buffer is not full."""

cuda: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class Activity:
    """One kernel, copy or fill on the device; nanoseconds of CUPTI's clock."""

    name: str
    begin: int
    end: int


def installed() -> bool:
    return importlib.util.find_spec("cupti") is not None


class Tracer:
    """Everything that ran on the device, as CUPTI hands it over. There is one of a process."""

    def __init__(self) -> None:
        try:
            self._cupti: Any = importlib.import_module("cupti.cupti")
        except ImportError as error:
            raise CannotRunError(
                f"timing with CUPTI needs {PACKAGE} ({error}): pip install 'gdnbench[timing]', or time with"
                " events"
            ) from None
        self._found: list[Activity] = []
        kinds = self._cupti.ActivityKind
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        try:
            self._cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
            # Before any graph is made: what is traced of a graph is decided when it is.
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
        except self._cupti.cuptiError as error:
            raise CannotRunError(
                f"CUPTI cannot trace here ({error}): another profiler may be attached; time with events"
            ) from error

    def trace(self, recorded: Recorded) -> list[Activity]:
        """What ran on the device for one round, in order of its begin. CannotRunError if CUPTI recorded
        nothing."""
        cuda.synchronize()
        begin = self._cupti.get_timestamp()
        recorded.seconds()
        cuda.synchronize()
        end = self._cupti.get_timestamp()
        self._cupti.activity_flush_all(FORCED)
        found, self._found = self._found, []
        inside = [activity for activity in found if begin <= activity.begin and activity.end <= end]
        if not inside:
            raise CannotRunError(
                f"CUPTI recorded nothing of a round that ran ({len(found)} records from before it): its times"
                " would mean nothing; time with events"
            )
        return sorted(inside, key=lambda activity: activity.begin)

    def _completed(self, activities: Sequence[Any]) -> None:
        kernel = self._kinds[0]
        for activity in activities:
            if activity.kind in self._kinds:
                name = str(activity.name) if activity.kind == kernel else str(activity.kind)
                self._found.append(Activity(name, int(activity.start), int(activity.end)))


_tracer: Tracer | None = None


def tracer() -> Tracer:
    """The process's."""
    global _tracer
    if _tracer is None:
        _tracer = Tracer()
    return _tracer


class CuptiClock:
    """Rounds as another clock of the device runs them, timed by what CUPTI records."""

    least = 1e-6
    """Seconds: CUPTI's clock counts nanoseconds, and 1000 of them are a microsecond."""

    def __init__(self, runs: Clock) -> None:
        self._runs = runs
        self._tracer = tracer()

    @property
    def method(self) -> str:
        return f"{self._runs.method.partition(',')[0]}, CUPTI"

    @property
    def goal(self) -> float:
        return self._runs.goal

    def record(self, launches: Sequence[Launch]) -> CuptiRound:
        return CuptiRound(self._runs.record(launches), len(launches), self._tracer)

    def once(self, launch: Launch) -> float:
        return self._runs.once(launch)


class CuptiRound:
    def __init__(self, recorded: Recorded, launches: int, tracer: Tracer) -> None:
        self._recorded = recorded
        self._launches = launches
        self._tracer = tracer

    def seconds(self) -> float:
        """The sum of all launches' seconds."""
        return (
            sum(
                max(activity.end for activity in launch) - min(activity.begin for activity in launch)
                for launch in self._by_launch()
            )
            / 1e9
        )

    def by_kernel(self) -> dict[str, float]:
        """Seconds a launch by the kernel's name, in the order of a launch."""
        found: dict[str, float] = {}
        for launch in self._by_launch():
            for activity in launch:
                seconds = (activity.end - activity.begin) / 1e9 / self._launches
                found[activity.name] = found.get(activity.name, 0.0) + seconds
        return found

    def _by_launch(self) -> list[list[Activity]]:
        """What each launch ran. CannotRunError if launches cannot have run the same: records are missing."""
        activities = [one for one in self._tracer.trace(self._recorded) if not is_hold(one)]
        each, rest = divmod(len(activities), self._launches)
        if rest or not each:
            raise CannotRunError(
                f"CUPTI recorded {len(activities)} kernels of {self._launches} equal launches: some are"
                " missing; time with events"
            )
        return [activities[first : first + each] for first in range(0, len(activities), each)]


def is_hold(activity: Activity) -> bool:
    """Whether this is the kernel that holds the device back before a graph, which is no part of a round."""
    return "spin_kernel" in activity.name
