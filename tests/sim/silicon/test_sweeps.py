# SPDX-License-Identifier: Apache-2.0
"""The special-function unit on all mantissas of whole octaves, by digest."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gdnbench.sim.interpreter.approx import FUNCTIONS
from gdnbench.sim.interpreter.mufu import tanh
from tests.sim.silicon.capture import Capture
from tests.sim.silicon.microkernel import Array
from tests.sim.silicon.replay import simulate
from tests.sim.silicon.sweeps import COUNT, SWEEPS, Sweep, digest

QUICK = (0x3F00_0000, 0x3F80_0000)  # [1/2, 1) and [1, 2); every function has one of them
MARKED = [
    pytest.param(sweep, marks=() if sweep.first in QUICK else pytest.mark.slow, id=sweep.name)
    for sweep in SWEEPS
]


@cache
def compiled(sweep: Sweep) -> Array:
    return simulate(sweep.kernel(), Capture({}), "compiled")["out"][0]


@pytest.mark.every(3)
@pytest.mark.parametrize("sweep", MARKED)
def test_the_compiled_engine_gives_what_the_gpu_gave(sweep: Sweep) -> None:
    assert digest(compiled(sweep)) == sweep.digest


@pytest.mark.parametrize("sweep", MARKED)
def test_the_interpreter_gives_the_same(sweep: Sweep) -> None:
    """Its function on whole arrays; how it gets there from PTX, other tests show. In the quick octaves every
    61st number, in the others all."""
    step = 61 if sweep.first in QUICK else 1
    bits = np.arange(sweep.first, sweep.first + COUNT, step, dtype=np.uint32)
    name = sweep.spelling.split(".")[0]
    function = tanh if name == "tanh" else FUNCTIONS[name][0]
    parts = [function(part) for part in np.array_split(bits, 8)]
    np.testing.assert_array_equal(np.concatenate(parts), compiled(sweep)[::step])
