# SPDX-License-Identifier: Apache-2.0
"""The result of comparing one tensor, small enough to keep for every tensor of every record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from gdnbench.judge.grid import Grid
from gdnbench.judge.location import NO_SEQUENCE
from gdnbench.judge.metrics import Comparison, Errors, NonFinite, Worst
from gdnbench.printable import printable
from gdnbench.record import When

WORST_GROUPS = 5


class Side(StrEnum):
    """Which tensor a result is about."""

    KERNEL = "kernel"  # the kernel under test, against the oracle or the tensor that it must equal
    AGAINST = "against"  # the tensor that it is compared with, against the oracle
    DIFFERENCE = "difference"  # one against the other
    CONVERSION = "conversion"  # the exact result of what the kernel was handed, against the recorded one


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Errors of one (sequence, chunk) and head; `nonfinite` elements are NaN or infinite on one side only."""

    sequence: int
    chunk: int | None
    head: int
    errors: Errors
    nonfinite: int = 0


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """An error and its limit, of the whole tensor or of a (sequence, chunk, head).

    The group is the one that comes closest to its limit or exceeds it most.
    """

    what: str
    error: float
    limit: float
    sequence: int | None = None
    chunk: int | None = None
    head: int | None = None
    token: int | None = None

    @property
    def over(self) -> bool:
        return not self.error <= self.limit

    @property
    def ratio(self) -> float:
        """error / limit: over 1 exactly if `over`."""
        if self.limit > 0:
            return self.error / self.limit if self.error == self.error else float("inf")
        return float("inf") if self.over else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class TensorResult:
    """The judged tensor. `reasons` is empty exactly if it passes; `groups` holds the worst ones, see
    `worst_groups`."""

    tensor: str
    when: When
    side: Side
    dtype: str
    shape: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    elements: int = 0
    unequal: int = 0
    errors: Errors | None = None  # None: the tensors could not be compared
    yardstick: Errors | None = None  # of the same-dtype torch kernel against the oracle
    nonfinite: NonFinite | None = None
    excluded: int = 0  # elements that only the yardstick failed to compute
    ulp_histogram: tuple[int, ...] = ()
    worst: Worst | None = None
    groups: tuple[GroupErrors, ...] = field(default=())
    judged: bool = True  # False: shown only; does not affect the outcome
    stage: bool = False  # an intermediate result, not an output
    held: tuple[LimitCheck, ...] = ()  # each limit of a bound or tolerance, exceeded or not
    bitwise: bool = False  # judged by equal bits, which is a limit without a size
    grid: Grid | None = field(default=None, compare=False)  # errors by chunk and head, if requested

    @property
    def passed(self) -> bool:
        return not self.reasons

    @property
    def of_limit(self) -> float | None:
        """The largest error / limit: over 1 where a limit is exceeded. None where no limit is above 0."""
        return max((check.ratio for check in self.held if check.limit > 0), default=None)

    def __repr__(self) -> str:
        verdict = "shown" if not self.judged else "pass" if self.passed else self.reasons[0]
        return printable(f"<TensorResult {self.tensor} {self.side}: {verdict}>")


def worst_groups(
    comparison: Comparison, ratios: np.ndarray | None = None, count: int = WORST_GROUPS
) -> tuple[GroupErrors, ...]:
    """The `count` (sequence, chunk, head) that are furthest off, worst first: those with elements that are
    NaN or infinite on one side only, then those with the largest `ratios` of error to limit, [regions,
    heads]. Without `ratios`, which not every rule has, those with the largest rms(x - y).

    Empty for a tensor that belongs to no sequence.
    """
    groups = comparison.groups
    rms, nonfinite = groups.rms(), groups.nonfinite()
    ranks = np.where(nonfinite > 0, np.inf, rms if ratios is None else ratios)
    found = []
    for flat in np.argsort(-ranks, axis=None, kind="stable")[:count]:
        region, head = (int(i) for i in np.unravel_index(flat, rms.shape))
        owner, wrong = groups.regions[region], int(nonfinite[region, head])
        if (rms[region, head] > 0 or wrong) and owner.sequence != NO_SEQUENCE:
            errors = groups.errors(region, head)
            found.append(GroupErrors(owner.sequence, owner.chunk, head, errors, wrong))
    return tuple(found)
