# SPDX-License-Identifier: Apache-2.0
"""The special-function unit in fp32: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh and the quick divisions.

The stored vectors reach every exponent; sweeps.py has all mantissas of chosen octaves.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from tests.sim.silicon.elementwise import elementwise, op
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import U32, f32_one, f32_two, fill_up, random_u32

UNARY = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos")
FLUSH = (".ftz", "")


def useful_arguments(seed: int, count: int) -> U32:
    """Where these functions do something: +-[2^-12, 2^7)."""
    words = random_u32(seed, count)
    exponent = (np.uint32(115) + words % np.uint32(19)) << np.uint32(23)
    return (random_u32(seed + 1, count) & np.uint32(0x807FFFFF)) | exponent


def unary() -> MicroKernel:
    count = 8192
    inputs = fill_up(count, f32_one(51, count // 2), useful_arguments(52, count // 2)).astype(np.uint32)
    spellings = [f"{name}.approx{f}.f32" for name in UNARY for f in FLUSH]
    return elementwise("f32_approximate", (inputs,), [op(s) for s in (*spellings, "tanh.approx.f32")])


def quick_division() -> MicroKernel:
    inputs = f32_two(53, 4096)
    spellings = (f"div.{mode}{f}.f32" for mode, f in product(("approx", "full"), FLUSH))
    return elementwise("f32_quick_division", inputs, [op(s, sources=2) for s in spellings])


KERNELS: tuple[Callable[[], MicroKernel], ...] = (unary, quick_division)
