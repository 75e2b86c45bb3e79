"""Words that threads synchronise by: strong loads, stores and atomics of shared and global memory.

PTX ISA, "Release and Acquire Patterns": a release is a `.release` write, or a fence and then a strong write;
an acquire is a `.acquire` read, or a strong read and then a fence. A reduction acquires nothing. What was
released passes to who reads the value written, and on through atomics that update it ("Observation Order");
another write of the word ends that. Who reads is taken to see the last write of this run: memory is
sequentially consistent in the simulator.

Both sides have to name a scope with the other in it ("Morally Strong Operations"): scopes below `.gpu` order
threads of one CTA. A `fence.sc` follows another ("Fence-SC Order") only where a strong read before it saw
that the other had come before: what order two that nothing connects had is one run's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.checker.abroad import Abroad, Known
from gdnbench.sim.checker.load_store import Form
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.checker.vector_clocks import Carried, View, WarpViews


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """What whoever acquires it is told: `near` for threads of the CTA that it names, `far` for those of any.
    `fence_sc` is what a fence.sc followed that came before a write of it.
    `writer` is the CTA and warp whose writes alone are in this, if so. Never changed, so that many words can
    be one."""

    writer: tuple[int, int] | None = None
    near: dict[int, Carried] = field(default_factory=dict)
    far: Abroad = field(default_factory=Abroad)
    fence_sc: Abroad = field(default_factory=Abroad)


@dataclass(slots=True)
class Words:
    """Those in a memory, by cell. `unreleased` is what CTAs knew that wrote one of them last, whether they
    released that or not."""

    by_cell: dict[int, Word] = field(default_factory=dict)
    unreleased: Abroad = field(default_factory=Abroad)


@dataclass(slots=True)
class _Fence:
    """Of one warp: what its last fences hand on to later writes, in a CTA and wider, and what it has read
    since."""

    near: Carried | None = None
    far: Abroad | None = None
    seen_near: Carried | None = None
    seen_far: Abroad = field(default_factory=Abroad)
    seen_sc: Abroad = field(default_factory=Abroad)


@dataclass(slots=True)
class Nearly:
    """What is known of other CTAs in this one: `acquired` by some warp, `released` to who had acquired it
    and `written` to who read, had it been released."""

    acquired: Abroad = field(default_factory=Abroad)
    released: Abroad = field(default_factory=Abroad)
    written: Abroad = field(default_factory=Abroad)


class Variables:
    """Those of one CTA. `words` are those in global memory, of the launch."""

    def __init__(self, warps: int, cta: int = 0, words: Words | None = None) -> None:
        self.nearly = Nearly()
        self._warps = warps
        self._cta = cta
        self._words = {"shared": Words(), "global": Words() if words is None else words}
        self._fences = [_Fence() for _ in range(warps)]

    def accessed(self, form: Form, space: str, cells: Cells, views: WarpViews) -> None:
        """A strong access of the warp of `views` to `cells`; an atomic both reads and writes."""
        words = self._words[space]
        wide = form.wide and space == "global"
        touched: dict[Word | None, list[int]] = {}
        for cell in set(cells.tolist()):
            touched.setdefault(words.by_cell.get(cell), []).append(cell)
        if form.reads:
            for word in touched:
                if word is not None:
                    self._read(word, views, acquires=form.acquires, wide=wide)
            if wide:
                self.nearly.written.join(words.unreleased)
        if not form.writes:
            return
        near, far = self._handed_on(form, views, wide=wide)
        for word, its in touched.items():
            written = self._written(word, form, views, near, far, wide=wide)
            if written is not None:
                words.by_cell.update(dict.fromkeys(its, written))
        if wide:
            words.unreleased.learn(self._cta, self._own(views))

    def _read(self, word: Word, views: WarpViews, *, acquires: bool, wide: bool) -> None:
        fence = self._fences[views.index]
        near = word.near.get(self._cta)
        if near is not None and acquires:
            views.acquire(near)
        elif near is not None:
            self.sees(views, near)
        if not wide:
            return
        fence.seen_sc.join(word.fence_sc)
        self.nearly.released.join(word.far)
        if acquires:
            self._learn(word.far, views)
        else:
            fence.seen_far.join(word.far)

    def signals(self, views: WarpViews, into: Carried) -> None:
        """A relaxed arrival at an mbarrier: what the last fence before it handed on."""
        near = self._fences[views.index].near
        if near is not None:
            into.order(near)

    def sees(self, views: WarpViews, carried: Carried) -> None:
        """A relaxed wait for a phase of an mbarrier, or a strong read: the next fence acquires it."""
        fence = self._fences[views.index]
        if fence.seen_near is None:
            fence.seen_near = Carried.of(self._warps)
        fence.seen_near.join(carried)

    def _handed_on(self, form: Form, views: WarpViews, *, wide: bool) -> tuple[Carried | None, Abroad | None]:
        """What a write hands on: all that is known if it releases, else what the fences before it knew."""
        if not form.releases:
            fence = self._fences[views.index]
            return fence.near, fence.far
        far = self._known(views) if wide else None
        near = Carried.of(self._warps)
        views.release(near)
        return near, far

    def _written(
        self,
        word: Word | None,
        form: Form,
        views: WarpViews,
        near: Carried | None,
        far: Abroad | None,
        *,
        wide: bool,
    ) -> Word | None:
        """The word that comes of `word`, None if that is nothing to anybody."""
        writer = (self._cta, views.index)
        fence_sc = views.known.fence_sc
        if word is None or not (form.updates or word.writer == writer):
            if near is None and not fence_sc.ctas:
                return None if word is None else _EMPTY
            word = Word(writer)
        nears = word.near
        old = nears.get(self._cta)
        if near is not None and near is not old:
            nears = {**nears, self._cta: near if old is None else _joined(old, near, self._warps)}
        return Word(
            writer if word.writer == writer else None,
            nears,
            word.far.joined(far) if wide and far is not None else word.far,
            word.fence_sc.joined(fence_sc) if wide else word.fence_sc,
        )

    def fence(self, views: WarpViews, *, wide: bool = True, sc: bool = False) -> None:
        """fence.acq_rel, or if `sc` fence.sc or membar."""
        fence = self._fences[views.index]
        if fence.seen_near is not None:
            views.acquire(fence.seen_near)
            fence.seen_near = None
        if wide:
            self._learn(fence.seen_far, views)
            fence.seen_far = Abroad()
            if sc:
                self._learn(fence.seen_sc, views)
                views.known.fence_sc.join(self._known(views))
                fence.seen_sc = Abroad()
            fence.far = self._known(views)
        fence.near = Carried.of(self._warps)
        views.release(fence.near)

    def _known(self, views: WarpViews) -> Abroad:
        """What a release of this warp tells other CTAs."""
        return Abroad({**views.known.abroad.ctas, self._cta: self._own(views)})

    def _own(self, views: WarpViews) -> Known:
        base, proxied = views.handing_on()
        return Known(tuple(base.clocks), base.tokens, tuple(proxied.clocks))

    def _learn(self, far: Abroad, views: WarpViews) -> None:
        """The warp has acquired it; of its own CTA too, if another has handed that on."""
        for cta, known in far.ctas.items():
            if cta == self._cta:
                views.known.base.join(View(list(known.clocks), known.tokens))
                views.known.proxied["global"].join(View(list(known.proxied)))
            else:
                views.known.abroad.learn(cta, known)
        self.nearly.acquired.join(far)


_EMPTY = Word()


def _joined(one: Carried, other: Carried, warps: int) -> Carried:
    found = Carried.of(warps)
    found.join(one)
    found.join(other)
    return found
