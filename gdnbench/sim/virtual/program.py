# SPDX-License-Identifier: Apache-2.0
"""Runs a program with a virtual GPU in each of its Python processes, and sums up what they launched."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from gdnbench.sim.errors import InputError
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.finding_groups import GroupedFinding, group_findings
from gdnbench.sim.host.machines import machine_named
from gdnbench.sim.virtual.launch_log import Log, LoggedLaunch, read_log
from gdnbench.sim.virtual.process import Request

NOTE = "note"  # the kind of findings that say what is legal, which a person asks for by --verbose
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel: how many, the grids, warp instructions, seconds and its findings."""

    kernel: str
    launches: int
    grids: tuple[tuple[int, int, int], ...]
    instructions: int
    seconds: float
    errors: int
    review: int
    stopped: int


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What a program did: its exit status (128 + N if signal N ended it) and the log of its launches."""

    status: int
    log: Log

    @property
    def failed(self) -> bool:
        """Whether a launch did something illegal or depends on the schedule, or the checker found an
        error."""
        return self.log.failed


@dataclass(frozen=True, slots=True)
class ProgramLog:
    """The log of one program. Python processes with `environment` have the GPU and write the log."""

    environment: Mapping[str, str]
    folder: Path

    def read(self) -> Log:
        """What the program did on the GPU until now."""
        return read_log(self.folder)


@contextmanager
def program_log(request: Request) -> Iterator[ProgramLog]:
    """A log for the processes of one program, which is deleted when the block ends. Raises LaunchError for an
    unknown machine."""
    machine_named(request.machine, request.sms)
    with tempfile.TemporaryDirectory(prefix="gdnbench-sim-") as folder:
        yield ProgramLog(replace(request, log=folder).environment(), Path(folder))


def run_program(command: Sequence[str], request: Request, output: BinaryIO | None = None) -> ProgramRun:
    """Run `command` with a virtual GPU. Its standard streams are the caller's; `output` takes the place of
    stdout and stderr.

    Raises InputError for a command that cannot be started, LaunchError for an unknown machine.
    """
    with program_log(request) as log:
        environment = {**os.environ, **log.environment}
        with _forwarding() as forward_to:
            try:
                child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            except OSError as error:
                raise InputError(f"{command[0]!r} cannot be run: {error.strerror}") from None
            forward_to(child)
            status = child.wait()
        return ProgramRun(status if status >= 0 else 128 - status, log.read())


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass signals on to the child and outlive them, to sum up. Yields a function to call with the child;
    earlier signals are passed on then."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if not children:
            early.append(number)
        elif number != signal.SIGINT or not _terminal_interrupts_us():
            children[0].send_signal(number)

    def forward_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    try:
        before: dict[int, Any] = {
            number: signal.signal(number, forward)
            for number in FORWARDED
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup, which the child inherits
        }
    except ValueError:  # not in the main thread, where no signal arrives
        before = {}
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal_interrupts_us() -> bool:
    """Whether a Ctrl-C in the terminal reaches this process, and so its child."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def kernel_rows(launches: Sequence[LoggedLaunch]) -> list[KernelRow]:
    """One row for each kernel, in the order of their first launches."""
    by_kernel: dict[str, list[LoggedLaunch]] = {}
    for launch in launches:
        by_kernel.setdefault(launch.entry, []).append(launch)
    rows = []
    for kernel, found in by_kernel.items():
        findings = [finding for launch in found for finding in launch.findings]
        rows.append(
            KernelRow(
                kernel,
                len(found),
                tuple(dict.fromkeys(launch.grid for launch in found)),
                sum(launch.instructions for launch in found),
                sum(launch.seconds for launch in found),
                sum(finding.fails for finding in findings),
                sum(finding.severity is Severity.REVIEW for finding in findings),
                sum(not launch.finished for launch in found),
            )
        )
    return rows


def findings_text(launches: Sequence[LoggedLaunch], *, verbose: bool = False) -> list[str]:
    """The findings of each kernel by cause and source lines, with the program's line of the first launch that
    has them. `verbose`: each finding, also notes and what somebody accepted."""
    by_kernel: dict[str, list[tuple[LoggedLaunch, Finding]]] = {}
    for launch in launches:
        for finding in launch.findings:
            if verbose or (finding.accepted is None and finding.kind != NOTE):
                numbered = replace(finding, launch=launch.number)
                by_kernel.setdefault(launch.entry, []).append((launch, numbered))
    lines = []
    for entry, found in by_kernel.items():
        origins = {id(finding): launch.origin for launch, finding in found}
        findings = [finding for _, finding in found]
        for group in [GroupedFinding((one,)) for one in findings] if verbose else group_findings(findings):
            first = group.findings[0]
            text = str(first) if verbose else str(group)
            lines.append(f"{entry}, launched at {origins[id(first)]}\n{_indented(text)}")
    return lines


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
