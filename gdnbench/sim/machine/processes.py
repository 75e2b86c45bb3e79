# SPDX-License-Identifier: Apache-2.0
"""Runs independent CTAs in forked processes. Each has a copy of global memory and returns the changed bytes.

The machine is Python, which threads of one process cannot run in parallel. A forked process inherits the
prepared launch at the same addresses and writes to its own pages. At its end it compares global memory with
the state at the fork; the parent writes the changed bytes into the tensors. Independent CTAs write different
bytes, or the same value.
"""

from __future__ import annotations

import mmap
import os
import pickle
import selectors
import signal
import struct
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.errors import SimError, WorkerError
from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.cta import Launch, Note
from gdnbench.sim.machine.keep_going import SkippedFaults
from gdnbench.sim.machine.memory import Bytes

RunUnit = Callable[[int], Counters]
"""Runs a part of the grid, a CTA or a cluster, by its index."""
Progress = Callable[[int, int], None]
"""Called as CTAs of a launch end with (CTAs ended, CTAs in all)."""

# Copies of global memory per worker: one for the comparison and, at worst, its own version of every page.
MAX_BYTES = 64 * 1024 * 1024

# Seconds between calls of `progress` while no CTA ends.
PROGRESS_SECONDS = 0.1

_NO_FAILURE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Change:
    """Changed bytes of the global memory interval at `base`: a bit for each byte, and the values of the
    changed ones."""

    base: int
    size: int
    changed: bytes
    values: bytes


@dataclass(frozen=True, slots=True)
class _Share:
    """The result of a worker. `failure` is the CTA and the error that stopped it; `part` is the findings of
    its checkers."""

    counters: Counters
    notes: Counter[Note]
    skipped: SkippedFaults
    changes: tuple[_Change, ...]
    failure: tuple[int, BaseException] | None
    part: object


class _Board:
    """State shared by the workers: the next CTA and the lowest that failed."""

    def __init__(self, first: int) -> None:
        self._words = np.frombuffer(mmap.mmap(-1, 16), np.int64)
        self._words[:] = first, _NO_FAILURE
        # A pipe with one byte in it is a lock between processes.
        self._lock = os.pipe()
        os.write(self._lock[1], b".")

    def next_unit(self, end: int) -> int | None:
        """The next part of the grid below `end`; None once one has failed."""
        os.read(self._lock[0], 1)
        try:
            index = int(self._words[0])
            if index >= end or self._words[1] != _NO_FAILURE:
                return None
            self._words[0] = index + 1
            return index
        finally:
            os.write(self._lock[1], b".")

    def failed(self, index: int) -> None:
        """Record that CTA `index` failed: no CTA begins from now on."""
        self._words[1] = min(int(self._words[1]), index)

    def close(self) -> None:
        for end in self._lock:
            os.close(end)


def can_fork(launch: Launch) -> bool:
    """True if the launch's memory can be copied for each worker and the system can fork."""
    total = sum(int(end) - int(base) for base, end in _intervals(launch))
    return hasattr(os, "fork") and total <= MAX_BYTES


def run_in_processes(
    launch: Launch, run_unit: RunUnit, first: int, workers: int, progress: Progress | None
) -> Counters:
    """Run CTAs from `first` on; raises the error of the lowest CTA that fails.

    Raises WorkerError if a process dies.
    """
    board = _Board(first)
    children: dict[int, int] = {}  # process id by the read end of its pipe
    launch.meter.share(workers)
    parent = os.getpid()
    try:
        for number in range(1, workers + 1):
            # One by one: a child that inherited another's write end would keep that pipe open.
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                launch.meter.use_slot(number, parent)
                _work(launch, run_unit, board, write)
            children[read] = child
            os.close(write)
        shares = _collect(children, launch, first, progress)
    finally:
        for read, child in children.items():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
        board.close()
    if launch.parts is not None:
        for share in shares:
            launch.parts.join(share.part)
    for share in shares:
        launch.skipped.merge(share.skipped)
    failures = [share.failure for share in shares if share.failure is not None]
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
    total = Counters()
    for share in shares:
        total.merge(share.counters)
        launch.notes.update(share.notes)
        for change in share.changes:
            _apply(launch, change)
    return total


