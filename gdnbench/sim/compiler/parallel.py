"""Compiles the parts of a kernel at the same time, each in a forked process of its own: llvmlite holds one
lock for all threads of a process."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence

from gdnbench.sim.errors import WorkerError

_DONE, _FAILED = b"\0", b"\1"


def processors() -> int:
    """How many processes can run at the same time; 1 where the system cannot fork."""
    if not hasattr(os, "fork"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(function: Callable[[str], bytes], texts: Sequence[str]) -> list[bytes]:
    """`function` of each text: the first here, each of the others in a forked process.

    Raises WorkerError if `function` fails in another process, or if that process dies.
    """
    children: list[tuple[int, int]] = []  # process id, the read end of its pipe
    try:
        for text in texts[1:]:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                _work(function, text, write)
            os.close(write)
            children.append((child, read))
        results = [function(texts[0])]
        while len(results) < len(texts):
            results.append(_receive(*children[len(results) - 1]))
        return results
    finally:
        for child, read in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)


def _work(function: Callable[[str], bytes], text: str, write: int) -> None:
    """The whole life of a child. It never returns, so that no code of the parent runs twice."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too and ends its children
        try:
            data = _DONE + function(text)
        except BaseException:
            data = _FAILED + traceback.format_exc().encode()
        view = memoryview(data)
        while view:
            view = view[os.write(write, view) :]
    finally:
        os._exit(0)


def _receive(child: int, read: int) -> bytes:
    pieces = []
    while piece := os.read(read, 1 << 20):
        pieces.append(piece)
    data = b"".join(pieces)
    if data[:1] == _FAILED:
        raise WorkerError(f"a process that compiled a kernel failed: {data[1:].decode()}")
    if data[:1] != _DONE:
        raise WorkerError(f"process {child}, which compiled a kernel, died: the memory may have run out")
    return data[1:]
