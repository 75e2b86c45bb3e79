"""v4_decode's kernels with numbers of splits that they do not choose for small calls, as kernels of a user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from gdnbench_kernels.v4_decode.contract import OPERATION
from gdnbench_kernels.v4_decode.sm100 import sm100


def _split(kernel: str, function: Any, **options: Any) -> Any:
    found: Any = partial(function, **options)
    found.conventions = OPERATION.kernels[kernel].conventions
    return found


sm100_unsplit = _split("sm100", sm100, splits=1, workers=1)
"""One CTA for each part: all tiles of a query, and all queries, one after the other."""
