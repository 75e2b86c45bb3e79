# SPDX-License-Identifier: Apache-2.0
"""The progress line of a long command: how many of how many, the time, the phase and the record.

    replay: 3 of 12, 0:14, about 0:42 left: record 3, simulate 12 of 148 CTAs

It is one line of stderr, if that is a terminal, from SHOWN_AFTER seconds on; a thread draws it again, so that
the time goes on while a kernel runs. What is printed meanwhile first clears it, and so does the end of the
command, by Ctrl-C too. The cursor stays visible and no setting of the terminal changes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from gdnbench.phases import State, listening
from gdnbench.printable import printable
from gdnbench.tables import shortened

SHOWN_AFTER = 0.5
REDRAWN_EVERY = 0.25
CLEAR = "\r\x1b[K"
"""Clears the line of the cursor (ECMA-48, 8.3.41)."""


class Bar:
    """What the line says; called, it moves to (done, total)."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = ""
        self._state = State()
        self._done, self._total = 0, 0
        self._started = self._begun = self._moved = time.monotonic()

    def go_on(self, what: str) -> None:
        """The same line, for another work."""
        self._what, self._said, self._state, self._done, self._total = what, "", State(), 0, 0
        self._begun = self._moved = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if total != self._total or done < self._done:  # another work, begun when the one before was done
            self._begun = self._moved
        self._done, self._total, self._moved = done, total, now

    def say(self, text: str) -> None:
        """Something else that goes on, beside what the bar is of."""
        self._said = text

    def see(self, state: State) -> None:
        """A listener of `gdnbench.phases`."""
        self._state = state

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def text(self, seconds: float) -> str:
        """The line after that many seconds."""
        done, total = self._done, self._total
        parts = [f"{self._what}: {done} of {total}" if total else self._what, clock(seconds)]
        if 0 < done < total:
            spent = seconds - (self._begun - self._started)
            parts.append(f"about {clock(spent / done * (total - done))} left")
        now = ", ".join(filter(None, (self._said, str(self._state))))
        return ", ".join(parts) + (f": {printable(now)}" if now else "")


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Line:
    """Draws the text of `bar` on the terminal `stream` until `close`."""

    def __init__(self, bar: Bar, stream: TextIO) -> None:
        self.bar, self._stream = bar, stream
        self._drawn = False
        self._in_line = False  # whether what was printed last does not end a line
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="gdnbench progress", daemon=True)
        self._thread.start()

    def _redraw(self) -> None:
        import shutil  # which takes longer to import than most commands take to say what is wrong

        wait = SHOWN_AFTER
        while not self._ended.wait(wait):
            wait = REDRAWN_EVERY
            width = shutil.get_terminal_size().columns
            text = shortened(self.bar.text(self.bar.seconds), width - 1)
            with self._lock, contextlib.suppress(OSError, ValueError):
                if not self._ended.is_set() and not self._in_line:
                    self._stream.write(f"{CLEAR}{_encodable(text, self._stream)}\r")
                    self._stream.flush()
                    self._drawn = True

    def write(self, stream: TextIO, text: str) -> int:
        """`text` on `stream`, which is the same terminal, in place of the line."""
        if os.getpid() != self._owner:  # a fork: its copy of the lock may be held for ever
            return stream.write(text)
        with self._lock:
            self._clear()
            self._in_line = not text.endswith("\n")
            return stream.write(text)

    @property
    def is_open(self) -> bool:
        return not self._ended.is_set()

    def close(self) -> None:
        self._ended.set()
        if os.getpid() == self._owner:
            with self._lock:
                self._clear()

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(CLEAR)
                self._stream.flush()


def _encodable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, "replace").decode(encoding)


class _Beside(io.TextIOBase):
    """A stream that clears the line of progress ahead of what is written to it, and `ends` it if it is the
    command's result."""

    def __init__(self, stream: TextIO, line: _Line, *, ends: bool) -> None:
        self._beneath, self._line, self._ends = stream, line, ends

    def write(self, text: str) -> int:
        if not text:
            return 0
        if self._ends and self._line.is_open:
            self._line.close()
        return self._line.write(self._beneath, text)

    def flush(self) -> None:
        self._beneath.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)

    def fileno(self) -> int:
        return self._beneath.fileno()

    def isatty(self) -> bool:
        return self._beneath.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only here
        return self._beneath.encoding


_line: _Line | None = None
"""That of the command that runs."""


@contextmanager
def _shown(bar: Bar) -> Iterator[None]:
    """While `bar` is a line of stderr, which is a terminal. The first text on stdout ends it."""
    global _line
    before, _line = _line, _Line(bar, sys.stderr)
    try:
        with (
            listening(bar.see),
            contextlib.redirect_stderr(_Beside(sys.stderr, _line, ends=False)),
            contextlib.redirect_stdout(_Beside(sys.stdout, _line, ends=True)),
        ):
            yield
    finally:
        _line.close()
        _line = before


def _can_show() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A line of the time alone, for a command that has not said yet how much there is to do, such as one that
    imports torch. It ends with the first text on stdout; a `progress` inside takes it over."""
    if _line is not None or not _can_show():
        yield
        return
    with _shown(Bar(what)):
        yield


def hide() -> None:
    """Ends the line: another program has the terminal from now on. A later `progress` has a line again."""
    if _line is not None:
        _line.close()


@contextmanager
def progress(what: str, *, shown: bool = True) -> Iterator[Bar]:
    """A Bar, which is a line of stderr if that is a terminal and it is to be `shown`; nothing elsewhere."""
    line = _line
    if line is not None and line.is_open:
        line.bar.go_on(what)
        if not shown:
            line.close()
        try:
            yield line.bar
        finally:
            line.close()
        return
    bar = Bar(what)
    if not shown or not _can_show():
        yield bar
        return
    with _shown(bar):
        yield bar
