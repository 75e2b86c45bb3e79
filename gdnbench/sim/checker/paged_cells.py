# SPDX-License-Identifier: Apache-2.0
"""A sparse array of 32-bit numbers, one for each cell of memory, in pages allocated on first access."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.shadow import Cells, Numbers

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
NEAR = 1 << 14  # pages within this distance are looked up in a table; others are sorted


class PagedCells:
    """Numbers that are 0 at first. `pages` is how many pages can be touched, 0 if unknown. If it is known,
    the array never moves, and only touched pages take physical memory."""

    def __init__(self, pages: int = 0) -> None:
        self.owners: list[int] = []  # by slot, the number of the page
        self.numbers: Numbers = np.zeros(pages * PAGE, np.int32)
        self._slots: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the pages that have been touched."""
        return len(self.owners) * PAGE * self.numbers.itemsize

    def places(self, cells: Cells) -> npt.NDArray[np.int64]:
        """The indices of the cells in `numbers`."""
        pages = cells >> PAGE_BITS
        first, last = int(pages.min()), int(pages.max())
        if first == last:
            slot = self._slot(first)
            self._grow()
            alone: Cells = slot << PAGE_BITS | cells & PAGE - 1
            return alone
        if last - first < NEAR:
            slots = np.zeros(last - first + 1, np.int64)
            inverse = pages - first
            there = np.flatnonzero(np.bincount(inverse))
            slots[there] = [self._slot(first + index) for index in there.tolist()]
        else:
            there, inverse = np.unique(pages, return_inverse=True)
            slots = np.array([self._slot(page) for page in there.tolist()], np.int64)
        self._grow()
        places: Cells = slots[inverse] << PAGE_BITS | cells & PAGE - 1
        return places

    def page(self, number: int) -> Numbers:
        """The numbers of a page, a view to change in place."""
        start = self._slot(number) << PAGE_BITS
        self._grow()
        return self.numbers[start : start + PAGE]

    def touched(self) -> Iterator[Numbers]:
        """The numbers of every touched page, in the order of `owners`, as views to change in place."""
        for slot in range(len(self.owners)):
            yield self.numbers[slot << PAGE_BITS : (slot + 1) << PAGE_BITS]

    def _slot(self, page: int) -> int:
        slot = self._slots.get(page)
        if slot is None:
            slot = self._slots[page] = len(self.owners)
            self.owners.append(page)
        return slot

    def _grow(self) -> None:
        size, have = len(self.owners) * PAGE, self.numbers.size
        if size > have:
            grown = np.zeros(max(size, have + have // 2), np.int32)
            grown[:have] = self.numbers
            self.numbers = grown
