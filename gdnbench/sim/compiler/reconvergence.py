# SPDX-License-Identifier: Apache-2.0
"""Reconvergence: groups of lanes that have reached a collective and wait for other lanes of their warp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gdnbench.sim.compiler.compiled_warp import CompiledWarp
from gdnbench.sim.compiler.layout import HEADER
from gdnbench.sim.compiler.runtime_calls import lanes_mask, mask_lanes
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import Lanes, Wait
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.ir import Instruction

_ALL = 0xFFFF_FFFF
_JOINING, _LIVE = HEADER["joining"] // 4, HEADER["live"] // 4


@dataclass(frozen=True, slots=True)
class Joining:
    """Lanes waiting at the collective `ins`, which begins `block`; `needed` are the live lanes in its
    mask."""

    ins: Instruction
    block: int
    lanes: Lanes
    needed: Lanes

    @property
    def missing(self) -> list[int]:
        lanes: list[int] = np.flatnonzero(self.needed & ~self.lanes).tolist()
        return lanes

    def wait(self) -> Wait:
        """The wait for messages; nothing outside the warp ends it."""
        return Wait(lambda: False, lambda: f"lanes {self.missing} of its warp to arrive")


def waiting_groups(warp: CompiledWarp) -> list[Joining]:
    """The waiting groups, by block."""
    joining = warp.cells[_JOINING]
    if not joining:
        return []
    waiting = mask_lanes(joining)
    live = mask_lanes(warp.cells[_LIVE])
    found = []
    for block in np.unique(warp.places[waiting]).tolist():
        lanes = waiting & (warp.places == block)
        mask = warp.engine.masks.get(block)
        named = mask_lanes(int(np.bitwise_or.reduce(mask(warp.state)[lanes]))) if mask else mask_lanes(_ALL)
        found.append(Joining(warp.engine.instruction(block), block, lanes, named & live))
    return found


def merge_groups(warp: CompiledWarp) -> bool:
    """Let lanes that wait in `bar.warp.sync` with one mask at different places continue together. True if
    some did."""
    here = [group for group in waiting_groups(warp) if group.ins.form.sync is Sync.WARP_BARRIER]
    for first in here:
        together = [group for group in here if np.array_equal(group.needed, first.needed)]
        arrived = np.logical_or.reduce([group.lanes for group in together])
        if (first.needed & ~arrived).any():
            continue
        warp.report_collective(first.ins, arrived)
        for group in together:
            mask = lanes_mask(group.lanes)
            warp.cells[_JOINING] &= _ALL ^ mask
            warp.complete(group.block, mask)
        return True
    return False


def divergence_fault(warp: CompiledWarp) -> KernelFault:
    """The fault when no lane of the warp can continue and none waits for the machine: the lowest group will
    wait for ever."""
    group = waiting_groups(warp)[0]
    return _fault(warp, group, f"lanes {group.missing}, which it needs, are elsewhere for good")


def check_left_alone(warp: CompiledWarp) -> None:
    """Raises KernelFault if threads exited instead of executing an `.aligned` instruction."""
    for group in waiting_groups(warp):
        aligned = group.ins.has("aligned") or group.block in warp.engine.services
        if aligned and not group.missing:
            raise _fault(warp, group, "the other lanes of the warp exited without it")


def _fault(warp: CompiledWarp, group: Joining, why: str) -> KernelFault:
    who = warp.cta.thread(warp.warp, group.lanes)
    return KernelFault(FaultKind.DIVERGENCE, f"{group.ins.name}: {why}", group.ins.place, who)
