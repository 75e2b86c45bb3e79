"""Processes that do for this one what might end it: started, asked and answered over pipes, killed."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

Message = dict[str, Any]
Tell = Callable[[Message], None]

START_SECONDS = 120.0
"""A worker imports torch, then the kernel and whatever that imports; on a cold disk each takes a while."""


GLANCE = 1.0
"""Seconds between looks whether a worker is still there: a process that its kernel forked holds the pipe open
when the worker is gone."""

LAST_WORDS = 5.0
"""Seconds that a worker whose pipe is closed has left to end in."""


class Gone(Exception):
    """The worker has ended, or has closed its end of the pipe, or says what is no answer."""


class Worker:
    """One process of `python -m module REQUESTS REPLIES ARGUMENTS...` and the two pipes to it, on which JSON
    lines go there and back. There it is to call `serve`, whose first message says that it has started. The
    process may be another interpreter's, start in another `folder` and have another `environment`."""

    def __init__(
        self,
        module: str,
        arguments: list[str],
        *,
        python: str = sys.executable,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._buffer = b""
        try:
            # A session of its own: Ctrl-C reaches the parent alone, which then kills what the kernel started
            # too.
            self._process = subprocess.Popen(
                [python, "-m", module, str(requests), str(replies), *arguments],
                pass_fds=(requests, replies),
                cwd=folder,
                env=environment,
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
                if left <= 0:
                    raise TimeoutError(timeout)
                ended = self._process.poll() is not None  # before the look: what it wrote is then there
                if selector.select(0 if ended else min(left, GLANCE)):
                    data = os.read(self._replies, 1 << 16)
                    if not data:
                        raise Gone
                    self._buffer += data
                elif ended:
                    raise Gone
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:
            raise Gone from None
        if not isinstance(found, dict):
            raise Gone
        return found

    def wait(self) -> int | None:
        """The exit status of a worker that is `Gone`; None of one that lives on without its pipe."""
        try:
            return self._process.wait(timeout=LAST_WORDS)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End the process and everything in its session, and close the pipes."""
        os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def serve(requests: int, replies: int, start: Callable[[Tell], Callable[[Message], Message]]) -> None:
    """In a worker: answers requests until the pipe closes, which it does when the parent is gone.

    `start` is called once the parent knows that the worker is there. It is given what sends a message beside
    the answers, and returns what makes an answer of a request. Whatever is printed goes to stderr.
    """
    os.dup2(2, 1)
    end_with_parent(requests)
    faulthandler.enable()
    with os.fdopen(requests, "r") as source, os.fdopen(replies, "w") as sink:

        def tell(message: Message) -> None:
            sink.write(json.dumps(message) + "\n")
            sink.flush()

        tell({"ready": True})
        answer = start(tell)
        for line in source:
            tell(answer(json.loads(line)))


def end_with_parent(requests: int) -> None:
    """In a worker: ends it and everything in its session once nobody can write to its pipe `requests` any
    more. A parent that was killed ends nothing itself, and a kernel that hangs reads no requests."""
    threading.Thread(target=_outlive, args=(requests,), name="end with parent", daemon=True).start()


def _outlive(requests: int) -> None:
    hangup = select.poll()
    hangup.register(requests, 0)  # nothing but the hangup, which is always reported
    hangup.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def cause(status: int | None) -> str:
    """An exit status in words: `signal 11 (SIGSEGV)`."""
    if status is None:
        return "breaking the pipe to it, and was killed"
    if status < 0:
        try:
            return f"signal {-status} ({signal.Signals(-status).name})"
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"
