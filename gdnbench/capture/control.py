"""Whether calls are recorded at this time: switched by a control file or a signal while the program runs.

The calls themselves only read an attribute. A thread of ours looks at the file; a signal's handler sets what
it has to and takes no lock, for it may have interrupted whoever holds one.
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
_LONGEST = 64  # bytes of a control file


class Switch:
    """On, off, or on for the next N calls of each layer that the selection keeps."""

    def __init__(self, paused: bool = False) -> None:
        self.off = paused
        self._limit: tuple[object, int] | None = None  # a period of its own, and what is left of each layer

    def on(self) -> None:
        self._limit = None
        self.off = False

    def pause(self) -> None:
        self.off = True

    def next(self, calls: int) -> None:
        self._limit = (object(), calls)
        self.off = False

    def toggle(self) -> None:
        if self.off:
            self.on()
        else:
            self.pause()

    def obey(self, text: str) -> bool:
        """Do what a control file says: on, off, once, next N. False: that is none of these."""
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
        """Whether this call of `layer` is recorded; counts it if so. One thread at a time."""
        limit = self._limit
        if self.off or limit is None:
            return not self.off
        period, calls = limit
        if layer.period is not period:
            layer.period, layer.of_period = period, 0
        layer.of_period += 1
        return layer.of_period <= calls

    def spent(self, layer: Layer) -> bool:
        """Whether it is on for so many calls of each layer, and `layer` has had them."""
        limit = self._limit
        return limit is not None and layer.period is limit[0] and layer.of_period >= limit[1]


class _Handler:
    """What we put before a program's handler. One that calls ours in its turn would have us toggle twice, and
    call it again for ever: of ours, which then are several, the outermost alone toggles."""

    def __init__(self, switch: Switch, earlier: Any) -> None:
        self._switch = switch
        self.earlier = earlier  # what the program does at the signal
        self.toggles = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.toggles:
            self._switch.toggle()
        if callable(self.earlier):
            self.earlier(number, frame)


class Remote:
    """What switches a `Switch` from outside, in this process: it begins anew in a forked child."""

    def __init__(self, switch: Switch, options: CaptureOptions, report: Report) -> None:
        self.switch = switch
        # The program may go to another folder.
        self._file = None if options.control is None else Path(options.control).absolute()
        self._signal = None if options.signal is None else signal_number(options.signal)
        self._report = report
        self._seen: tuple[int, ...] | None = None
        self._trouble: str | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._handler: _Handler | None = None
        self._told: int | None = None  # process that has said that it may be sent the signal
        self.started = self._file is None and self._signal is None
        self._look()
        self.arm()

    def start(self) -> None:
        """At the first call in a process: by now the program has put up its own handlers."""
        with self._lock:
            if self.started:
                return
            self.started = True
        self.arm()
        if self._signal is not None and not self._is_armed():
            # Of the commonest servers the main thread waits, and makes no call.
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
        """Put our handler before the program's. Python runs handlers on the main thread, which alone may set
        them."""
        if self._signal is None or threading.current_thread() is not threading.main_thread():
            return
        if not self._is_armed():
            if self._handler is not None:
                self._handler.toggles = False  # the program's may call it
            self._handler = _Handler(self.switch, signal.getsignal(self._signal))
            signal.signal(self._signal, self._handler)
        self._tell()

    def _is_armed(self) -> bool:
        return self._handler is not None and signal.getsignal(self._signal or 0) is self._handler

    def _tell(self) -> None:
        """Whom a launcher may send the signal: it ends a process that has no handler."""
        if self._told != os.getpid():
            self._told = os.getpid()
            self._report.note("switchable", start=start_of(self._told))

    def after_fork(self) -> None:
        # Whoever held these is not here.
        self._ended, self._lock = threading.Event(), threading.Lock()
        if self._file is not None or self._signal is not None:
            self.started = False
        if self._signal is not None and self._is_armed():
            self._tell()

    def close(self) -> None:
        """The program's handler is back, if nobody has put another before ours."""
        self._ended.set()
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return
        self._handler.toggles = False
        if self._is_armed():
            earlier = self._handler.earlier
            # By then the signal may be on its way: where nothing was to handle it, it would end the process.
            signal.signal(self._signal or 0, earlier if callable(earlier) else signal.SIG_IGN)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        """Obey the file if it is another than at the last look. One that is not there says nothing; what
        cannot be read is told once."""
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
        if text is not None and text.strip() and not self.switch.obey(text):
            self._problem(f"{self._file} says {text!r}; on, off, once, next N do")

    def _changed_text(self, path: Path) -> str | None:
        """What the file says; None if it is the one of the last look."""
        found = path.stat()
        if _identity(found) == self._seen:
            return None
        if not stat.S_ISREG(found.st_mode):
            # Of a pipe, whose other end nobody may ever open, the program would wait at its start.
            raise OSError(errno.EINVAL, "it is no file")
        # What is opened may be another, put there since: it is told apart by itself, lest it is obeyed twice.
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
    """Of `USR2` or `SIGUSR2`. KeyError if there is no such signal."""
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])


def start_of(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None if that cannot be told. A pid may be given
    to another process, a pid and this are not."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return found.rpartition(")")[2].split()[19]


def outlives(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal or ignores it. One that was ready for it is so no more if
    it runs another program now (`exec`), or has given the signal up."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def send(number: int, notes: list[dict[str, Any]], kill: Callable[[int, int], None] = os.kill) -> int:
    """Send a signal to all processes that said they handle it and still do; how many got it."""
    sent = 0
    for pid, start in {(note["pid"], note.get("start")) for note in notes if note["event"] == "switchable"}:
        if start is not None and start_of(pid) == start and outlives(pid, number):
            with contextlib.suppress(OSError):
                kill(pid, number)
                sent += 1
    return sent
