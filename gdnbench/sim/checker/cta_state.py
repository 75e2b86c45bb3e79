# SPDX-License-Identifier: Apache-2.0
"""The state of one CTA's race detector, as a Protocol for the modules that handle instructions, tensor memory
and the CTA's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.async_tokens import ProductTokens, WarpAsyncState
from gdnbench.sim.checker.earlier_launches import DependencyUse
from gdnbench.sim.checker.events import Event
from gdnbench.sim.checker.findings import Findings
from gdnbench.sim.checker.happens_before import Unordered
from gdnbench.sim.checker.lane_shadow import LaneNumbers, PriorLaneAccess
from gdnbench.sim.checker.launch_memory import CtaOrder
from gdnbench.sim.checker.mbarriers import Mbarrier
from gdnbench.sim.checker.named_barriers import Arrivals
from gdnbench.sim.checker.shadow import Cells, PriorAccess
from gdnbench.sim.checker.sync_variables import SyncVariables
from gdnbench.sim.checker.vector_clocks import ClockSet, LanePairs, WarpClocks
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.barrier_state import Round
from gdnbench.sim.machine.cluster import ClusterRound
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Warp
from gdnbench.sim.machine.footprint import Footprint
from gdnbench.sim.machine.wgmma_state import GroupProduct


@dataclass(frozen=True, slots=True)
class PendingSignal:
    """An asynchronous operation that will signal an mbarrier when it lands. `phase` is the mbarrier's phase
    at the issue, -1 if there is no mbarrier. `completes` are the tokens that it releases into the mbarrier,
    `clocks` the clocks at the issue. `arrivals` is the number of lanes that arrive by it, 0 where that does
    not matter."""

    event: Event
    phase: int
    completes: int
    clocks: ClockSet
    arrivals: int


class CtaState(CtaOrder, Protocol):
    """The state of one CTA's race detector, `cta_detector.CtaRaceDetector`, which documents its methods.
    `index` is that of the CTA, in a cluster of the first. `async_states` and `warp_clocks` are indexed by
    warp. `products` are the wgmma that not all warps of their warpgroup have issued. `shared_reads` are the
    asynchronous accesses to shared memory, reads and writes, by token."""

    findings: Findings
    warps: int
    warp_clocks: list[WarpClocks]
    async_states: list[WarpAsyncState]
    products: dict[GroupProduct, ProductTokens]
    mbarriers: dict[int, Mbarrier]
    mbarrier_cells: npt.NDArray[np.bool_]
    barrier_clocks: WeakKeyDictionary[Round | ClusterRound, ClockSet]
    barrier_arrivals: dict[tuple[int, int], Arrivals]
    cluster_waits: dict[tuple[int, bytes], list[ClusterRound]]
    sync_variables: SyncVariables
    open_rounds: dict[int, Round]
    pending_signals: dict[AsyncOperation, PendingSignal]
    shared_reads: dict[int, Event]
    dependency: DependencyUse

    @property
    def index(self) -> int: ...

    @property
    def cell_bytes(self) -> dict[str, int]: ...

    def cta_of(self, warp: Warp) -> Cta: ...

    def has_shared(self, address: int, size: int) -> bool: ...

    def record_access(
        self, space: str, cells: Cells, event: Event, lanes: LaneNumbers | None = None
    ) -> None: ...

    def check_pair(
        self,
        prior: PriorAccess | PriorLaneAccess,
        event: Event,
        order: Callable[[Event, LanePairs], Unordered | None],
        space: str,
    ) -> None: ...

    def record_footprint(self, where: Footprint, event: Event, lane: int) -> None: ...

    def use_mbarrier(self, address: int, event: Event) -> Mbarrier | None: ...

    def mbarrier_phase(self, address: int) -> int: ...

    def mbarrier_word(self, address: int) -> int: ...

    def arrival_phase(self, address: int, arrivals: int) -> int: ...
