"""The kernel named `sm90_fused` of gdn_prefill: one launch of `FusedSm90` (kernel_sm90_fused.py), for Hopper.

The host reads nothing back from the device and no shape depends on values.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.delta_prefill.chunked import PrefillTensors
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    FLOAT32,
    Outputs,
    check_ctas,
    check_inputs,
    contiguous_aligned,
    refuse,
)
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import Tuning
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS, check_slices, sm90_source
from gdnbench_kernels.gpu import SM90, capability_of, multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.validate import dtype_name


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm90_fused(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    slices: int = 2,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    `slices` is the number of CTAs that divide the V rows of a value head, 1 or 2. It changes no bits. The
    other arguments are those of `sm100` without stages. Raises NotImplementedError for a call that the kernel
    does not support or for another GPU, ValueError for an invalid call.
    """
    refuse(params)
    check_slices(slices)
    return launch_sm90(params, TUNINGS[slices], o, final_state)


def launch_sm90(
    params: PrefillTensors,
    tuning: Tuning,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    ctas: int | None = None,
) -> dict[str, Tensor]:
    """The outputs of a call by one launch of `ctas` CTAs; None: at most one for each SM."""
    check_inputs(params)
    q, k, v = params.q, params.k, params.v
    if capability_of(v.device) is not None:
        programs.arch_of(v.device, (SM90,), "this kernel of gdn_prefill")
    g, beta, cu_seqlens = params.g, params.beta, params.cu_seqlens
    heads, value_heads, sequences = k.shape[1], v.shape[1], len(cu_seqlens) - 1
    works = sequences * value_heads * tuning.slices
    check_ctas(sequences, value_heads * tuning.slices)
    outputs = Outputs.allocate(params, o, final_state)
    first = None if params.initial_state is None else contiguous_aligned(params.initial_state)
    final = outputs.final_state
    if len(v):
        g, beta = g.to(FLOAT32), beta.to(FLOAT32)
        q, k, v, g, beta, cu_seqlens = map(contiguous_aligned, (q, k, v, g, beta, cu_seqlens))
        dtypes = (None if state is None else dtype_name(state.dtype) for state in (first, final))
        launch = programs.compiled(SM90, sm90_source, heads, value_heads, *dtypes, params.beta_max, tuning)
        scale = default_scale(params.scale, HEAD_DIM)
        count = min(multiprocessors(v.device, SM90), works) if ctas is None else ctas
        launch(q, k, v, g, beta, cu_seqlens, first, outputs.o, final, scale, count)
    else:  # a tensor map needs tokens; without them the states do not change
        outputs.leave_states(first)
    return outputs.finish()
