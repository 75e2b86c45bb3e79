"""The kernel named `sm100_fused` of gdn_prefill: one launch, without intermediates in global memory.

`kernel_sm100_fused.py` needs no chunk tables and no workspace: every CTA processes one sequence. As in
`sm100`, the host reads nothing back from the device and no shape depends on values.
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
    refuse,
)
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import fused_source
from gdnbench_kernels.validate import dtype_name


def sm100_fused(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    o: Tensor | None = None,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    scale: float | None = None,
    chunk_size: int = CHUNK,
    output_final_state: bool = True,
    final_state_dtype: str | None = None,
    beta_max: float = 1.0,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    The arguments are those of `sm100` without stages.
    """
    refuse(q, k, v, chunk_size, beta_max)
    check_inputs(q, k, v, g, beta, cu_seqlens, initial_state)
    heads, value_heads, sequences = k.shape[1], v.shape[1], len(cu_seqlens) - 1
    check_ctas(sequences, value_heads)
    outputs = Outputs.allocate(
        v, initial_state, o, final_state, output_final_state, final_state_dtype, sequences
    )
    first = None if initial_state is None else contiguous_aligned(initial_state)
    final = outputs.final_state
    if len(v):
        g, beta = g.to(FLOAT32), beta.to(FLOAT32)
        q, k, v, g, beta, cu_seqlens = map(contiguous_aligned, (q, k, v, g, beta, cu_seqlens))
        dtypes = (None if state is None else dtype_name(state.dtype) for state in (first, final))
        launch = compiled(v.device, fused_source, heads, value_heads, *dtypes, beta_max)
        launch(q, k, v, g, beta, cu_seqlens, first, outputs.o, final, default_scale(scale, HEAD_DIM))
    else:  # a tensor map needs tokens; without them the states do not change
        outputs.leave_states(first)
    return outputs.finish()
