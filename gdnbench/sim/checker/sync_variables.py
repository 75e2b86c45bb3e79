# SPDX-License-Identifier: Apache-2.0
"""Synchronisation variables: words of shared and global memory that strong loads, stores and atomics use.

Each word that a warp released to has vector clocks, as a lock or an atomic has in FastTrack and
ThreadSanitizer. The release and acquire edges are those of the PTX ISA, "Release and Acquire Patterns":

    release   a .release write; or a fence, then a strong write
    acquire   a .acquire read; or a strong read, then a fence

- A reduction (`red`) acquires nothing.
- An atomic that updates a word keeps the clocks that the word had ("Observation Order"). A plain write
  replaces them, unless the writing warp is the only one that has released to the word.
- A read sees the last write of this run: memory is sequentially consistent in the simulator.
- Release and acquire must both name a scope that includes the other ("Morally Strong Operations"): `.cta`
  orders threads of one CTA only, `.cluster` those of its cluster.
- A `fence.sc` is ordered after an earlier one ("Fence-SC Order") only where a strong read before it saw a
  write that followed the earlier one. Without such a read the fences could have run in the other order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.sim.checker.load_store import AccessForm
from gdnbench.sim.checker.remote_clocks import RemoteClock, RemoteClocks
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.checker.vector_clocks import ClockSet, VectorClock, WarpClocks


@dataclass(frozen=True, slots=True, eq=False)
class SyncWord:
    """The clocks of one word. `cta_scope`: by CTA, what an acquire by its threads joins; under the key
    `_cluster_key` what an acquire of .cluster scope by any thread of a cluster joins too; `gpu_scope`: what
    an acquire by any thread joins; `fence_sc`: what a fence.sc after a read of the word joins. `writer`: the
    (CTA, warp) that alone released to it, or None. Immutable, so that many cells can share one."""

    writer: tuple[int, int] | None = None
    cta_scope: dict[int, ClockSet] = field(default_factory=dict)
    gpu_scope: RemoteClocks = field(default_factory=RemoteClocks)
    fence_sc: RemoteClocks = field(default_factory=RemoteClocks)


@dataclass(slots=True)
class SyncWords:
    """The synchronisation words of one memory, by cell. `unreleased` holds the clocks of the CTAs that wrote
    one of the words, released or not; only messages use it (`NearMisses`)."""

    by_cell: dict[int, SyncWord] = field(default_factory=dict)
    unreleased: RemoteClocks = field(default_factory=RemoteClocks)


@dataclass(slots=True)
class _FenceState:
    """What one warp's fences contribute to the patterns above. `release_cta`, `release_cluster` (None in a
    CTA alone) and `release_gpu` are the clocks at its last fence, which later strong writes release. The
    `pending_` clocks come from strong reads since then, and the next fence acquires them."""

    release_cta: ClockSet | None = None
    release_cluster: ClockSet | None = None
    release_gpu: RemoteClocks | None = None
    pending_cta: ClockSet | None = None
    pending_cluster: ClockSet | None = None
    pending_gpu: RemoteClocks = field(default_factory=RemoteClocks)
    pending_sc: RemoteClocks = field(default_factory=RemoteClocks)


@dataclass(slots=True)
class NearMisses:
    """Clocks of other CTAs that came close to ordering an access of this CTA; a finding's message is chosen
    by them. `acquired` by some warp of this CTA, `released` to a word that some warp read without acquiring,
    `written` to such a word without a release."""

    acquired: RemoteClocks = field(default_factory=RemoteClocks)
    released: RemoteClocks = field(default_factory=RemoteClocks)
    written: RemoteClocks = field(default_factory=RemoteClocks)


class SyncVariables:
    """The synchronisation variables as the warps of one CTA use them, or of the CTAs of a cluster, with
    `cta_warps` warps each; `cta` is then the index of the first. `global_words` are the words of global
    memory, which all CTAs of the launch share."""

    def __init__(
        self,
        warps: int,
        cta: int = 0,
        global_words: SyncWords | None = None,
        cta_warps: int | None = None,
    ) -> None:
        self.near_misses = NearMisses()
        self._warps = warps
        self._cta = cta
        self._cta_warps = warps if cta_warps is None else cta_warps
        self._in_cluster = self._cta_warps != warps
        self._words = {
            "shared": SyncWords(),
            "global": SyncWords() if global_words is None else global_words,
        }
        self._fences = [_FenceState() for _ in range(warps)]

    def strong_access(self, form: AccessForm, space: str, cells: Cells, clocks: WarpClocks) -> None:
        """The warp of `clocks` makes a strong access to `cells` of `space`. An atomic reads and writes."""
        words = self._words[space]
        gpu_scope = form.gpu_scope and space == "global"
        cells_by_word: dict[SyncWord | None, list[int]] = {}
        for cell in set(cells.tolist()):
            cells_by_word.setdefault(words.by_cell.get(cell), []).append(cell)
        if form.reads:
            for word in cells_by_word:
                if word is not None:
                    self._read_word(word, form, clocks, gpu_scope=gpu_scope)
            if gpu_scope:
                self.near_misses.written.join(words.unreleased)
        if not form.writes:
            return
        releases, release_gpu = self._clocks_to_release(form, clocks, gpu_scope=gpu_scope)
        for word, its_cells in cells_by_word.items():
            written = self._word_after_write(word, form, clocks, releases, release_gpu, gpu_scope=gpu_scope)
            if written is not None:
                words.by_cell.update(dict.fromkeys(its_cells, written))
        if gpu_scope:
            words.unreleased.join_cta(self._cta, self._own_clock(clocks))

    def _cta_key(self, clocks: WarpClocks) -> int:
        """The key of the warp's CTA in `SyncWord.cta_scope`: no other CTA of the launch has it."""
        return (
            self._cta if not self._in_cluster else _CLUSTER * self._cta + clocks.warp // self._cta_warps + 1
        )

    @property
    def _cluster_key(self) -> int:
        return -1 - self._cta

    def _read_word(self, word: SyncWord, form: AccessForm, clocks: WarpClocks, *, gpu_scope: bool) -> None:
        fence, acquires = self._fences[clocks.warp], form.acquires
        of_cta = word.cta_scope.get(self._cta_key(clocks))
        if of_cta is not None and acquires:
            clocks.acquire(of_cta)
        elif of_cta is not None:
            self.relaxed_read(clocks, of_cta)
        of_cluster = word.cta_scope.get(self._cluster_key) if form.cluster_scope else None
        if of_cluster is not None and acquires:
            clocks.acquire(of_cluster)
        elif of_cluster is not None:
            if fence.pending_cluster is None:
                fence.pending_cluster = ClockSet.zero(self._warps)
            fence.pending_cluster.join(of_cluster)
        if not gpu_scope:
            return
        fence.pending_sc.join(word.fence_sc)
        self.near_misses.released.join(word.gpu_scope)
        if acquires:
            self._acquire_remote(word.gpu_scope, clocks)
        else:
            fence.pending_gpu.join(word.gpu_scope)

    def relaxed_arrive(self, clocks: WarpClocks, into: ClockSet, *, to_cluster: bool = False) -> None:
        """A relaxed arrival at an mbarrier, or with `to_cluster` at one of another CTA or at barrier.cluster:
        it releases what the warp's last fence of such a scope covered."""
        fence = self._fences[clocks.warp]
        released = fence.release_cluster if to_cluster and self._in_cluster else fence.release_cta
        if released is not None:
            into.join_memory(released)

    def relaxed_read(self, clocks: WarpClocks, released: ClockSet) -> None:
        """A relaxed wait for an mbarrier's phase, or a strong read: the warp's next fence acquires
        `released`."""
        fence = self._fences[clocks.warp]
        if fence.pending_cta is None:
            fence.pending_cta = ClockSet.zero(self._warps)
        fence.pending_cta.join(released)

    def _clocks_to_release(
        self, form: AccessForm, clocks: WarpClocks, *, gpu_scope: bool
    ) -> tuple[dict[int, ClockSet], RemoteClocks | None]:
        """What a strong write releases, by the key of `SyncWord.cta_scope` and to all CTAs: the warp's clocks
        if it is a release itself, else those at the last fence."""
        key, releases = self._cta_key(clocks), {}
        if not form.releases:
            fence = self._fences[clocks.warp]
            if fence.release_cta is not None:
                releases[key] = fence.release_cta
            if fence.release_cluster is not None and form.cluster_scope:
                releases[self._cluster_key] = fence.release_cluster
            return releases, fence.release_gpu
        release_gpu = self._gpu_release(clocks) if gpu_scope else None
        releases[key] = ClockSet.zero(self._warps)
        clocks.release(releases[key])
        if self._in_cluster and form.cluster_scope:
            releases[self._cluster_key] = releases[key]
        return releases, release_gpu

    def _word_after_write(
        self,
        word: SyncWord | None,
        form: AccessForm,
        clocks: WarpClocks,
        releases: dict[int, ClockSet],
        release_gpu: RemoteClocks | None,
        *,
        gpu_scope: bool,
    ) -> SyncWord | None:
        """The word's clocks after the write; None if it still has none."""
        writer = (self._cta, clocks.warp)
        fence_sc = clocks.all_lanes.fence_sc
        if word is None or not (form.updates or word.writer == writer):
            if not releases and not fence_sc.by_cta:
                return None if word is None else _EMPTY
            word = SyncWord(writer)
        by_cta = word.cta_scope
        for key, released in releases.items():
            old = by_cta.get(key)
            if released is not old:
                by_cta = {**by_cta, key: released if old is None else _joined(old, released, self._warps)}
        return SyncWord(
            writer if word.writer == writer else None,
            by_cta,
            word.gpu_scope.joined(release_gpu) if gpu_scope and release_gpu is not None else word.gpu_scope,
            word.fence_sc.joined(fence_sc) if gpu_scope else word.fence_sc,
        )

    def fence(
        self, clocks: WarpClocks, *, gpu_scope: bool = True, cluster_scope: bool = True, sc: bool = False
    ) -> None:
        """fence.acq_rel, or if `sc` fence.sc or membar: acquire what strong reads before it saw, and keep
        the clocks that strong writes after it release."""
        fence = self._fences[clocks.warp]
        if fence.pending_cta is not None:
            clocks.acquire(fence.pending_cta)
            fence.pending_cta = None
        if fence.pending_cluster is not None and cluster_scope:
            clocks.acquire(fence.pending_cluster)
            fence.pending_cluster = None
        if gpu_scope:
            self._acquire_remote(fence.pending_gpu, clocks)
            fence.pending_gpu = RemoteClocks()
            if sc:
                self._acquire_remote(fence.pending_sc, clocks)
                clocks.all_lanes.fence_sc.join(self._gpu_release(clocks))
                fence.pending_sc = RemoteClocks()
            fence.release_gpu = self._gpu_release(clocks)
        fence.release_cta = ClockSet.zero(self._warps)
        clocks.release(fence.release_cta)
        if self._in_cluster and cluster_scope:
            fence.release_cluster = fence.release_cta

    def _gpu_release(self, clocks: WarpClocks) -> RemoteClocks:
        """What a release of this warp passes to other CTAs."""
        return RemoteClocks({**clocks.all_lanes.remote.by_cta, self._cta: self._own_clock(clocks)})

    def _own_clock(self, clocks: WarpClocks) -> RemoteClock:
        base, async_proxy = clocks.released_clocks()
        return RemoteClock(tuple(base.by_warp), base.tokens, tuple(async_proxy.by_warp))

    def _acquire_remote(self, released: RemoteClocks, clocks: WarpClocks) -> None:
        """Acquire clocks of other CTAs, and of this one where another CTA passed them back."""
        for cta, clock in released.by_cta.items():
            if cta == self._cta:
                clocks.all_lanes.base.join(VectorClock(list(clock.by_warp), clock.tokens))
                clocks.all_lanes.async_proxy["global"].join(VectorClock(list(clock.async_proxy)))
            else:
                clocks.all_lanes.remote.join_cta(cta, clock)
        self.near_misses.acquired.join(released)


_EMPTY = SyncWord()
_CLUSTER = 1 << 8  # more than the CTAs of a cluster


def _joined(one: ClockSet, other: ClockSet, warps: int) -> ClockSet:
    found = ClockSet.zero(warps)
    found.join(one)
    found.join(other)
    return found
