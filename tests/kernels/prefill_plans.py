# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill's context-parallel kernels with segments so short that small calls are cut, and the kernel for
Hopper with all rows of a state in a CTA, as kernels of a user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from gdnbench_kernels.gdn_prefill.contract import OPERATION
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.sm90_cp import sm90_fused_cp, sm90_prepared
from gdnbench_kernels.gdn_prefill.sm90_fused import sm90_fused


def _kernel(name: str, function: Any, **options: int) -> Any:
    kernel: Any = partial(function, **options)
    kernel.conventions = OPERATION.kernels[name].conventions
    return kernel


cut_at_64, cut_at_128 = (_kernel("sm100_fused_cp", sm100_fused_cp, segment=segment) for segment in (64, 128))
sm90_cut_at_64 = _kernel("sm90_fused_cp", sm90_fused_cp, segment=64)
sm90_wide = _kernel("sm90_fused", sm90_fused, slices=1)
sm90_wide_cut_at_64 = _kernel("sm90_fused_cp", sm90_fused_cp, segment=64, slices=1)
sm90_prepared_wide = _kernel("sm90_prepared", sm90_prepared, slices=1)
sm90_prepared_cut_at_64 = _kernel("sm90_prepared", sm90_prepared, segment=64)
