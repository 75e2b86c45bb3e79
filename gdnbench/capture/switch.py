"""Whether calls are recorded at this time: switched by a control file or a signal while the program runs.

The calls themselves only read an attribute. A thread of ours looks at the file; a signal's handler sets what
it has to and takes no lock, for it may have interrupted whoever holds one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
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


class Remote:
    """What switches a `Switch` from outside, in this process: it begins anew in a forked child."""

    def __init__(self, switch: Switch, options: CaptureOptions, report: Report) -> None:
        self.switch = switch
        self._file = None if options.control is None else Path(options.control)
        self._signal = None if options.signal is None else signal_number(options.signal)
        self._report = report
        self._seen: tuple[int, ...] | None = None
        self._ended = threading.Event()
        self._earlier: Any = None  # what the program does at the signal
        self._told: int | None = None  # process that has said that it may be sent the signal
        self.started = self._file is None and self._signal is None
        self._look()
        self.arm()

    def start(self) -> None:
        """At the first call in a process: by now the program has put up its own handlers."""
        self.started = True
        self.arm()
        if self._file is not None:
            threading.Thread(target=self._watch, name="gdnbench-control", daemon=True).start()

    def arm(self) -> None:
        """Put our handler before the program's. Python runs handlers on the main thread, which alone may set
        them."""
        if self._signal is None or threading.current_thread() is not threading.main_thread():
            return
        there = signal.getsignal(self._signal)
        if there != self._handle:
            self._earlier = there
            signal.signal(self._signal, self._handle)
        self._tell()

    def _tell(self) -> None:
        """Whom a launcher may send the signal: it ends a process that has no handler."""
        if self._told != os.getpid():
            self._told = os.getpid()
            self._report.note("switchable", start=start_of(self._told))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.switch.toggle()
        if callable(self._earlier):
            self._earlier(number, frame)

    def after_fork(self) -> None:
        if self._file is not None or self._signal is not None:
            self.started = False
        if self._signal is not None and signal.getsignal(self._signal) == self._handle:
            self._tell()

    def close(self) -> None:
        """The program's handler is back, if nobody has put another before ours."""
        self._ended.set()
        if self._signal is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(self._signal) == self._handle:
            # By then the signal may be on its way: where nothing was to handle it, it would end the process.
            signal.signal(self._signal, self._earlier if callable(self._earlier) else signal.SIG_IGN)

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        """Read the file if it is another than at the last look."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            found = self._file.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen != self._seen:
                with self._file.open("rb") as opened:
                    text = opened.read(_LONGEST).decode(errors="replace")
                self._seen = seen
                if text.strip() and not self.switch.obey(text):
                    self._report.note("problem", text=f"{self._file} says {text!r}; on, off, once, next N do")


def signal_number(name: str) -> int:
    """Of `USR2` or `SIGUSR2`. KeyError if there is no such signal."""
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])


def start_of(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None if that cannot be told. A pid may be given
    to another process, a pid and this are not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def send(number: int, notes: list[dict[str, Any]], kill: Callable[[int, int], None] = os.kill) -> int:
    """Send a signal to all processes that said they handle it and live on; how many got it."""
    sent = 0
    for pid, start in {(note["pid"], note.get("start")) for note in notes if note["event"] == "switchable"}:
        if start is not None and start_of(pid) == start:
            with contextlib.suppress(OSError):
                kill(pid, number)
                sent += 1
    return sent
