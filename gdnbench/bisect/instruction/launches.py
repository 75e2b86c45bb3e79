# SPDX-License-Identifier: Apache-2.0
"""Finds the first launch whose results differ between the two versions, and its worst element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdnbench.diff.traces.rounding import SUM_GROWTH, precision, ulp

_FORMATS = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
ROUNDED = 2
"""ULPs between two roundings of sums that differ by less than their format resolves: one each."""


@dataclass(frozen=True, slots=True)
class LaunchDifference:
    """A launch whose results differ in bits. `place` is the worst element of `tensor`, `inputs` by how much
    earlier launches' results differ, of their largest value. `beyond`: by more than rounding explains, or
    than is tolerated."""

    launch: int
    entry: str
    tensor: str
    place: tuple[int, ...]
    good: float
    bad: float
    inputs: float
    beyond: bool


ENTRY = 32
"""Characters of an entry's name that are shown."""


def kernel_name(entry: str) -> str:
    """An entry as CuTe DSL mangles it, as far as a line has room for it."""
    start = entry.removeprefix("kernel_cutlass_").removeprefix("kernel_").lstrip("_")
    return start if len(start) <= ENTRY else f"{start[:ENTRY]}..."


class OtherLaunches(Exception):
    """The versions do not launch the same grids: in words."""


def differences(
    good: Sequence[Mapping[str, Any]],
    bad: Sequence[Mapping[str, Any]],
    folders: tuple[Path, Path],
    tolerance: tuple[float, float] | None,
) -> Iterator[LaunchDifference]:
    """Launches of two surveys whose results differ, in order. OtherLaunches where they cannot be compared any
    more."""
    inputs = 0.0
    for number, (one, other) in enumerate(zip(good, bad, strict=False)):
        if one["grid"] != other["grid"]:
            raise OtherLaunches(
                f"launch {number + 1} is {_called(one)} in the good version, {_called(other)} in the bad one"
            )
        kept = [torch.load(folder / f"{number}.pt") for folder in folders]
        worst: LaunchDifference | None = None
        ratio, spread = 0.0, 0.0
        for tensor in dict.fromkeys([*kept[0], *kept[1]]):
            if any(tensor not in side for side in kept):
                there, lacking = ("good", "bad") if tensor in kept[0] else ("bad", "good")
                raise OtherLaunches(
                    f"launch {number + 1}, {kernel_name(one['entry'])}, writes {tensor}"
                    f" in the {there} version and not in the {lacking} one"
                )
            found = _compare(kept[0][tensor], kept[1][tensor], inputs, tolerance)
            if found is None:
                continue
            place, x, y, over, relative = found
            spread = max(spread, relative)
            if worst is None or over > ratio:
                ratio = over
                worst = LaunchDifference(number, one["entry"], tensor, place, x, y, inputs, over > 1)
        if worst is not None:
            yield worst
        inputs = max(inputs, spread)
    if len(good) != len(bad):
        raise OtherLaunches(f"the good version makes {len(good)} launches, the bad one {len(bad)}")


def _called(launch: Mapping[str, Any]) -> str:
    return f"{kernel_name(launch['entry'])} with grid {tuple(launch['grid'])}"


def _compare(
    good: tuple[Tensor, Tensor],
    bad: tuple[Tensor, Tensor],
    inputs: float,
    tolerance: tuple[float, float] | None,
) -> tuple[tuple[int, ...], float, float, float, float] | None:
    """The worst element: place, both values, difference by bound, and the largest difference by the largest
    value. What neither version wrote does not count."""
    (x, changed), (y, also) = good, bad
    if x.shape != y.shape or x.dtype != y.dtype:
        raise OtherLaunches("the versions write tensors of other shapes or dtypes")
    written = (changed | also).numpy()
    a, b = x.double().numpy(), y.double().numpy()
    kind = _FORMATS.get(x.dtype)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | ~written
    if same.all():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        largest = np.where(written & np.isfinite(a), np.abs(a), 0.0)
        scale = largest.max(axis=-1, keepdims=True) if a.ndim else largest
        if tolerance is not None:
            bound = tolerance[0] + tolerance[1] * largest
        elif kind is None:
            bound = np.zeros_like(scale)
        else:
            ulps = ROUNDED if precision(kind) < precision("f32") else SUM_GROWTH
            bound = ulps * ulp(scale, kind) + SUM_GROWTH * inputs * scale
        over = apart / np.maximum(np.broadcast_to(bound, a.shape), np.finfo(np.float64).tiny)
    place = tuple(int(i) for i in np.unravel_index(int(over.argmax()), over.shape))
    finite = apart[np.isfinite(apart)].max(initial=0.0)
    relative = float(finite / largest.max()) if largest.any() else 0.0
    return place, float(a[place]), float(b[place]), float(over[place]), relative
