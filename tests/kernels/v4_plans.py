"""`portable` of v4_decode with numbers of splits that it does not choose for small calls, as kernels of a
user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from gdnbench_kernels.v4_decode.contract import SERVED
from gdnbench_kernels.v4_decode.portable import portable


def _split(splits: int) -> Any:
    kernel: Any = partial(portable, splits=splits)
    kernel.conventions = SERVED
    return kernel


unsplit, in_2, in_5 = map(_split, (1, 2, 5))
