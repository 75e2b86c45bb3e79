# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill's context-parallel kernel with segments so short that small calls are cut, as kernels of a
user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp


def _cut(segment: int) -> Any:
    kernel: Any = partial(sm100_fused_cp, segment=segment)
    kernel.conventions = OPERATION.kernels["sm100_fused_cp"].conventions
    return kernel


cut_at_64, cut_at_128 = map(_cut, (64, 128))
