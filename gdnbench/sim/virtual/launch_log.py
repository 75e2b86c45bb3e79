# SPDX-License-Identifier: Apache-2.0
"""The log of what a program launches on its virtual GPU. Each process appends lines of JSON to a file of its
own in one folder, which the command reads.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import SimError
from gdnbench.sim.finding import Finding
from gdnbench.sim.report import Report
from gdnbench.sim.virtual.explored import ExploredLaunch

SUFFIX = ".jsonl"
FAILED_SUFFIX = ".failed"  # of a link whose target says why a process could not write its log


@dataclass(frozen=True, slots=True)
class LoggedLaunch:
    """A launch as the log has it: its `number` in its process, its `findings`, and as `text` its profile if
    there is one."""

    number: int
    entry: str
    grid: tuple[int, int, int]
    instructions: int
    seconds: float
    finished: bool
    origin: str | None
    findings: tuple[Finding, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Log:
    """What all processes of a program did on the virtual GPU. `gpus` is how many processes had one."""

    gpus: int
    launches: tuple[LoggedLaunch, ...]
    refusals: tuple[str, ...]
    problems: tuple[str, ...]
    explored: tuple[ExploredLaunch, ...] = ()
    incomplete: tuple[str, ...] = ()  # why launches are missing

    @property
    def failed(self) -> bool:
        """Whether a launch did something illegal or depends on the schedule, or the checker found an
        error."""
        return any(one.fails for one in self.findings) or any(one.failed for one in self.explored)

    @property
    def findings(self) -> list[Finding]:
        """Those of all launches, and of the further schedules that some ran under."""
        found = [finding for launch in self.launches for finding in launch.findings]
        return found + [some.finding for launch in self.explored for some in launch.findings]


class LogWriter:
    """Appends to the log. A forked process writes to a file of its own. Nothing is raised, as it would be in
    the middle of the program: on a full disk a line is cut off or missing."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def write(self, **line: Any) -> None:
        if self._folder is None or not os.path.isdir(self._folder):
            return
        path = os.path.join(self._folder, str(os.getpid()))
        data = json.dumps(line).encode() + b"\n"
        try:
            # One write, as threads share the file.
            with open(f"{path}{SUFFIX}", "ab", buffering=0) as file:
                if file.write(data) == len(data):
                    return
            reason = os.strerror(errno.ENOSPC)
        except OSError as error:
            reason = error.strerror or str(error)
        with contextlib.suppress(OSError):
            os.symlink(reason, f"{path}{FAILED_SUFFIX}")  # which takes less room than a file

    def report(self, report: Report, first: int) -> None:
        self.write(**_entry(report, first))

    def explored(self, launch: ExploredLaunch) -> None:
        self.write(explored=launch.as_json())

    def refusal(self, error: SimError) -> None:
        self.write(refusal=" ".join(str(error).split()))


def read_log(folder: Path) -> Log:
    """Read the files of all processes, in the order in which the processes began to write."""
    gpus = 0
    launches: list[LoggedLaunch] = []
    refusals: dict[str, None] = {}
    problems: dict[str, None] = {}
    explored: list[ExploredLaunch] = []
    incomplete = {path.stem: os.readlink(path) for path in folder.glob(f"*{FAILED_SUFFIX}")}
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns):
        for line in path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the disk was full, or the process was killed, in the middle of a line
                incomplete.setdefault(path.stem, "a line is cut off")
                continue
            if "report" in entry:
                launches += _launches(entry)
            elif "explored" in entry:
                explored.append(ExploredLaunch.from_json(entry["explored"]))
            elif "refusal" in entry:
                refusals[entry["refusal"]] = None
            elif "gpu" in entry:
                gpus += 1
            else:
                problems[entry["problem"]] = None
    missing = tuple(
        f"launches of process {process} are missing: its log in {folder.parent}: {reason}; make room there or"
        " set TMPDIR"
        for process, reason in incomplete.items()
    )
    return Log(gpus, tuple(launches), tuple(refusals), tuple(problems), tuple(explored), missing)


def launches_of(report: Report) -> list[LoggedLaunch]:
    """The launches of a report, as the log has them, numbered from 0."""
    return list(_launches(_entry(report, 0)))


def _entry(report: Report, first: int) -> dict[str, Any]:
    """A line of the log for a report, whose first launch has the number `first`."""
    profiled = any(launch.timeline is not None for launch in report.launches)
    return {"report": report.as_json(), "first": first, "text": report.text() if profiled else ""}


def _launches(entry: Mapping[str, Any]) -> Iterator[LoggedLaunch]:
    report = entry["report"]
    findings = [Finding.from_json(data) for data in report["findings"]]
    for number, launch in enumerate(report["launches"]):
        yield LoggedLaunch(
            entry["first"] + number,
            launch["entry"],
            tuple(launch["grid"]),
            launch["warp_instructions"],
            launch["seconds"],
            launch["finished"],
            report["origin"],
            tuple(finding for finding in findings if finding.launch == number),
            entry["text"] if number == 0 else "",
        )
