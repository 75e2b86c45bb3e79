# SPDX-License-Identifier: Apache-2.0
"""The options of timing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gdnbench.errors import BadInputError
from gdnbench.judge.rule import make_rule
from gdnbench.replay.replay import TIMEOUT
from gdnbench.timing.cuda_clocks import check_clock
from gdnbench.timing.types import Mode

RULE = make_rule(None, None, None, False)
"""By which outputs are judged before they are timed: the default one."""


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """BadInputError for numbers that mean nothing.

    precision: how narrow the interval of every ratio is to be, as a part of 1. seconds: of a record, after
    which it is not waited for. timeout: seconds that one kernel may take to be compiled and run. strict:
    blocks that other processes or the clocks disturb never count; else they do on a machine that is never
    quiet, and the result says how many. clock: one of
    `cuda_clocks.CLOCKS`, for the kernels and the ceiling alike.
    """

    mode: Mode = field(default_factory=Mode)
    seconds: float = 30.0
    precision: float = 0.01
    timeout: float = TIMEOUT
    strict: bool = False
    seed: int = 0
    clock: str = "auto"

    def __post_init__(self) -> None:
        for name in ("seconds", "timeout"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise BadInputError(f"{name} {value:g} must be a number of seconds above 0")
        if not 0 < self.precision < 1:
            raise BadInputError(f"precision {self.precision:g} must lie between 0 and 1, like 1% or 0.01")
        check_clock(self.clock)
