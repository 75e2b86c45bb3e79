# SPDX-License-Identifier: Apache-2.0
"""Computes the parts of a kernel at the same time, in forked processes: llvmlite holds one lock for all
threads of a process, and so does Python."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from gdnbench.sim.errors import SimError, WorkerError

_T = TypeVar("_T")
_R = TypeVar("_R")
_NUMBER = struct.Struct("<I")


def processors() -> int:
    """How many processes can run at the same time; 1 where the system cannot fork."""
    if not hasattr(os, "fork"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Queue:
    """The numbers of the items that nobody has taken yet, in a pipe that all processes read."""

    def __init__(self, count: int) -> None:
        self._read, write = os.pipe()
        os.write(write, b"".join(map(_NUMBER.pack, range(count))))
        os.close(write)

    def take(self) -> int | None:
        data = os.read(self._read, _NUMBER.size)
        return int(_NUMBER.unpack(data)[0]) if data else None

    def close(self) -> None:
        os.close(self._read)


MOST_ITEMS = 4096 // _NUMBER.size  # what every system takes into a pipe at once


def map_in_processes(function: Callable[[_T], _R], items: Sequence[_T], processes: int) -> list[_R]:
    """`function` of each item, at most `MOST_ITEMS`, in this process and in forked ones. Each takes the next
    item when it is done with one.

    Raises the SimError of the first item for which `function` raises one, and WorkerError if it fails
    otherwise in another process, or if that process dies.
    """
    queue = _Queue(len(items))
    children: list[tuple[int, int]] = []  # process id, the read end of its pipe
    try:
        for _ in range(min(processes, len(items)) - 1):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                _work(function, items, queue, write)
            os.close(write)
            children.append((child, read))
        results = _take_all(function, items, queue)
        for child, read in children:
            results |= _receive(child, read)
        return [_value(results[number]) for number in range(len(items))]
    finally:
        queue.close()
        for child, read in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)


def _value(result: _R | SimError) -> _R:
    if isinstance(result, SimError):
        raise result
    return result


def _take_all(function: Callable[[_T], _R], items: Sequence[_T], queue: _Queue) -> dict[int, _R | SimError]:
    """Results and errors by number of the item."""
    results: dict[int, _R | SimError] = {}
    while (number := queue.take()) is not None:
        try:
            results[number] = function(items[number])
        except SimError as error:
            results[number] = error
    return results


def _work(function: Callable[[_T], _R], items: Sequence[_T], queue: _Queue, write: int) -> None:
    """The whole life of a child. It never returns, so that no code of the parent runs twice."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too and ends its children
        gc.disable()  # a collection would copy the pages of all objects of the parent
        try:
            data = pickle.dumps(_take_all(function, items, queue))
        except BaseException:
            data = pickle.dumps(traceback.format_exc())
        view = memoryview(data)
        while view:
            view = view[os.write(write, view) :]
    finally:
        os._exit(0)


def _receive(child: int, read: int) -> dict[int, _R | SimError]:
    """What a child computed."""
    pieces = []
    while piece := os.read(read, 1 << 20):
        pieces.append(piece)
    try:
        found = pickle.loads(b"".join(pieces))
    except (EOFError, pickle.UnpicklingError):
        raise WorkerError(
            f"process {child}, which compiled a kernel, died: the memory may have run out"
        ) from None
    if isinstance(found, str):
        raise WorkerError(f"a process that compiled a kernel failed: {found}")
    computed: dict[int, _R | SimError] = found
    return computed
