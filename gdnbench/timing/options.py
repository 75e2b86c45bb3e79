"""How kernels are to be timed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gdnbench.errors import BadInputError
from gdnbench.replay.replay import TIMEOUT
from gdnbench.timing.seam import Mode


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """BadInputError for numbers that mean nothing.

    precision: how narrow the interval of every ratio is to be, as a part of 1. seconds: of a record, after
    which it is not waited for. timeout: seconds that one kernel may take to be compiled and run. busy: blocks
    count although other processes or the clocks disturb them, and the result says how many.
    """

    mode: Mode = field(default_factory=Mode)
    seconds: float = 30.0
    precision: float = 0.01
    timeout: float = TIMEOUT
    busy: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seconds", "timeout"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise BadInputError(f"{name} {value:g} must be a number of seconds above 0")
        if not 0 < self.precision < 1:
            raise BadInputError(f"precision {self.precision:g} must lie between 0 and 1, like 1% or 0.01")
