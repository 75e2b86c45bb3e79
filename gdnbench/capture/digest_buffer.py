# SPDX-License-Identifier: Apache-2.0
"""Collects the digests of many calls in device memory, so that one copy to the host moves them all.

A call takes a slice of the open chunk of its stream, its kernels write there, and an event is recorded behind
them. A chunk that is full, or a fraction of a second old, is passed on with the records in it, and comes back
zero once they have arrived.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gdnbench.capture.streams import GrowingCopy, Streams

CHUNK_BYTES = 4 << 20
CHUNK_SECONDS = 0.2
_ALIGNMENT = 256


@dataclass(eq=False, slots=True)
class Chunk:
    """Device memory that calls of one stream fill, and their records."""

    lane: int  # the stream
    memory: Tensor  # uint8 [n]
    address: int
    size: int
    way: GrowingCopy
    opened: float
    used: int = 0
    unfinished: int = 0  # slices that a call still fills
    closed: bool = False
    spares: list[list[Slice]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    host: Tensor | None = None

    def arrive(self) -> None:
        """Wait on the host for the copy."""
        self.host = self.way.arrived() if self.used else None


@dataclass(eq=False, slots=True)
class Slice:
    """A part of a chunk that one call fills."""

    chunk: Chunk
    start: int
    stop: int

    @property
    def memory(self) -> Tensor:
        """uint8 [n] on the device."""
        return self.chunk.memory[self.start : self.stop]

    def arrived(self) -> Tensor:
        """The same on the host, once the chunk has arrived."""
        assert self.chunk.host is not None
        return self.chunk.host[self.start : self.stop]


class DigestBuffer:
    """Open chunks, one for each stream. Thread safe.

    `send` gets a chunk whose slices are all filled. A new chunk asks `reserve` for its bytes, which may wait
    or refuse; whoever has written the records of a chunk gives it back by `recycle`.
    """

    def __init__(
        self, streams: Streams, reserve: Callable[[int], bool], send: Callable[[Chunk], None]
    ) -> None:
        self._streams = streams
        self._reserve = reserve
        self._send = send
        self._open: dict[int, Chunk] = {}
        self._free: dict[int, list[tuple[Tensor, GrowingCopy]]] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self._thread: threading.Thread | None = None

    def take(self, nbytes: int, device: torch.device) -> Slice | None:
        """Memory for a call on the current stream of `device`, zero and aligned; None if there is no room.

        Whoever takes it must call `finish`.
        """
        lane = self._streams.lane(device)
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            chunk = self._open.get(lane)
            if chunk is not None and chunk.used + size <= chunk.size:
                return self._slice(chunk, size)
            if chunk is not None:
                self._close(chunk)
        # Not under the lock: `reserve` may wait until other chunks have been written.
        room = max(size, CHUNK_BYTES)
        if not self._reserve(room):
            return None
        with self._changed:
            free = self._free.get(lane, [])
            if room == CHUNK_BYTES and free:
                memory, way = free.pop()
            else:
                memory = torch.zeros(room, dtype=torch.uint8, device=device)
                way = self._streams.growing(memory)
            chunk = self._open[lane] = Chunk(lane, memory, memory.data_ptr(), room, way, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gdnbench-digests", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return self._slice(chunk, size)

    def _slice(self, chunk: Chunk, size: int) -> Slice:
        found = Slice(chunk, chunk.used, chunk.used + size)
        chunk.used += size
        chunk.unfinished += 1
        return found

    def spare(self, like: Slice) -> list[Slice]:
        """A slice of the same chunk and size for the next call of its stream, in a list; the list is empty if
        the chunk has no room.

        Whoever pops it takes it, as by `take`. A chunk that is passed on pops it itself.
        """
        chunk, size = like.chunk, like.stop - like.start
        found: list[Slice] = []
        with self._lock:
            if not chunk.closed and chunk.used + size <= chunk.size:
                found.append(self._slice(chunk, size))
                chunk.spares.append(found)
        return found

    def finish(self, taken: Slice, record: Any) -> None:
        """The current stream has filled `taken`, whose record is `record`; None if it is given up."""
        chunk = taken.chunk
        chunk.way.written(chunk.used)
        with self._lock:
            chunk.unfinished -= 1
            if record is not None:
                chunk.records.append(record)
            if chunk.closed and not chunk.unfinished:
                self._send(chunk)

    def flush(self) -> None:
        """Pass all chunks on; those that calls still fill go when these end."""
        with self._changed:
            for chunk in list(self._open.values()):
                self._close(chunk)

    def _close(self, chunk: Chunk) -> None:
        del self._open[chunk.lane]
        chunk.closed = True
        for spare in chunk.spares:
            with contextlib.suppress(IndexError):  # unless a call has it
                spare.pop()
                chunk.unfinished -= 1
        chunk.spares = []
        if not chunk.unfinished:
            self._send(chunk)

    def recycle(self, chunk: Chunk) -> None:
        """Take back the memory of a chunk that has arrived."""
        with self._changed:
            if len(chunk.memory) == CHUNK_BYTES:
                self._free.setdefault(chunk.lane, []).append((chunk.memory, chunk.way))

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._open or self._closing)
                if self._closing:
                    return
                oldest = min(chunk.opened for chunk in self._open.values())
                wait = oldest + CHUNK_SECONDS - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                for chunk in [*self._open.values()]:
                    if chunk.opened == oldest:
                        self._close(chunk)
