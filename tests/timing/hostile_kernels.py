# SPDX-License-Identifier: Apache-2.0
"""Kernels whose prepared launches are not what their functions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.timing.timed_kernels import correct


def honest(**call: Any) -> dict[str, Tensor]:
    return correct(**call)


def idle(**call: Any) -> dict[str, Tensor]:
    """Correct; what it prepares does nothing, in no time."""
    return correct(**call)


def _repeats(**call: Any) -> Callable[[], dict[str, Tensor]]:
    return lambda: correct(**call)


def _does_nothing(**call: Any) -> Callable[[], None]:
    return lambda: None


class _ReadsFreed:
    """Launches as a graph's are that has addresses of freed tables: those of one placement, the third, take
    another slot. They are told apart by the arena that their state lies in."""

    def __init__(self) -> None:
        self.arenas: list[int] = []

    def __call__(self, **call: Any) -> Callable[[], dict[str, Tensor]]:
        arena = call["state"].untyped_storage().data_ptr()
        if arena not in self.arenas:
            self.arenas.append(arena)
        if self.arenas.index(arena) == 2:
            call["state_indices"] = call["state_indices"].flip(0)
        return lambda: correct(**call)


def strays(**call: Any) -> dict[str, Tensor]:
    return correct(**call)


def wavers(**call: Any) -> dict[str, Tensor]:
    """Correct but for last bits of the states, other ones each time, as of sums in any order."""
    results = correct(**call)
    bits = call["state"].view(torch.int32)
    bits ^= torch.randint(0, 2, bits.shape, dtype=torch.int32)
    return results


strays.prepare = _ReadsFreed()  # type: ignore[attr-defined]
honest.prepare = _repeats  # type: ignore[attr-defined]
idle.prepare = _does_nothing  # type: ignore[attr-defined]
