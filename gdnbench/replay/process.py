"""Processes that do for this one what might end it: started, asked and answered over pipes, killed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

START_SECONDS = 120.0
"""A worker imports torch, then the kernel and whatever that imports; on a cold disk each takes a while."""


class Gone(Exception):
    """The worker's end of the pipe is closed."""


class Worker:
    """One process of `python -m module REQUESTS REPLIES ARGUMENTS...` and the two pipes to it, on which JSON
    lines go there and back. It is to end when its requests do, and says something once it has started."""

    def __init__(self, module: str, arguments: list[str]) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._buffer = b""
        try:
            # A session of its own: Ctrl-C reaches the parent alone, which then kills what the kernel started
            # too.
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(requests), str(replies), *arguments],
                pass_fds=(requests, replies),
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr: stdout belongs to the report
                start_new_session=True,
            )
        finally:
            os.close(requests)
            os.close(replies)

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and wait for its reply. TimeoutError, or Gone if the process has ended."""
        try:
            os.write(self._requests, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise Gone from None
        return self.receive(timeout)

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next message of the worker."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError(timeout)
                data = os.read(self._replies, 1 << 16)
                if not data:
                    raise Gone
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def wait(self) -> int:
        """The exit status; the pipe is closed, so it comes soon."""
        return self._process.wait(timeout=60)

    def kill(self) -> None:
        """End the process and everything in its session, and close the pipes."""
        os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def cause(status: int) -> str:
    """An exit status in words: `signal 11 (SIGSEGV)`."""
    if status < 0:
        try:
            return f"signal {-status} ({signal.Signals(-status).name})"
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"
