# SPDX-License-Identifier: Apache-2.0
"""Clusters: how a grid is divided into them, and what the CTAs of one share.

The CTAs of a cluster run side by side (`scheduler.ClusterScheduler`), access each other's shared memory, and
meet at barrier.cluster. A grid that is launched without clusters has clusters of one CTA, which share nothing
with others: their `Cta.cluster` is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.async_queue import AsyncQueue, Schedule
from gdnbench.sim.machine.cta_pair import CtaPair
from gdnbench.sim.machine.engine_interface import Dim3, Lanes, Wait, Warp
from gdnbench.sim.machine.shared_memory import ClusterArrays

ONE_CTA: Dim3 = (1, 1, 1)


def _index(position: Sequence[int], extents: Dim3) -> int:
    """The number of a position in a box of `extents`; x varies fastest."""
    x, y, z = position
    return x + extents[0] * (y + extents[1] * z)


def _position(index: int, extents: Dim3) -> Dim3:
    """The inverse of `_index`."""
    x, y, _ = extents
    return index % x, index // x % y, index // (x * y)


def _divided(extents: Dim3, by: Dim3) -> Dim3:
    x, y, z = (extent // part for extent, part in zip(extents, by, strict=True))
    return x, y, z


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Which cluster of a grid it is: `shape` in CTAs, `position` (%clusterid) among `clusters` (%nclusterid)
    of this shape, and the indices of its CTAs in the grid, by rank."""

    shape: Dim3
    position: Dim3
    clusters: Dim3
    ctas: tuple[int, ...]


def _place(grid: Dim3, shape: Dim3, index: int) -> ClusterPlace:
    clusters = _divided(grid, shape)
    position = _position(index, clusters)
    ctas = []
    for z, y, x in product(*(range(extent) for extent in reversed(shape))):
        inside = (x, y, z)
        at = [p * extent + i for p, extent, i in zip(position, shape, inside, strict=True)]
        ctas.append(_index(at, grid))
    return ClusterPlace(shape, position, clusters, tuple(ctas))


@dataclass(frozen=True, slots=True)
class ClusterGrid:
    """A grid in clusters of `shape`. With `preferred`, a multiple of it, the device may replace the clusters
    that fill one of that shape by it (CUDA driver API, "CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION"):
    under the schedule `late` it does so everywhere, under `early` nowhere, under `random` where `chosen`
    says. Clusters of each shape are numbered as if the grid had no others."""

    grid: Dim3
    shape: Dim3 = ONE_CTA
    preferred: Dim3 | None = None
    chosen: tuple[bool, ...] = ()  # by preferred cluster

    @classmethod
    def plan(
        cls, grid: Dim3, shape: Dim3, preferred: Dim3 | None, schedule: Schedule, *, one_shape: bool = False
    ) -> ClusterGrid:
        """With `one_shape` all clusters get the preferred shape, or none does. Raises KernelFault for shapes
        that do not divide the grid."""
        _check_divides(shape, grid, "grid")
        if preferred is None or preferred == shape:
            return cls(grid, shape)
        _check_divides(shape, preferred, "preferred cluster")
        _check_divides(preferred, grid, "grid")
        count = prod(_divided(grid, preferred))
        if one_shape:
            whole = schedule.kind == "late" or (
                schedule.kind == "random" and schedule.source(-1).random() < 0.5
            )
            return cls(grid, preferred if whole else shape)
        if schedule.kind == "random":
            source = schedule.source(-1)
            return cls(grid, shape, preferred, tuple(source.random() < 0.5 for _ in range(count)))
        return cls(grid, shape, preferred, (schedule.kind == "late",) * count)

    @property
    def largest(self) -> int:
        """The most CTAs of a cluster."""
        return prod(self.shape) if not any(self.chosen) or self.preferred is None else prod(self.preferred)

    @property
    def units(self) -> int:
        """The number of parts of the grid that run independently of each other: clusters of the preferred
        shape or clusters in the place of one, else clusters."""
        return prod(_divided(self.grid, self.preferred or self.shape))

    def clusters(self, unit: int) -> list[ClusterPlace]:
        """The clusters of one part."""
        if self.preferred is None:
            return [_place(self.grid, self.shape, unit)]
        whole = _place(self.grid, self.preferred, unit)
        if self.chosen[unit]:
            return [whole]
        first, inner = _position(whole.ctas[0], self.grid), _divided(self.preferred, self.shape)
        clusters = _divided(self.grid, self.shape)
        base = _divided(first, self.shape)
        found = []
        for index in range(prod(inner)):
            at = [b + i for b, i in zip(base, _position(index, inner), strict=True)]
            found.append(_place(self.grid, self.shape, _index(at, clusters)))
        return found

    def cluster_of(self, cta: int) -> ClusterPlace:
        """The cluster that the CTA with this index belongs to."""
        at = _position(cta, self.grid)
        if self.preferred is not None:
            unit = _index(_divided(at, self.preferred), _divided(self.grid, self.preferred))
            return next(place for place in self.clusters(unit) if cta in place.ctas)
        return _place(
            self.grid, self.shape, _index(_divided(at, self.shape), _divided(self.grid, self.shape))
        )


