# SPDX-License-Identifier: Apache-2.0
"""D of a micro-kernel of wgmma by the reference model of the sums."""

from __future__ import annotations

import numpy as np

from gdnbench.sim.tensorcore import reference
from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product
from tests.sim.silicon.wgmma import Case, Operands


def flipped(codes: np.ndarray) -> np.ndarray:
    return codes ^ codes.dtype.type(1 << 8 * codes.dtype.itemsize - 1)


def expected(case: Case, operands: Operands) -> np.ndarray:
    """The sums of the reference model, which tests/sim/tensorcore compares with exact rationals; where
    elements lie is this folder's and the micro-kernels' own account."""
    product = Product(FORMATS[case.a], FORMATS[case.b], case.d, case.k, "wgmma")
    a = flipped(operands.a) if case.negate_a else operands.a
    b = flipped(operands.b) if case.negate_b else operands.b
    d = operands.c if case.accumulate else None
    for step in range(case.repeats):
        d = reference.multiply(product, "hardware", a, b, d if case.accumulate or step == 0 else None)
    assert d is not None
    return d
