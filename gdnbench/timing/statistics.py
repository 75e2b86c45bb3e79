"""Medians, the interval of a ratio of times, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Summary:
    """Of samples: median and quartiles, in their unit."""

    count: int
    median: float
    lower: float  # quartile
    upper: float  # quartile


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a ratio of two kernels' times lies, with `confidence`."""

    ratio: float
    low: float
    high: float
    confidence: float
    groups: int  # independent groups of blocks that it rests on
    by: str  # what a group is: "placement" or "run"

    @property
    def width(self) -> float:
        """As a part of the ratio's lower end."""
        return self.high / self.low - 1


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    UNKNOWN = "unknown"  # too few blocks to say anything
