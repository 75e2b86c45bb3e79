"""Kernels whose prepared launches are not what their functions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timed_kernels import correct
from torch import Tensor


def honest(**call: Any) -> dict[str, Tensor]:
    return correct(**call)


def idle(**call: Any) -> dict[str, Tensor]:
    """Correct; what it prepares does nothing, in no time."""
    return correct(**call)


def _repeats(**call: Any) -> Callable[[], dict[str, Tensor]]:
    return lambda: correct(**call)


def _does_nothing(**call: Any) -> Callable[[], None]:
    return lambda: None


honest.prepare = _repeats  # type: ignore[attr-defined]
idle.prepare = _does_nothing  # type: ignore[attr-defined]
