# SPDX-License-Identifier: Apache-2.0
"""Cluster launch control (work stealing), the grid's side: which running cluster cancels which pending one.

A cluster whose CTAs execute clusterlaunchcontrol.try_cancel may cancel a cluster of its own grid that has not
started, and do the work of that cluster itself (PTX ISA 9.0, "clusterlaunchcontrol.try_cancel"; CUDA
Programming Guide 13, 4.12). The hardware starts as many clusters as the GPU holds. No document specifies
which request gets which pending cluster, or in what order.

Here the schedule decides that before the launch. The GPU has one slot for each cluster that it holds, and
each slot a queue of clusters. The first one of a queue starts. Requests of the cluster that runs in a slot
cancel the others of its queue, in order. If it exits and some are left, because it made fewer requests or
one failed, the next one starts in the slot. What a cluster is granted then depends neither on the
engine nor on the number of threads, and slots run in parallel as CTAs without launch control do. Every such
run is one that a GPU could have: among clusters that do not wait for one another, requests that find nothing
pending may come after all others.

    late          clusters that do not fit are dealt to the slots in turn, in ascending order
    early         the first slot gets all of them
    random:SEED   each goes to a random slot, in random order, and some requests fail while clusters are
                  pending: no document promises success, and a kernel of higher priority may go first (4.12,
                  "Preemption")
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gdnbench.sim.machine.async_queue import Schedule
from gdnbench.sim.ptx.ir import Kernel

TRY_CANCEL = "clusterlaunchcontrol.try_cancel"
# Under `random`: how often a request fails although its slot has pending clusters.
REFUSAL_CHANCE = 1 / 16


def uses_launch_control(kernel: Kernel) -> bool:
    """Whether clusters of `kernel` may cancel others."""
    return any(ins.op == TRY_CANCEL for ins in kernel.instructions)


class ClusterGrants:
    """What one running cluster may cancel: the pending clusters of its slot, which it takes from the front.
    `granted` counts those that it has cancelled. `failure_seen` has the ranks of its CTAs that have read in a
    response that a request failed."""

    def __init__(self, pending: deque[int], chance: random.Random | None = None) -> None:
        self.granted = 0
        self.failure_seen: set[int] = set()
        self._pending = pending
        self._chance = chance
        self._failed = False

    def cancel(self) -> int | None:
        """Answer a request: the index of the cluster that it cancels, None if it fails. After a failure all
        further requests of the cluster fail."""
        refused = self._chance is not None and self._chance.random() < REFUSAL_CHANCE
        if self._failed or refused or not self._pending:
            self._failed = True
            return None
        self.granted += 1
        return self._pending.popleft()


class Slot:
    """The clusters of one slot in a run of the launch."""

    def __init__(self, queue: Sequence[int], chance: random.Random | None) -> None:
        self._pending = deque(queue)
        self._chance = chance

    def start(self) -> tuple[int, ClusterGrants] | None:
        """The index of the cluster that starts next and what it may cancel; None if none is left."""
        if not self._pending:
            return None
        return self._pending.popleft(), ClusterGrants(self._pending, self._chance)


@dataclass(frozen=True, slots=True)
class LaunchGrants:
    """The queue of each slot, as indices of clusters."""

    schedule: Schedule
    queues: tuple[tuple[int, ...], ...]

    @classmethod
    def plan(cls, clusters: int, slots: int, schedule: Schedule) -> LaunchGrants:
        """Distribute a grid of `clusters` over `slots`, of which only as many are used as there are
        clusters."""
        queues = [[index] for index in range(min(clusters, slots))]
        left = list(range(len(queues), clusters))
        if schedule.kind == "random":
            source = random.Random(f"{schedule.seed}:grants")
            source.shuffle(left)
            for index in left:
                source.choice(queues).append(index)
        else:
            for number, index in enumerate(left):
                queues[0 if schedule.kind == "early" else number % len(queues)].append(index)
        return cls(schedule, tuple(map(tuple, queues)))

    def slot(self, index: int) -> Slot:
        """The slot with this index, from its beginning."""
        seeded = self.schedule.kind == "random"
        return Slot(
            self.queues[index], random.Random(f"{self.schedule.seed}:slot {index}") if seeded else None
        )
