"""The shadow of a memory of which little may be touched: cells of pages that come into being when touched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gdnbench.sim.checker.shadow import Cells, Numbers, Prior, ReadSets, Shadow

PAGE_BITS = 12
PAGE = 1 << PAGE_BITS
NEAR = 1 << 14  # pages so near to each other are told apart by a table, others by sorting


class PagedShadow:
    """The same as a `Shadow`, of cells of any number. `pages` is as many as can be touched, if that is
    known: then the shadow never moves, and what is touched of it is all that it takes of the memory."""

    def __init__(self, sets: ReadSets, pages: int = 0) -> None:
        self.owners: list[int] = []  # by slot, the number of the page
        self.sets = sets
        self._slots: dict[int, int] = {}
        self._shadow = Shadow(pages * PAGE, sets)

    @property
    def nbytes(self) -> int:
        """Of the pages that have been touched."""
        return len(self.owners) * PAGE * (self._shadow.writer.itemsize + self._shadow.readers.itemsize)

    def reads(self, cells: Cells, events: Numbers) -> list[Prior]:
        """See `Shadow`."""
        places = self._places(cells)
        return [self._back(prior) for prior in self._shadow.reads(places, events)]

    def writes(self, cells: Cells, events: Numbers) -> list[Prior]:
        """See `Shadow`."""
        places = self._places(cells)
        return [self._back(prior) for prior in self._shadow.writes(places, events)]

    def columns(self, cells: Cells) -> tuple[Numbers, Numbers]:
        """(last writers, sets of readers)."""
        places = self._places(cells)
        return self._shadow.writer[places], self._shadow.readers[places]

    def updated(self, cells: Cells, readers: Numbers) -> None:
        """Give the cells other sets of readers."""
        self._shadow.readers[self._places(cells)] = readers

    def page(self, number: int) -> tuple[Numbers, Numbers]:
        """(last writers, sets of readers) of the cells of a page, to change in place."""
        start = self._slot(number) << PAGE_BITS
        self._grow()
        return self._shadow.writer[start : start + PAGE], self._shadow.readers[start : start + PAGE]

    def touched(self) -> Iterator[tuple[int, Numbers, Numbers]]:
        """(number, last writers, sets of readers) of every page that has been touched, to change in place."""
        for number in self.owners:
            yield number, *self.page(number)

    def _slot(self, page: int) -> int:
        slot = self._slots.get(page)
        if slot is None:
            slot = self._slots[page] = len(self.owners)
            self.owners.append(page)
        return slot

    def _places(self, cells: Cells) -> Cells:
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

    def _grow(self) -> None:
        cells, have = len(self.owners) * PAGE, self._shadow.writer.size
        if cells <= have:
            return
        grown = Shadow(max(cells, have + have // 2), self.sets)
        grown.writer[:have] = self._shadow.writer
        grown.readers[:have] = self._shadow.readers
        self._shadow = grown

    def _back(self, prior: Prior) -> Prior:
        page = self.owners[prior.cell >> PAGE_BITS]
        return prior._replace(cell=page << PAGE_BITS | prior.cell & PAGE - 1)
