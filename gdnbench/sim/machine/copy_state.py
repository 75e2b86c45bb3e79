# SPDX-License-Identifier: Apache-2.0
"""The state of a CTA's asynchronous copies: those in flight, by warp, and their groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.bulk_groups import BulkGroups
from gdnbench.sim.machine.engine_interface import LANES, Lanes, Warp


@dataclass(slots=True, eq=False)
class CopyInFlight:
    """One warp's cp.async in flight, with its group in each lane."""

    operation: AsyncOperation
    lanes: Lanes
    group: npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class ThreadCopies:
    """The cp.async of one warp: the number of each lane's open group, and the copies in flight."""

    group: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(LANES, np.int64))
    flying: list[CopyInFlight] = field(default_factory=list)

    def prune(self) -> None:
        """Remove copies that have landed."""
        self.flying = [copy for copy in self.flying if not copy.operation.landed]


class CopyState:
    """Groups of asynchronous copies of one CTA, by warp."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadCopies] = {}
        self._bulk: dict[int, BulkGroups] = {}

    def threads(self, warp: Warp) -> ThreadCopies:
        return self._threads.setdefault(warp.index, ThreadCopies())

    def bulk(self, warp: Warp) -> BulkGroups:
        return self._bulk.setdefault(warp.index, BulkGroups())
