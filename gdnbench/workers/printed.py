# SPDX-License-Identifier: Apache-2.0
"""What worker processes print: passed on to stderr at once, and its beginning and end kept."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading

from gdnbench.printable import without_escapes

KEPT_BYTES = 4096
"""Of the beginning, and again of the end, of what is printed between two calls of `take`. A traceback of
40 frames has some 4 kB."""

_OVERWRITTEN = re.compile(r"[^\n\r]*\r+(?!\n)")


class PrintedOutput:
    """A pipe for the stdout and stderr of processes, and a thread that reads it.

    `fileno` is its end for the processes. A process that ends does not close it: others may follow.
    """

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        self._closed, self._close = os.pipe()
        os.set_blocking(self._reads, False)
        self._lock = threading.Lock()
        self._head, self._tail, self._bytes = b"", b"", 0
        self._thread = threading.Thread(target=self._pump, name="gdnbench-printed", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._writes

    def take(self) -> str:
        """What processes have printed since the last call, as text of at most `2 * KEPT_BYTES` characters and
        a line that says what is missing between them; without escape sequences of a terminal, and of a line
        that was overwritten, as a progress bar's is, the last state."""
        with self._lock:
            self._read()
            head, tail, printed = self._head, self._tail, self._bytes
            self._head, self._tail, self._bytes = b"", b"", 0
        missing = printed - len(head) - len(tail)
        if not missing:
            return _plain(head + tail)
        return f"{_plain(head)}\n... {missing} bytes are left out ...\n{_plain(tail)}"

    def close(self) -> None:
        """Passes on what is left. Processes that still print get SIGPIPE."""
        os.close(self._close)
        self._thread.join()
        for end in (self._closed, self._writes, self._reads):
            os.close(end)

    def _pump(self) -> None:
        closed = False
        while not closed:
            ready, _, _ = select.select([self._reads, self._closed], [], [])
            closed = self._closed in ready
            with self._lock:
                self._read()

    def _read(self) -> None:
        """Reads all that is in the pipe; with the lock held."""
        with contextlib.suppress(BlockingIOError):
            while found := os.read(self._reads, 1 << 16):
                self._pass_on(found)

    def _pass_on(self, found: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody reads our stderr any more
            left = found
            while left:
                left = left[os.write(2, left) :]
        self._bytes += len(found)
        room = KEPT_BYTES - len(self._head)
        self._head += found[:room]
        self._tail = (self._tail + found[room:])[-KEPT_BYTES:]


def _plain(printed: bytes) -> str:
    text = without_escapes(printed.decode("utf-8", errors="replace"))
    return _OVERWRITTEN.sub("", text.replace("\r\n", "\n"))