def _check_divides(part: Dim3, whole: Dim3, what: str) -> None:
    if any(extent % size for extent, size in zip(whole, part, strict=True)):
        raise KernelFault(FaultKind.BUDGET, f"{what} {whole} is no multiple of the cluster {part}")


@dataclass(slots=True, eq=False, weakref_slot=True)
class ClusterRound:
    """One generation of barrier.cluster, from the first arrival to the completion. Warps are numbered in the
    cluster (`Warp.number`)."""

    arrived: set[int] = field(default_factory=set)
    done: bool = False


class ClusterBarrier:
    """The barrier of a cluster (PTX ISA, "barrier.cluster"). It counts warps, as those of a CTA do: a warp
    has arrived once all its threads that have not exited have. A thread must not arrive again before it has
    waited."""

    def __init__(self, warps: int, per_cta: int) -> None:
        self.live = set(range(warps))
        self.per_cta = per_cta
        self.round = ClusterRound()
        self.completed = 0
        self._arrived: dict[int, dict[ClusterRound, Lanes]] = {}  # by warp, the lanes that have yet to wait

    def arrive(self, warp: Warp, lanes: Lanes) -> ClusterRound:
        """Lanes of a warp arrive. Raises KernelFault if some have not waited since they last arrived."""
        use, rounds = self.round, self._arrived.setdefault(warp.number, {})
        if any((waiting & lanes).any() for waiting in rounds.values()):
            raise KernelFault(
                FaultKind.BARRIER, "barrier.cluster.arrive twice, without a barrier.cluster.wait between"
            )
        rounds[use] = rounds[use] | lanes if use in rounds else lanes.copy()
        if (warp.exists & ~rounds[use]).any():
            return use
        use.arrived.add(warp.number)
        self._complete_if_all_arrived()
        return use

    def arrivals(self, warp: Warp, lanes: Lanes) -> list[ClusterRound]:
        """The rounds in which lanes that now wait have arrived. Raises KernelFault for lanes that have
        not."""
        rounds = self._arrived.get(warp.number, {})
        arrived = sum(rounds.values(), np.zeros_like(lanes))
        if (lanes & ~arrived).any():
            raise KernelFault(
                FaultKind.BARRIER, "barrier.cluster.wait without a barrier.cluster.arrive before it"
            )
        return [use for use, waiting in rounds.items() if (waiting & lanes).any()]

    def waited(self, warp: Warp, lanes: Lanes) -> None:
        """Lanes have waited: they may arrive again."""
        rounds = self._arrived[warp.number]
        left = {use: waiting & ~lanes for use, waiting in rounds.items()}
        self._arrived[warp.number] = {use: waiting for use, waiting in left.items() if waiting.any()}

    def exited(self, warp: int) -> None:
        """A warp has exited: the barrier no longer waits for it (PTX ISA, "exit")."""
        self.live.discard(warp)
        self._complete_if_all_arrived()

    def _complete_if_all_arrived(self) -> None:
        if self.round.arrived and self.live <= self.round.arrived:
            self.round.done = True
            self.completed += 1
            self.round = ClusterRound()

    def describe(self) -> str:
        """Text for messages: the arrivals that the current round lacks."""
        by_rank: dict[int, list[int]] = {}
        for number in sorted(self.live - self.round.arrived):
            by_rank.setdefault(number // self.per_cta, []).append(number % self.per_cta)
        missing = "; ".join(f"warps {warps} of the CTA of rank {rank}" for rank, warps in by_rank.items())
        return f"barrier.cluster: {missing} have not arrived"


@dataclass(slots=True)
class ClusterWait(Wait):
    """A wait at barrier.cluster that stores its rounds: one, unless lanes of the warp arrived apart."""

    rounds: list[ClusterRound] = field(default_factory=list)


class Cluster:
    """What the CTAs of a cluster share. `queues` are theirs, by rank, once all have been made."""

    def __init__(self, place: ClusterPlace, warps: int, shared_size: int) -> None:
        self.place = place
        self.size = len(place.ctas)
        self.arrays = ClusterArrays(self.size, shared_size)
        self.barrier = ClusterBarrier(self.size * warps, warps)
        self.queues: list[AsyncQueue] = []
        self.pairs = [CtaPair() for _ in range(self.size // 2)]  # of ranks 2i and 2i + 1

    def position(self, rank: int) -> Dim3:
        """%cluster_ctaid of a rank."""
        return _position(rank, self.place.shape)

    def advance_signal(self, address: int) -> bool:
        """Land the oldest operation of some CTA that signals the mbarrier at `address`; False if none is in
        flight."""
        for queue in self.queues:  # noqa: SIM110  # faster than any(), and called for every wait
            if queue.advance_signal(address):
                return True
        return False

    def exited(self, rank: int) -> None:
        """The CTA of this rank has exited, with its shared memory."""
        self.arrays.alive[0] = int(self.arrays.alive[0]) & ~(1 << rank)
