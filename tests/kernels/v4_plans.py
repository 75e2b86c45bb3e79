# SPDX-License-Identifier: Apache-2.0
"""v4_decode's kernels with numbers of splits that they do not choose for small calls, as kernels of a
user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from gdnbench_kernels.v4_decode.contract import SERVED
from gdnbench_kernels.v4_decode.portable import portable
from gdnbench_kernels.v4_decode.sm100 import sm100
from gdnbench_kernels.v4_decode.wgmma import wgmma


def _split(function: Any, splits: int, **options: Any) -> Any:
    kernel: Any = partial(function, splits=splits, **options)
    kernel.conventions = SERVED
    return kernel


unsplit, in_2, in_5 = (_split(portable, splits) for splits in (1, 2, 5))
sm100_unsplit = _split(sm100, 1, parts=1, workers=2)
wgmma_unsplit = _split(wgmma, 1, workers=2)
"""Two CTAs, each with all tiles of half of the queries, one after the other."""
wgmma_in_2 = _split(wgmma, 2, workers=2)
