# SPDX-License-Identifier: Apache-2.0
"""A worker process and the JSON lines that it and its parent exchange over two pipes."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TextIO

from gdnbench.phases import enter, listening, sending
from gdnbench.workers.parent_watch import kill_with_parent

Message = dict[str, Any]
Send = Callable[[Message], None]

START_SECONDS = 120.0
"""Time limit for a worker to start: it imports torch, the kernel and what that imports, perhaps from a cold
disk."""


POLL_SECONDS = 1.0
"""Interval at which `receive` looks whether the worker still runs. A process that the kernel forked can hold
the pipe open after the worker ended."""

PHASE = "phase"
"""The key of a message with the phase of what the worker does, and how far that is."""

CLEAR = "\r\x1b[K"
"""Clears the line of the cursor (ECMA-48, 8.3.41)."""

EXIT_SECONDS = 5.0
"""Time limit for a worker that closed its pipe to exit."""

DUMP_SECONDS = 2.0
"""Time limit for a worker that hangs to write where it is. The signal's handler writes it in milliseconds, if
the process can take signals at all."""

DUMP_BYTES = 1 << 20
"""Most that is read of it."""

DUMP_SIGNAL = signal.SIGUSR2


DUMP = "stacks"
"""The key under which a worker's first message names the file that faulthandler writes to. The parent opens
and unlinks it."""

_serves_requests = False
"""Whether this process is a worker: whether it called `serve_requests`."""


class WorkerGone(Exception):
    """The worker exited, closed its end of the pipe, or sent what is no JSON object."""


class WorkerProcess:
    """A process of `python -P -m module REQUESTS REPLIES ARGUMENTS...`, where REQUESTS and REPLIES are the
    file descriptors of two pipes that carry JSON lines.

    `-P` keeps the current folder off the import path: it may be a store with a `torch.py` in it. A worker
    imports its own modules from PYTHONPATH and the installation; only a kernel that the user names as
    `package.module:function` is looked for in the current folder.

    The module must call `serve_requests`, whose first message says that the process has started. `python` may
    be another interpreter. The process starts in `folder` with `environment`, by default those of this one.
    What it prints goes to the file descriptor `printed`, by default to stderr.
    """

    def __init__(
        self,
        module: str,
        arguments: list[str],
        *,
        python: str = sys.executable,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        printed: int = 2,
    ) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._buffer = b""
        self._dump: BinaryIO | None = None
        self._dumped = 0
        try:
            pipes = (requests, replies)
            self._process = start_process(python, module, pipes, arguments, folder, environment, printed)
        finally:
            os.close(requests)
            os.close(replies)

    def request(self, message: Message, timeout: float) -> Message:
        """Sends `message` and returns the reply. Raises as `receive`."""
        self._dumped = self._dump_size()
        try:
            os.write(self._requests, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise WorkerGone from None
        return self.receive(timeout)

    def receive(self, timeout: float) -> Message:
        """The worker's next message but for its phases, which `gdnbench.phases` gets. TimeoutError after
        `timeout` seconds, WorkerGone if there will be none."""
        deadline = time.monotonic() + timeout
        while PHASE in (message := self._next_message(deadline, timeout)):
            enter(*message[PHASE])
        return message

    def _next_message(self, deadline: float, timeout: float) -> Message:
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(timeout)
                exited = self._process.poll() is not None  # before select, which then sees all it wrote
                if selector.select(0 if exited else min(left, POLL_SECONDS)):
                    data = os.read(self._replies, 1 << 16)
                    if not data:
                        raise WorkerGone
                    self._buffer += data
                elif exited:
                    raise WorkerGone
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            raise WorkerGone from None
        if not isinstance(message, dict):
            raise WorkerGone
        if (dump := message.pop(DUMP, None)) is not None:
            self._dump = self._open_dump(dump)
        return message

    def exit_status(self) -> int | None:
        """The exit status after WorkerGone; None if the worker closed its pipe and still runs."""
        try:
            return self._process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def python_stacks(self, *, hangs: bool = False) -> str:
        """What faulthandler wrote since the last request: the Python stacks of a process that a signal ended,
        or of one that `hangs`, which writes them now. Empty if there is nothing."""
        if self._dump is None:
            return ""
        if hangs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, DUMP_SIGNAL)
            end, size = time.monotonic() + DUMP_SECONDS, self._dumped
            while time.monotonic() < end and (self._dump_size() == self._dumped or self._dump_size() != size):
                size = self._dump_size()
                time.sleep(0.05)
        self._dump.seek(self._dumped)
        return self._dump.read(DUMP_BYTES).decode(errors="backslashreplace")

    def _dump_size(self) -> int:
        return 0 if self._dump is None else os.fstat(self._dump.fileno()).st_size

    @staticmethod
    def _open_dump(path: str) -> BinaryIO | None:
        """The file that the worker writes its stacks to, which no other process will open."""
        try:
            found = open(path, "rb")  # noqa: SIM115  # as long as the worker lives
            os.unlink(path)
        except OSError:
            return None
        return found

    def kill(self) -> None:
        """Kills the process and everything in its session, and closes the pipes."""
        if self._dump is not None:
            self._dump.close()
        os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def start_process(
    python: str,
    module: str,
    pipes: tuple[int, int],
    arguments: Sequence[str],
    folder: str | None,
    environment: Mapping[str, str] | None,
    printed: int = 2,
) -> subprocess.Popen[bytes]:
    """The process of a `WorkerProcess`, with the worker's ends of `pipes`. It prints to `printed`: stdout
    belongs to the report.

    It leads a session of its own: Ctrl-C reaches the parent alone, which then also kills what the kernel
    started.
    """
    return subprocess.Popen(
        [python, "-P", "-m", module, *map(str, pipes), *arguments],
        pass_fds=pipes,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        start_new_session=True,
    )


def serve_requests(
    requests: int, replies: int, start: Callable[[Send], Callable[[Message], Message]]
) -> None:
    """In a worker: answers requests until the parent closes the pipe or ends.

    `start` runs after the parent was told that the process has started. It gets a function that sends
    messages ahead of a reply, and returns the function that computes the reply to a request. What is printed
    on stdout goes to stderr.
    """
    global _serves_requests
    _serves_requests = True
    os.dup2(2, 1)
    kill_with_parent(requests)
    dump, path = tempfile.mkstemp(prefix="gdnbench-stacks-")
    faulthandler.enable(dump)
    faulthandler.register(DUMP_SIGNAL, dump)
    with os.fdopen(requests, "r") as source, os.fdopen(replies, "w") as sink:
        owner = os.getpid()

        def send(message: Message) -> None:
            if os.getpid() != owner:  # forked by the kernel: the parent would take this for another's reply
                os._exit(0)
            sink.write(json.dumps(message) + "\n")
            sink.flush()

        send({"ready": True, DUMP: path})
        if os.isatty(2):
            sys.stderr, sys.stdout = _OverProgress(sys.stderr), _OverProgress(sys.stdout)
        with listening(sending(lambda state: send({PHASE: [state.phase, state.detail]}))):
            reply_to = start(send)
            for line in source:
                send(reply_to(json.loads(line)))


class _OverProgress(io.TextIOBase):
    """A terminal, on which the parent may show its progress: each line that is written clears it first."""

    def __init__(self, beneath: TextIO) -> None:
        self._beneath = beneath
        self._at_start = True

    def write(self, text: str) -> int:
        if text:
            self._beneath.write(CLEAR * self._at_start + text)
            self._at_start = text.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._beneath.flush()

    def fileno(self) -> int:
        return self._beneath.fileno()

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


def is_worker_process() -> bool:
    """Whether this process answers requests of a parent. It is in a session of its own, so that no Ctrl-C
    reaches it: a KeyboardInterrupt in it was raised by what it runs."""
    return _serves_requests


def describe_exit(status: int | None) -> str:
    """An exit status of `subprocess` in words, such as `signal 11 (SIGSEGV)`; None is a worker that closed
    its pipe."""
    if status is None:
        return "breaking the pipe to it, and was killed"
    if status < 0:
        try:
            return f"signal {-status} ({signal.Signals(-status).name})"
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"