def _work(launch: Launch, run_unit: RunUnit, board: _Board, write: int) -> None:
    """The whole life of a worker. It never returns, so that no code of the parent runs twice."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too and ends its workers
        share = _run_share(launch, run_unit, board, write)
        _send(write, pickle.dumps(share, protocol=pickle.HIGHEST_PROTOCOL))
        status = 0
    finally:
        os._exit(status)


def _run_share(launch: Launch, run_unit: RunUnit, board: _Board, write: int) -> _Share:
    before = [launch.memory.view(base, end - base).copy() for base, end in _intervals(launch)]
    launch.notes.clear()
    launch.skipped = SkippedFaults()
    if launch.parts is not None:
        launch.parts.reset()
    total, failure = Counters(), None
    while failure is None and (index := board.next_unit(launch.units)) is not None:
        try:
            total.merge(run_unit(index))
            _send(write, b"")
        except BaseException as error:
            board.failed(index)
            failure = (index, _portable(error))
    changes = tuple(
        change
        for old, (base, end) in zip(before, _intervals(launch), strict=True)
        if (change := _changed(old, base, launch.memory.view(base, end - base))) is not None
    )
    part = launch.parts.part() if launch.parts is not None else None
    return _Share(total, launch.notes, launch.skipped, () if failure is not None else changes, failure, part)


def _portable(error: BaseException) -> BaseException:
    """The error itself if it can be pickled, else an error with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return SimError("".join(traceback.format_exception(error)))
    return error


# A message is eight bytes of length and the pickled share. A length of 0 means that a part has ended.
_LENGTH = struct.Struct("<q")


def _send(write: int, data: bytes) -> None:
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(write, view) :]


class _Inbox:
    """Assembles one worker's messages from pieces."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.share: _Share | None = None
        self.ended = 0

    def feed(self, piece: bytes) -> None:
        self.data += piece
        while len(self.data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.data)
            if len(self.data) < _LENGTH.size + length:
                return
            if length:
                self.share = pickle.loads(self.data[_LENGTH.size : _LENGTH.size + length])
            else:
                self.ended += 1
            del self.data[: _LENGTH.size + length]


def _collect(children: dict[int, int], launch: Launch, first: int, progress: Progress | None) -> list[_Share]:
    """The shares of all workers, in the order of the workers."""
    inboxes = {read: _Inbox() for read in children}
    with selectors.DefaultSelector() as selector:
        for read in children:
            selector.register(read, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(PROGRESS_SECONDS):
                inbox, piece = inboxes[key.fd], os.read(key.fd, 1 << 20)
                if piece:
                    inbox.feed(piece)
                elif inbox.share is None:
                    raise WorkerError(f"worker process {children[key.fd]} died: the memory may have run out")
                else:
                    selector.unregister(key.fd)
            if progress is not None:
                ended = first + sum(inbox.ended for inbox in inboxes.values())
                progress(ended * launch.ctas // launch.units, launch.ctas)
    return [inbox.share for inbox in inboxes.values() if inbox.share is not None]


def _intervals(launch: Launch) -> list[tuple[int, int]]:
    """Global memory as disjoint intervals of addresses."""
    memory = launch.memory
    return [(int(base), int(end)) for base, end in zip(memory.bases, memory.ends, strict=True)]


def _changed(old: Bytes, base: int, now: Bytes) -> _Change | None:
    different = old != now
    if not different.any():
        return None
    return _Change(base, now.size, np.packbits(different).tobytes(), now[different].tobytes())


def _apply(launch: Launch, change: _Change) -> None:
    mask = np.unpackbits(np.frombuffer(change.changed, np.uint8), count=change.size).view(np.bool_)
    launch.memory.view(change.base, change.size)[mask] = np.frombuffer(change.values, np.uint8)
