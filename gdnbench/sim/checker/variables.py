"""Words that threads synchronise by: strong loads, stores and atomics of shared and global memory.

PTX ISA, "Release and Acquire Patterns": a release is a `.release` write, or a fence and then a strong write;
an acquire is a `.acquire` read, or a strong read and then a fence. A read is taken to see the writes before
it in this run: memory is sequentially consistent in the simulator, and whoever polls sees the value that ends
it.
"""

from __future__ import annotations

from gdnbench.sim.checker.plain import Form
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.checker.views import Carried, WarpViews


class Variables:
    """Those of one CTA, by memory and cell."""

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._words: dict[tuple[str, int], Carried] = {}
        self._fenced: list[Carried | None] = [None] * warps
        self._seen: list[Carried | None] = [None] * warps

    def accessed(self, form: Form, space: str, cells: Cells, views: WarpViews) -> None:
        """A strong access of the warp of `views` to `cells`; an atomic both reads and writes."""
        for cell in set(cells.tolist()):
            word = self._words.get((space, cell))
            if word is not None and form.reads:
                if form.acquires:
                    views.acquire(word)
                else:
                    self._joined(self._seen, views.index).join(word)
            if form.releases or (form.writes and self._fenced[views.index] is not None):
                word = self._words.setdefault((space, cell), Carried.of(self._warps))
                fenced = self._fenced[views.index]
                if fenced is not None:
                    word.join(fenced)
        if form.releases:
            released = Carried.of(self._warps)
            views.release(released)
            for cell in set(cells.tolist()):
                self._words[space, cell].join(released)

    def fence(self, views: WarpViews) -> None:
        """fence.acq_rel, fence.sc or membar."""
        seen, self._seen[views.index] = self._seen[views.index], None
        if seen is not None:
            views.acquire(seen)
        views.release(self._joined(self._fenced, views.index))

    def _joined(self, kept: list[Carried | None], warp: int) -> Carried:
        found = kept[warp]
        if found is None:
            found = kept[warp] = Carried.of(self._warps)
        return found
