# SPDX-License-Identifier: Apache-2.0
"""Runs a launch of a program under several schedules and in several engines, each from the same memory, and
compares what the runs left.

The program goes on with the result of the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from io import StringIO

from gdnbench.sim.checker.write_search import WriteSearch
from gdnbench.sim.errors import CannotSimulateError, KernelFault, Place
from gdnbench.sim.explore import finding_cause
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.host.arguments import Region
from gdnbench.sim.run import RunResult
from gdnbench.sim.simulate import PendingLaunch, Settings, findings_of
from gdnbench.sim.virtual.element_location import located
from gdnbench.sim.virtual.explored import (
    BitDifference,
    ExploredLaunch,
    ScheduleFinding,
    run_names,
    schedule_and_engine,
)
from gdnbench.sim.virtual.memory_snapshot import Difference, MemorySnapshot, Pages

MOST_BYTES = 4 << 30
"""The most live memory that a launch may have to be explored: a snapshot takes as much again."""

MOST_LINES = 4
"""How many lines that write a byte are named."""


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Where a launch comes from: its number in its process, and the program's line."""

    number: int
    origin: str | None


@dataclass(slots=True)
class LaunchExplorer:
    """Runs launches under `schedules`, the first of which counts, in the settings' engine and then in each of
    `engines`, and tells `on_explored` of each launch. `run_names` names the runs."""

    schedules: Sequence[str]
    on_explored: Callable[[ExploredLaunch], None]
    most_bytes: int = MOST_BYTES
    engines: Sequence[str] = ()

    def run(
        self, launch: PendingLaunch, settings: Settings, place: LaunchPlace, named: Sequence[Region] = ()
    ) -> RunResult:
        """The result of the first run. `named` are tensors among the arguments. Raises the fault of that run,
        or what refuses it."""
        by_run: dict[str, Settings] = {}
        for name in run_names(self.schedules, settings.engine, self.engines):
            schedule, engine = schedule_and_engine(name)
            by_run[name] = replace(settings, schedule=schedule, engine=engine or settings.engine)
        first, *others = by_run
        explored = ExploredLaunch(
            place.number, launch.request.entry, launch.request.grid, place.origin, tuple(by_run)
        )
        size = MemorySnapshot.size(launch.memory)
        if size > self.most_bytes:
            refused = (
                f"{size:,} bytes of live memory: at most {self.most_bytes:,} are copied, to be put back"
                " between runs"
            )
            self.on_explored(replace(explored, refused=refused))
            return launch.run(by_run[first])
        before = MemorySnapshot(launch.memory)
        ended = _run(launch, by_run[first])
        pages = before.changed()
        runs = _Runs(launch, by_run, before, pages, [*named, *launch.regions])
        runs.add(first, ended)
        try:
            for name in others:
                runs.add_another(name)
        except CannotSimulateError as error:  # of a path that the first run did not take
            runs.refused = str(error)
        finally:
            before.restore_with(pages)
        self.on_explored(
            replace(explored, difference=runs.difference, findings=runs.findings(), refused=runs.refused)
        )
        if isinstance(ended, KernelFault):
            raise ended
        return ended


Ended = RunResult | KernelFault


def _run(launch: PendingLaunch, settings: Settings) -> Ended:
    try:
        return launch.run(settings)
    except KernelFault as fault:
        return fault


def _run_again(launch: PendingLaunch, settings: Settings) -> Ended:
    """Run it without what its `printf` prints, which the first run printed."""
    with redirect_stderr(StringIO()):
        return _run(launch, settings)


class _Runs:
    """All runs of one launch: what each found, and the first difference from the first run."""

    def __init__(
        self,
        launch: PendingLaunch,
        by_run: Mapping[str, Settings],
        before: MemorySnapshot,
        pages: Pages,
        regions: Sequence[Region],
    ) -> None:
        # Further runs are observed by nobody.
        self._settings = {
            name: replace(settings, watch=None, profile=False, before=None)
            for name, settings in by_run.items()
        }
        self._launch, self._before, self._pages, self._regions = launch, before, pages, regions
        self._found: dict[tuple[object, ...], Finding] = {}
        self._under: dict[tuple[object, ...], list[str]] = {}
        self._names: list[str] = []
        self._whole = False  # whether the first run came to its end
        self.difference: BitDifference | None = None
        self.refused = ""

    def add(self, name: str, ended: Ended) -> None:
        """Note what a run found."""
        if not self._names:
            self._whole = isinstance(ended, RunResult)
        self._names.append(name)
        for finding in findings_of(ended, 0):
            if finding.severity is Severity.NOTE:
                continue
            key = finding_cause(finding)
            self._found.setdefault(key, finding)
            under = self._under.setdefault(key, [])
            if name not in under:
                under.append(name)

    def add_another(self, name: str) -> None:
        """Run the launch from the same memory as `name` says and compare."""
        self._before.restore()
        ended = _run_again(self._launch, self._settings[name])
        self.add(name, ended)
        if self.difference is not None or not self._whole or not isinstance(ended, RunResult):
            return
        found = self._before.difference(self._pages)
        if found is not None:
            self.difference = self._explain(found, name)

    def _explain(self, found: Difference, name: str) -> BitDifference:
        against = self._names[0]
        self._before.restore()
        again = _run_again(self._launch, self._settings[against])
        unsteady = not isinstance(again, RunResult) or self._before.difference(self._pages) is not None
        places = self._writes(found.address, name) or self._writes(found.address, against)
        tensor, place = located(found, self._regions, against, name)
        lines = tuple(dict.fromkeys(map(_line, places)))
        more = (f"{len(lines) - MOST_LINES} more lines",) if len(lines) > MOST_LINES else ()
        return BitDifference(
            tensor, place, found.count, name, against, unsteady, (*lines[:MOST_LINES], *more)
        )

    def _writes(self, address: int, name: str) -> tuple[Place, ...]:
        """The instructions that write the byte at `address` in the run `name`."""
        search = WriteSearch(self._launch.module.kernels[self._launch.request.entry], address)
        self._before.restore()
        settings = replace(self._settings[name], check=False, threads=1)
        with suppress(KernelFault, CannotSimulateError), redirect_stderr(StringIO()):
            self._launch.run(settings, search.begin)
        return search.places

    def findings(self) -> tuple[ScheduleFinding, ...]:
        """Those that some runs have and others do not."""
        return tuple(
            ScheduleFinding(
                self._found[key],
                tuple(under),
                tuple(name for name in self._names if name not in under),
            )
            for key, under in self._under.items()
            if len(under) < len(self._names)
        )


def _line(place: Place) -> str:
    """A line of the kernel: of its source if that is known, and of its PTX."""
    ptx = f"PTX line {place.line}"
    return ptx if place.file is None else f"{place.file}:{place.file_line} ({ptx})"
