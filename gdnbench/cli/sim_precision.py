# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim FILE.py:function --precision fp64`: how much of each tensor is rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdnbench.cli.console import table
from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.sim import Fp64Shadows, LostShadows

SIM_PRECISION = (
    "Also compute every float in fp64, and print for each tensor how far its rounded numbers are from those."
    " The only value is fp64. The kernel is interpreted: 20 times slower."
)
FP64 = "fp64"
LOST_LINES = 10


def shadows_of(precision: str | None, **others: object) -> Fp64Shadows | None:
    """What to watch the launches with; None without a precision. BadInputError for another precision than
    fp64, and for options in `others`, by name, that it does not go with."""
    if precision is None:
        return None
    if precision != FP64:
        raise BadInputError(f"--precision {precision!r} does not exist; there is {FP64}")
    for name, value in others.items():
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(f"--precision {FP64} runs the kernel alone: omit {option}")
    from gdnbench.sim import Fp64Shadows

    return Fp64Shadows()


def roundings(shadows: Fp64Shadows, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """For each float tensor with shadows: the largest difference from its numbers in fp64, the largest of
    these, and how many elements have one."""
    found = []
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        numbers, shadowed = shadows.numbers(tensor)
        if not bool(shadowed.any()):
            continue
        difference = (tensor.double() - numbers).abs()
        finite = difference.isfinite() & numbers.isfinite()
        found.append(
            {
                "tensor": name,
                "rounding": float(difference[finite].max()) if bool(finite.any()) else 0.0,
                "largest": float(numbers[finite].abs().max()) if bool(finite.any()) else 0.0,
                "shadowed": int(shadowed.sum()),
                "elements": tensor.numel(),
            }
        )
    return found


def as_json(shadows: Fp64Shadows, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """`roundings`, and the constants and losses, as plain values."""
    return {
        "tensors": roundings(shadows, tensors),
        "constants": [{"f32": f32, "meant": meant} for f32, meant in shadows.constants.used.items()],
        "lost": [one.as_json() for one in shadows.losses()],
    }


def describe(shadows: Fp64Shadows, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """The same as lines, with the constants that were taken as others and what was lost."""
    rows = [
        (
            one["tensor"],
            f"{one['rounding'] / (one['largest'] or 1):.2e}",
            f"{100 * one['shadowed'] / one['elements']:.0f}%",
        )
        for one in roundings(shadows, tensors)
    ]
    if rows:
        yield table(("tensor", "rounding", "shadowed"), rows, right=("rounding", "shadowed"))
    yield from constants_and_losses(shadows.constants.used, shadows.losses())


def constants_and_losses(constants: Mapping[float, float], losses: Sequence[LostShadows]) -> Iterator[str]:
    """Lines about constants that stand for other numbers, and about shadows that were lost."""
    for f32, meant in constants.items():
        yield f"constant {f32:.9g} taken as {meant:.17g}"
    for lost in losses[:LOST_LINES]:
        yield f"{lost.count} values lost their fp64 number at {lost.instruction}, {lost.place}"
    if rest := losses[LOST_LINES:]:
        yield f"{sum(one.count for one in rest)} more at {len(rest)} other instructions"
