"""Ranges of a tensor: what `Operation.ranges` is made of."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gdnbench_kernels.contract import Ranges


def extremes(name: str, label: str, values: Tensor, unit: str = "") -> Ranges | None:
    """The least and the largest of `values`, NaN if one of them is; None without any."""
    if not values.numel():
        return None
    wide = values.double()
    return Ranges(name, label, {"min": float(wide.min()), "max": float(wide.max())}, unit)


def sizes(name: str, label: str, values: Tensor) -> Ranges | None:
    """RMS and largest magnitude of `values`; None without any."""
    if not values.numel():
        return None
    wide = values.double()
    largest = float(wide.abs().max())
    return Ranges(name, label, {"rms": float(wide.square().mean().sqrt()), "max abs": largest})


def there(ranges: Iterable[Ranges | None]) -> tuple[Ranges, ...]:
    """Those that have a value."""
    return tuple(one for one in ranges if one is not None)
