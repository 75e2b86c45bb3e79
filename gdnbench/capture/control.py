# SPDX-License-Identifier: Apache-2.0
"""Switches recording on and off while the program runs, by a control file or a signal.

Calls only read an attribute. A thread polls the file. The signal handler takes no lock, because it may have
interrupted a thread that holds one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.report import Report

if TYPE_CHECKING:
    from gdnbench.capture.layers import Layer

POLL_SECONDS = 0.05
_NEXT = re.compile(r"next\s+([1-9][0-9]{0,8})")
_LONGEST = 64  # bytes of a control file that are read


class Switch:
    """On, off, or on for the next N calls of each layer that the selection keeps."""

    def __init__(self, paused: bool = False) -> None:
        self.off = paused
        self.limit: tuple[object, int] | None = None
        """An identity for the period, and its calls per layer; None for any number of calls."""

    def on(self) -> None:
        self.limit = None
        self.off = False

    def pause(self) -> None:
        self.off = True

    def next(self, calls: int) -> None:
        self.limit = (object(), calls)
        self.off = False

    def toggle(self) -> None:
        if self.off:
            self.on()
        else:
            self.pause()

    def execute(self, text: str) -> bool:
        """Execute the text of a control file: on, off, once, next N. False for any other text."""
        word = " ".join(text.split())
        if word == "on":
            self.on()
        elif word == "off":
            self.pause()
        elif word == "once":
            self.next(1)
        elif (found := _NEXT.fullmatch(word)) is not None:
            self.next(int(found[1]))
        else:
            return False
        return True

    def takes(self, layer: Layer) -> bool:
        """Whether this call of `layer` is recorded; counts it if so. Not thread safe."""
        limit = self.limit
        if self.off or limit is None:
            return not self.off
        period, calls = limit
        if layer.period is not period:
            layer.period, layer.of_period = period, 0
        layer.of_period += 1
        return layer.of_period <= calls

    def spent(self, layer: Layer) -> bool:
        """Whether recording is on for N calls of each layer and `layer` has had them."""
        limit = self.limit
        return limit is not None and layer.period is limit[0] and layer.of_period >= limit[1]


class _Handler:
    """The signal handler that toggles the switch and then calls the program's handler.

    A program's handler may call ours, which would toggle twice and recurse for ever. So of several handlers
    of ours only the outermost toggles.
    """

    def __init__(self, switch: Switch, earlier: Any) -> None:
        self._switch = switch
        self.earlier = earlier  # the program's handler
        self.toggles = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.toggles:
            self._switch.toggle()
        if callable(self.earlier):
            self.earlier(number, frame)


class SwitchControl:
    """Controls a `Switch` from outside: watches the control file and handles the signal. Restarts in a forked
    child."""

    def __init__(self, switch: Switch, options: CaptureOptions, report: Report) -> None:
        self.switch = switch
        # Absolute, because the program may change its folder.
        self._file = None if options.control is None else Path(options.control).absolute()
        self._signal = None if options.signal is None else signal_number(options.signal)
        self._report = report
        self._seen: tuple[int, ...] | None = None
        self._trouble: str | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._handler: _Handler | None = None
        self._told: int | None = None  # pid that has reported that it handles the signal
        self.started = self._file is None and self._signal is None
        self._look()
        self.arm()

    def start(self) -> None:
        """Start at the first call in a process, by when the program has installed its own handlers."""
        with self._lock:
            if self.started:
                return
            self.started = True
        self.arm()
        if self._signal is not None and not self._is_armed():
            # In common servers the main thread waits and makes no call.
            self._problem(
                f"signal {signal.Signals(self._signal).name} does not switch process {os.getpid()}: its"
                " handler is another, and from the thread of the first captured call ours cannot be put up;"
                " use --control"
            )
        if self._file is not None:
            watch = threading.Thread(
                target=self._watch, args=(self._ended,), name="gdnbench-control", daemon=True
            )
            watch.start()

    def arm(self) -> None:
        """Install our handler before the program's. Python lets only the main thread install and run
        handlers."""
        if self._signal is None or threading.current_thread() is not threading.main_thread():
            return
        if not self._is_armed():
            if self._handler is not None:
                self._handler.toggles = False  # the program's handler may call it
            self._handler = _Handler(self.switch, signal.getsignal(self._signal))
            signal.signal(self._signal, self._handler)
        self._tell()

    def _is_armed(self) -> bool:
        return self._handler is not None and signal.getsignal(self._signal or 0) is self._handler

    def _tell(self) -> None:
        """Report that this process handles the signal, so that the launcher may send it; it ends other
        processes."""
        if self._told != os.getpid():
            self._told = os.getpid()
            self._report.note("switchable", start=process_start_ticks(self._told))

    def after_fork(self) -> None:
        # The threads that held these do not exist in the child.
        self._ended, self._lock = threading.Event(), threading.Lock()
        if self._file is not None or self._signal is not None:
            self.started = False
        if self._signal is not None and self._is_armed():
            self._tell()

    def close(self) -> None:
        """Stop watching, and restore the program's handler unless another was installed after ours."""
        self._ended.set()
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return
        self._handler.toggles = False
        if self._is_armed():
            earlier = self._handler.earlier
            # The signal may be on its way: with the default action it would end the process.
            signal.signal(self._signal or 0, earlier if callable(earlier) else signal.SIG_IGN)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        """Execute the control file if it changed since the last look.

        A missing file changes nothing. A file that cannot be read is reported once for each reason.
        """
        if self._file is None:
            return
        try:
            text = self._changed_text(self._file)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if reason != self._trouble:
                self._trouble = reason
                self._problem(f"{self._file} cannot be read: {reason}; --control takes a file")
            return
        self._trouble = None
        if text is not None and text.strip() and not self.switch.execute(text):
            self._problem(f"{self._file} says {text!r}; on, off, once, next N do")

    def _changed_text(self, path: Path) -> str | None:
        """The file's text; None if it is the same file as at the last look."""
        found = path.stat()
        if _identity(found) == self._seen:
            return None
        if not stat.S_ISREG(found.st_mode):
            # Opening a pipe whose other end nobody opens would block the program's start.
            raise OSError(errno.EINVAL, "it is no file")
        # The opened file may be newer than the one of stat(): identify it by fstat, so that it is not
        # executed twice.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            seen = _identity(os.fstat(opened))
            text = os.read(opened, _LONGEST).decode("utf-8-sig", errors="replace")
        finally:
            os.close(opened)
        self._seen = seen
        return text

    def _problem(self, text: str) -> None:
        self._report.note("problem", text=text)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def signal_number(name: str) -> int:
    """The number of `USR2` or `SIGUSR2`. KeyError if there is no such signal."""
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])


def process_start_ticks(pid: int) -> str | None:
    """The start time of a process in ticks since boot; None if unknown. Tells a process from a later one with
    the same pid."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return found.rpartition(")")[2].split()[19]


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process handles or ignores a signal now.

    A process that reported a handler loses it if it runs another program (`exec`) or resets it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def send_to_switchable(
    number: int, notes: list[dict[str, Any]], kill: Callable[[int, int], None] = os.kill
) -> int:
    """Send a signal to all processes that reported a handler and still have it; returns how many got it."""
    sent = 0
    for pid, start in {(note["pid"], note.get("start")) for note in notes if note["event"] == "switchable"}:
        if start is not None and process_start_ticks(pid) == start and handles_signal(pid, number):
            with contextlib.suppress(OSError):
                kill(pid, number)
                sent += 1
    return sent
