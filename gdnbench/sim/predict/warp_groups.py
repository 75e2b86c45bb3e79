# SPDX-License-Identifier: Apache-2.0
"""Names for the warps of a CTA: their role, and which warps of that role execute the same code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gdnbench.sim.predict.trace import Step

ALIKE = 0.5
"""Warps of a group have at least this part of their steps in common. The elected warp of a group has a few
more steps, while another group of the same role executes different code."""


def group_names(roles: Sequence[str], warps: Sequence[Sequence[Step]]) -> list[str]:
    """For each warp the name of its group, such as "warps 0-3 TMEM load"; warps without a step form one."""
    groups: list[tuple[str, Counter[int], list[int]]] = []
    for index, (role, steps) in enumerate(zip(roles, warps, strict=True)):
        executed = Counter(step.pc for step in steps)
        for name, first, members in groups:
            if name == role and _alike(first, executed):
                members.append(index)
                break
        else:
            groups.append((role, executed, [index]))
    found = [""] * len(roles)
    for role, _, members in groups:
        for index in members:
            found[index] = f"warp{'s' if len(members) > 1 else ''} {ranges(members)} {role}"
    return found


def _alike(one: Counter[int], other: Counter[int]) -> bool:
    return (one & other).total() >= ALIKE * (one | other).total()


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _runs(numbers))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = previous = numbers[0]
    for number in numbers[1:]:
        if number != previous + 1:
            yield first, previous
            first = number
        previous = number
    yield first, previous
