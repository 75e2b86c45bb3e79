# SPDX-License-Identifier: Apache-2.0
"""The questions of `corners.py` asked of wgmma: the tile is the first 16 rows of A and D."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gdnbench.sim.tensorcore.formats import FORMATS
from gdnbench.sim.tensorcore.product import Product
from tests.sim.silicon.corners import tile
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.wgmma import TYPES, Case, M, Operands, kernel


def asked(case: Case) -> MicroKernel:
    a, b, c = tile(Product(FORMATS[case.a], FORMATS[case.b], case.d, case.k, "wgmma"))
    below = ((0, M - len(a)), (0, 0))
    return kernel(case, Operands(np.pad(a, below), b, np.pad(c, below)), f"corners_{case.name}")


KERNELS: tuple[Callable[[], MicroKernel], ...] = tuple(
    partial(asked, Case(*types, n=16)) for types in TYPES if types[1] not in ("e4m3", "e5m2")
)
