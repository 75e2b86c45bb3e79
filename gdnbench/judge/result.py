"""The result of comparing one tensor, small enough to keep for every tensor of every record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from gdnbench.judge.grid import Grid
from gdnbench.judge.location import NO_SEQUENCE
from gdnbench.judge.metrics import Comparison, Errors, NonFinite, Worst
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
    """Errors of one (sequence, chunk) and head."""

    sequence: int
    chunk: int | None
    head: int
    errors: Errors


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

    @property
    def over(self) -> bool:
        return not self.error <= self.limit

    @property
    def ratio(self) -> float:
        """error / limit: over 1 exactly if `over`."""
        if self.limit > 0:
            return self.error / self.limit if self.error == self.error else float("inf")
        return float("inf") if self.over else 0.0


@dataclass(frozen=True, slots=True)
class TensorResult:
    """The judged tensor. `reasons` is empty exactly if it passes; `groups` holds the worst ones by RMS."""

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
    held: tuple[LimitCheck, ...] = ()  # each limit of a bound, exceeded or not
    grid: Grid | None = field(default=None, compare=False)  # errors by chunk and head, if requested

    @property
    def passed(self) -> bool:
        return not self.reasons


def worst_groups(comparison: Comparison, count: int = WORST_GROUPS) -> tuple[GroupErrors, ...]:
    """The `count` (sequence, chunk, head) with the largest rms(x - y) above zero, largest first.

    Empty for a tensor that belongs to no sequence.
    """
    groups = comparison.groups
    rms = groups.rms()
    found = []
    for flat in np.argsort(-rms, axis=None, kind="stable")[:count]:
        region, head = (int(i) for i in np.unravel_index(flat, rms.shape))
        owner = groups.regions[region]
        if rms[region, head] > 0 and owner.sequence != NO_SEQUENCE:
            found.append(GroupErrors(owner.sequence, owner.chunk, head, groups.errors(region, head)))
    return tuple(found)
