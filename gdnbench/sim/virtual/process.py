"""The virtual GPU of a process that `gdnbench sim -- PROGRAM` started, and the log of its launches.

The request travels in the environment as JSON, so that child processes have a GPU too. Each process appends
lines of JSON to a file of its own in the command's folder.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import InputError, SimError
from gdnbench.sim.finding import Finding
from gdnbench.sim.report import Report
from gdnbench.sim.virtual.explored import ExploredLaunch

VARIABLE = "GDNBENCH_VIRTUAL"
SUFFIX = ".jsonl"
FAILED_SUFFIX = ".failed"  # of a link whose target says why a process could not write its log


@dataclass(frozen=True, slots=True)
class Request:
    """Which GPU a process gets: the machine, its number of multiprocessors if that is not the machine's own,
    and the fields of `Settings` that differ from their defaults. `log` is the folder for the log, or None.

    `launches` chooses launches (see `LaunchChoice.parse`); None chooses all. `explore` has the schedules
    under which each chosen launch runs. `attach` has an argument by the name of a module outside the
    simulator: the process imports the module and calls its function `attach_to(gpu, argument)`.
    """

    machine: str
    sms: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    log: str | None = None
    launches: str | None = None
    explore: Sequence[str] = ()
    attach: Mapping[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The variable that makes a Python process follow this request."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Request:
        """Read what `environment` wrote. Raises InputError for anything else."""
        try:
            return cls(**json.loads(environment[VARIABLE]))
        except (TypeError, ValueError) as error:
            raise InputError(f"{VARIABLE} is no request of gdnbench sim: {error}") from None


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


def start_from_environment(environment: Mapping[str, str]) -> None:
    """Give this process the GPU that the environment requests, until the process ends."""
    from gdnbench.sim.simulate import Settings
    from gdnbench.sim.virtual.gpu import virtual_gpu
    from gdnbench.sim.virtual.launch_choice import LaunchChoice
    from gdnbench.sim.virtual.launch_explorer import LaunchExplorer

    request = Request.from_environment(environment)
    log = _Writer(request.log)
    try:
        stack = ExitStack()
        gpu = stack.enter_context(virtual_gpu(request.machine, request.sms, Settings(**request.settings)))
        gpu.on_report, gpu.on_refusal = log.report, log.refusal
        if request.launches is not None:
            gpu.choice = LaunchChoice.parse(request.launches)
        if request.explore:
            gpu.explorer = LaunchExplorer(tuple(request.explore), log.explored)
        for module, argument in request.attach.items():
            import_module(module).attach_to(gpu, argument)
    except Exception as error:
        log.write(problem=" ".join(str(error).split()) or type(error).__name__)
        raise
    log.write(gpu=request.machine)
    atexit.register(stack.close)


class _Writer:
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
