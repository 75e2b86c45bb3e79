# SPDX-License-Identifier: Apache-2.0
"""Lanes of a warp: how the checker numbers one lane, several lanes, and an unknown lane."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.machine.engine_interface import LANES, Lanes

MANY = LANES
"""In place of a lane number: several lanes, or an instruction that the warp executes as one."""

UNSURE = LANES + 1
"""In place of a lane number: one lane, and it is not known which."""

LaneSubset = tuple[int, ...] | None
"""The lanes of a warp that do something, by number; None if all its lanes do."""


def subset_of(lanes: Lanes, existing: Lanes) -> LaneSubset:
    """These lanes of a warp whose lanes are `existing`, as a `LaneSubset`."""
    return None if lanes.tobytes() == existing.tobytes() else tuple(lanes.nonzero()[0].tolist())


def lanes_of(members: list[int]) -> Lanes:
    """A mask of these lane numbers."""
    lanes = np.zeros(LANES, np.bool_)
    lanes[members] = True
    return lanes


def lane_of(lanes: Lanes) -> int:
    """The lane if the mask has one, else MANY."""
    first = int(lanes.argmax())
    return MANY if lanes[first + 1 :].any() else first
