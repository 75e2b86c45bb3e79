"""The kernel named `sm100_fused` of kda_prefill: one launch, without intermediates in global memory.

The host reads nothing back from the device and no shape depends on values, so a call can be captured in a
CUDA graph after a first call has loaded the program.
"""

from __future__ import annotations

from torch import Tensor

from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    FLOAT32,
    Outputs,
    check_ctas,
    check_inputs,
    compiled,
    contiguous_aligned,
    refuse_sizes,
)
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.kda_prefill.sources import fused_source
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.validate import dtype_name

CONVERTED = ("A_log", "dt_bias", "lower_bound", "gate", "beta_form", "state_layout", "qk")
"""Arguments of conventions that the kernel does not take."""


@takes_params(KdaPrefillParams, without=(*CONVERTED, "chunk_size"))
def sm100_fused(
    params: KdaPrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    g is log-space and beta the step size, both float32; other floating dtypes are converted. The kernel has
    chunks of 64 tokens whatever the call's chunk_size, which only stages show. Raises NotImplementedError for
    sizes and dtypes that the kernel does not take, ValueError for what no kernel takes.
    """
    refuse_sizes(params)
    check_inputs(params, by_channel=True)
    q, k, v = params.q, params.k, params.v
    g, beta, cu_seqlens = params.g, params.beta, params.cu_seqlens
    heads, value_heads, sequences = k.shape[1], v.shape[1], len(cu_seqlens) - 1
    check_ctas(sequences, value_heads)
    outputs = Outputs.allocate(params, o, final_state)
    first = None if params.initial_state is None else contiguous_aligned(params.initial_state)
    final = outputs.final_state
    if len(v):
        g, beta = g.to(FLOAT32), beta.to(FLOAT32)
        q, k, v, g, beta, cu_seqlens = map(contiguous_aligned, (q, k, v, g, beta, cu_seqlens))
        dtypes = (None if state is None else dtype_name(state.dtype) for state in (first, final))
        launch = compiled(v.device, fused_source, heads, value_heads, *dtypes, params.beta_max)
        launch(q, k, v, g, beta, cu_seqlens, first, outputs.o, final, default_scale(params.scale, HEAD_DIM))
    else:  # a tensor map needs tokens; without them the states do not change
        outputs.leave_states(first)
    return outputs.finish()
