# SPDX-License-Identifier: Apache-2.0
"""Worker processes that start in a hundredth of the time: a process that has imported torch forks them.

A worker of `gdnbench.workers.process` imports torch, which takes 1.8 s of processor time; most tests start
one for a call of milliseconds. `start` replaces `gdnbench.workers.process.start_process` in test processes.
The worker is a process of its own in a session of its own, and starts with the modules of MODULES imported.

Tests of the start itself take the fixture `cold_workers`. A worker of another interpreter, another folder,
another environment or another module always starts as users' workers do, and so does each on another system
than Linux.

Run as a program, this file is the process that forks: `python -P warm_workers.py SOCKET`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

MODULES = (
    "gdnbench.bisect.worker",
    "gdnbench.mismatch.worker",
    "gdnbench.replay.worker",
    "gdnbench.timing.worker",
    "gdnbench.workers.pickled_call",
)
"""Main modules of workers; the forking process has imported them."""

FREE = ("PYTEST_CURRENT_TEST", "COLUMNS")
"""Variables that no module reads when it is imported. They may change after the forking process started."""

MESSAGE_BYTES = 1 << 17
"""Upper bound of a request, whose arguments are paths and options: a few KiB."""

EXITED = 4
"""Bytes of an exit status."""


class Forked:
    """The part of `subprocess.Popen` that `WorkerProcess` uses."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._returned: int | None = None

    def poll(self) -> int | None:
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._read(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
        return status

    def _read(self, timeout: float | None) -> int | None:
        if self._returned is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                return None
            data = os.read(self._status, EXITED)
            os.close(self._status)
            assert len(data) == EXITED, "the process that forks workers ended"
            self._returned = int.from_bytes(data, "little", signed=True)
        return self._returned


class Forker:
    """The process that forks workers, as its parent sees it."""

    def __init__(self) -> None:
        self._environment = _fixed(os.environ)
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno())],
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a worker with `environment` imports what this process has imported."""
        return _fixed(environment) == self._environment

    def fork(
        self, module: str, requests: int, replies: int, arguments: Sequence[str], printed: int
    ) -> Forked:
        status, ours = os.pipe()
        message = {
            "module": module,
            "arguments": arguments,
            "folder": os.getcwd(),
            "variables": {name: os.environ.get(name) for name in FREE},
        }
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], [requests, replies, printed, ours])
        finally:
            os.close(ours)
        return Forked(int(self._socket.recv(64)), status)

    def end(self) -> None:
        """The process ends when nobody can send it anything."""
        self._socket.close()
        self._process.wait()


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in FREE}


_forker: Forker | None = None


def start(
    python: str,
    module: str,
    pipes: tuple[int, int],
    arguments: Sequence[str],
    folder: str | None,
    environment: Mapping[str, str] | None,
    printed: int = 2,
) -> Any:
    """`gdnbench.workers.process.start_process`, by a fork where that makes no difference."""
    global _forker
    own = sys.platform == "linux" and python == sys.executable and folder is None and module in MODULES
    if own and (environment is None or environment == os.environ):
        _forker = _forker or Forker()
        if _forker.serves(os.environ):
            return _forker.fork(module, *pipes, arguments, printed)
    return COLD(python, module, pipes, arguments, folder, environment, printed)


def end() -> None:
    """Ends the process that forks, if there is one."""
    global _forker
    if _forker is not None:
        _forker.end()
        _forker = None


def main(given: socket.socket) -> None:
    """Forks a worker at each message and tells its exit status. Returns in a worker that has ended by itself,
    and when the parent is gone."""
    for module in MODULES:
        importlib.import_module(module)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([given.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 10)
            _tell_ended(statuses)
        if given.fileno() not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(given, MESSAGE_BYTES, 4)
        if not data:
            return
        requests, replies, err, status = fds
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()  # before its parent knows it: the parent kills the session
            given.send(str(os.getpid()).encode())
            given.close()
            for fd in (woken, wake, status, *statuses.values()):
                os.close(fd)
            _work(json.loads(data), requests, replies, err)
            return
        statuses[pid] = status
        for fd in (requests, replies, err):
            os.close(fd)


def _tell_ended(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(statuses[pid], os.waitstatus_to_exitcode(status).to_bytes(EXITED, "little", signed=True))
        os.close(statuses.pop(pid))


def _work(message: dict[str, Any], requests: int, replies: int, err: int) -> None:
    """What `python -P -m MODULE REQUESTS REPLIES ARGUMENTS` does, with stdout and stderr at `err`."""
    os.dup2(err, 1)
    os.dup2(err, 2)
    os.close(err)
    os.chdir(message["folder"])
    for name, value in message["variables"].items():  # the others are the same, or of imported modules
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    module = importlib.import_module(message["module"])
    arguments = [str(requests), str(replies), *message["arguments"]]
    sys.argv = [str(module.__file__), *arguments]
    sys.orig_argv = [sys.executable, "-P", "-m", message["module"], *arguments]
    module.main(arguments)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
else:
    from gdnbench.workers.process import start_process as COLD
