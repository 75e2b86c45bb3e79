# SPDX-License-Identifier: Apache-2.0
"""A checker that keeps what engines tell it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.observer import Addresses, Checker, Masks
from gdnbench.sim.ptx.ir import Instruction

# (warp, letter, or pc and name, of the instruction, {lane: address})
Event = tuple[int, str, dict[int, int]]


# What stands for no access: one of no lanes.
NOTHING = np.zeros((1, 32), np.bool_), np.zeros((1, 32), np.uint64)


class Recording(Checker):
    """Keeps what it is told."""

    def __init__(self, letters: Mapping[int, str]) -> None:
        self.letters = letters  # by PTX line; others go by their pc
        self._told: list[tuple[int, str, Masks, Addresses]] = []

    @property
    def events(self) -> list[Event]:
        """Read off the arrays as they are now."""
        return [
            (warp, name, {int(lane): int(row[lane]) for lane in np.flatnonzero(mask)})
            for warp, name, masks, addresses in self._told
            for mask, row in zip(masks, addresses, strict=True)
        ]

    def on_accesses(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        assert masks.dtype == np.bool_
        assert addresses.dtype == np.uint64
        assert masks.shape == addresses.shape == (len(masks), 32)
        name = self.letters.get(ins.place.line, f"{ins.pc} {ins.name}")
        self._told.append((warp.index, name, masks, addresses))

    def on_warp_collective(self, warp: Warp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        name = self.letters.get(ins.place.line, f"{ins.pc} {ins.name}")
        self._told.append((warp.index, f"{name} of lanes", lanes[None], NOTHING[1]))

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        if previous is None:
            self._told.append((warp.index, ins.op, *NOTHING))

    def after_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        if not isinstance(results, Wait):
            self._told.append((warp.index, f"{ins.op} ends", *NOTHING))

    def on_warp_exit(self, warp: int) -> None:
        self._told.append((warp, "exited", *NOTHING))
