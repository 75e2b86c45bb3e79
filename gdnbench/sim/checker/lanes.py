"""Lanes of a warp: how the checker numbers one lane, several lanes, and an unknown lane."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.machine.engine_interface import LANES, Lanes

MANY = LANES
"""Stands for a lane: more than one, or an instruction of which the lanes are each other's."""

UNSURE = LANES + 1
"""Stands for a lane: it is not known which."""

LaneSubset = tuple[int, ...] | None
"""Lanes of a warp that do something; None if all do."""


def subset_of(lanes: Lanes, existing: Lanes) -> LaneSubset:
    """These lanes of a warp that has the lanes `of`."""
    return None if lanes.tobytes() == existing.tobytes() else tuple(lanes.nonzero()[0].tolist())


def lanes_of(members: list[int]) -> Lanes:
    """Lanes by number."""
    lanes = np.zeros(LANES, np.bool_)
    lanes[members] = True
    return lanes


def lane_of(lanes: Lanes) -> int:
    """The lane, if it is one, else MANY."""
    first = int(lanes.argmax())
    return MANY if lanes[first + 1 :].any() else first
