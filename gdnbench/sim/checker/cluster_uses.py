# SPDX-License-Identifier: Apache-2.0
"""Uses of another CTA's shared memory in a cluster: that CTA must have started, and must not exit before.

The CUDA programming guide ("Distributed Shared Memory") asks for both. A CTA is known to have started once
something that it released, or its arrival at barrier.cluster, was acquired. It may exit once one of its warps
is ordered after the use. The arrivals of two commits of one thread have no order (PTX ISA 9.1, 9.7.16.6.2): a
wait for the later one orders nothing after the earlier one's.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from gdnbench.sim.checker.cta_state import CtaState
from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.findings import Findings
from gdnbench.sim.checker.happens_before import Verdict
from gdnbench.sim.checker.lane_shadow import LaneNumbers
from gdnbench.sim.checker.lanes import MANY
from gdnbench.sim.checker.shadow import Cells
from gdnbench.sim.machine.cluster import Cluster
from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE
from gdnbench.sim.machine.observer import Checker
from gdnbench.sim.machine.shared_memory import rank_of

START = "a CTA's start"
EXIT = "a CTA's exit"
"""The causes of findings about uses that nothing orders after the start, or before the exit, of the CTA whose
shared memory they use."""


class _Use(NamedTuple):
    """A use of a CTA's shared memory by these lanes of another one's warp. Implements
    `vector_clocks.LanePairs`, with the CTA's exit for the later access."""

    event: Event
    address: int
    lanes: tuple[int, ...]

    def same_lane(self) -> bool:
        return False

    def lane_pairs(self) -> list[tuple[int, int]]:
        return [(lane, MANY) for lane in self.lanes]


class ClusterUses:
    """The latest uses of each CTA's shared memory by warps of others, by warp and instruction."""

    def __init__(self, detector: CtaState, cluster: Cluster) -> None:
        self._detector = detector
        self._warps = detector.warps // cluster.size  # of each CTA
        self._uses: list[dict[tuple[int, int], _Use]] = [{} for _ in range(cluster.size)]

    def check_cells(self, cells: Cells, event: Event, lanes: LaneNumbers | None) -> None:
        """An access to cells of shared memory, each by its lane if there are several."""
        size = self._detector.cell_bytes["shared"]
        by_cta = CLUSTER_STRIDE // size
        own = event.warp // self._warps
        first, last = int(cells.min()) // by_cta, int(cells.max()) // by_cta
        if first == last == own:
            return
        ranks = cells // by_cta
        for rank in np.unique(ranks).tolist():
            here = ranks == rank
            by = np.unique(event.lane if lanes is None else lanes if isinstance(lanes, int) else lanes[here])
            self._check(rank, _Use(event, int(cells[here].min()) * size, tuple(by.tolist())))

    def check_mbarrier(self, address: int, event: Event) -> None:
        """A use of the mbarrier at `address`."""
        self._check(rank_of(address), _Use(event, address, (event.lane,)))

    def _check(self, rank: int, use: _Use) -> None:
        event = use.event
        if rank == event.warp // self._warps or rank >= len(self._uses):
            return
        self._uses[rank][event.warp, event.ins.pc] = use
        if not self._detector.warp_clocks[event.warp].all_lanes.started >> rank & 1:
            missing = f"barrier.cluster before it: the CTA of rank {rank} may not have started"
            self._detector.findings.add_single(START, Verdict.ERROR, missing, event, "shared", use.address)

    def end_cta(self, rank: int) -> None:
        """The CTA of `rank` has ended."""
        detector = self._detector
        own = detector.warp_clocks[rank * self._warps : (rank + 1) * self._warps]
        for use in self._uses[rank].values():
            if not any(clocks.ordered_after(use.event, use) for clocks in own):
                missing = f"barrier.cluster after it: the CTA of rank {rank} may have exited"
                detector.findings.add_single(EXIT, Verdict.ERROR, missing, use.event, "shared", use.address)
        self._uses[rank].clear()


class _Detector(Checker, Protocol):
    """The detector of a cluster."""

    findings: Findings

    def end_member(self, rank: int) -> None: ...


class ClusterMember:
    """The checker of one CTA of a cluster: passes everything on to the detector of the cluster; implements
    `machine.observer.Checker`."""

    def __init__(self, detector: _Detector, rank: int) -> None:
        self._detector = detector
        self._rank = rank
        self.findings = detector.findings
        self.on_accesses = detector.on_accesses
        self.on_warp_collective = detector.on_warp_collective
        self.before_instruction = detector.before_instruction
        self.after_instruction = detector.after_instruction
        self.on_register_use = detector.on_register_use
        self.on_submit = detector.on_submit
        self.before_landing = detector.before_landing

    def on_warp_exit(self, warp: int) -> None:
        """See `Checker`."""

    def on_hang(self) -> None:
        """See `Checker`. The cluster hangs as a whole."""
        if not self._rank:
            self._detector.on_hang()

    def on_cta_end(self) -> None:
        """See `Checker`."""
        self._detector.end_member(self._rank)
