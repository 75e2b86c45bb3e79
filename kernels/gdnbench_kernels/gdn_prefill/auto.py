# SPDX-License-Identifier: Apache-2.0
"""The kernel named `sm100_auto` of gdn_prefill: that of `sm100`, `sm100_fused` and `sm100_fused_cp` which
`prefill_plan.py` expects to be fastest for the shapes of the call, with its segments or its cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.prefill_plan import FOUR, FUSED, SPLIT, plan_of
from gdnbench_kernels.gdn_prefill.sm100 import sm100
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import by_name, takes_params

KERNELS: dict[str, Callable[..., dict[str, Tensor]]] = {
    FOUR: sm100,
    FUSED: sm100_fused,
    SPLIT: sm100_fused_cp,
}


NOT_TAKEN = ("gate", "state_layout", "qk")


@takes_params(PrefillParams, without=NOT_TAKEN)
def sm100_auto(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    The arguments are those of `sm100` without stages. The bits of a sequence are those of the chosen kernel,
    so they depend on the shapes of its batch.
    """
    sequences, v = len(params.cu_seqlens) - 1, params.v
    plan = plan_of(len(v), max(1, sequences), v.shape[1], multiprocessors(v.device))
    chosen = {"segment": plan.segment, "cut": plan.cut}
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    call = {name: value for name, value in by_name(params).items() if name not in NOT_TAKEN}
    return KERNELS[plan.kernel](**call, o=o, final_state=final_state, **options)
