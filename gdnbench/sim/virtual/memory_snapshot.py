# SPDX-License-Identifier: Apache-2.0
"""The bytes of all memory that a launch may access, to be put back and to be compared with what it left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.virtual.device_memory import Bytes

Pages = Mapping[tuple[int, int], Bytes]
"""Contents of pages by (interval, page) number: those that a launch changed."""

PAGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs left other bytes: the first address, how many bytes differ in all, and the `PAGE` or
    fewer bytes around the first one from the address `start` on, as either run left them."""

    address: int
    count: int
    start: int
    before: Bytes
    now: Bytes


class MemorySnapshot:
    """A copy of the memory of a launch, which later calls compare the memory with. It takes as many bytes as
    that memory has; `changed` takes those of the pages that differ."""

    def __init__(self, memory: GlobalMemory) -> None:
        spans = [
            (int(base), int(end) - int(base)) for base, end in zip(memory.bases, memory.ends, strict=True)
        ]
        self._starts = [base for base, _ in spans]
        self._now = [memory.view(base, size) for base, size in spans]
        self._before = [view.copy() for view in self._now]

    @staticmethod
    def size(memory: GlobalMemory) -> int:
        """The bytes that a snapshot takes."""
        return int((memory.ends - memory.bases).sum())

    def changed(self) -> Pages:
        """Copies of the pages that differ from the snapshot."""
        return {key: now.copy() for key, before, now in self._pages() if not np.array_equal(before, now)}

    def restore(self) -> None:
        """Put the snapshot back."""
        for _, before, now in self._pages():
            if not np.array_equal(before, now):
                now[:] = before

    def restore_with(self, pages: Pages) -> None:
        """Put back the memory that had `pages` when `changed` was called."""
        for key, before, now in self._pages():
            wanted = pages.get(key, before)
            if not np.array_equal(wanted, now):
                now[:] = wanted

    def difference(self, pages: Pages) -> Difference | None:
        """Compare the memory with that which had `pages` when `changed` was called; None if all bytes are
        equal."""
        first: Difference | None = None
        count = 0
        for key, before, now in self._pages():
            wanted = pages.get(key, before)
            if np.array_equal(wanted, now):
                continue
            differs = np.flatnonzero(wanted != now)
            count += differs.size
            if first is None:
                start = self._starts[key[0]] + key[1] * PAGE
                first = Difference(start + int(differs[0]), 0, start, wanted.copy(), now.copy())
        return (
            None if first is None else Difference(first.address, count, first.start, first.before, first.now)
        )

    def _pages(self) -> Iterator[tuple[tuple[int, int], Bytes, Bytes]]:
        """Every page: its key, its bytes in the snapshot and in memory."""
        for interval, (before, now) in enumerate(zip(self._before, self._now, strict=True)):
            for number, start in enumerate(range(0, len(before), PAGE)):
                part = slice(start, start + PAGE)
                yield (interval, number), before[part], now[part]
