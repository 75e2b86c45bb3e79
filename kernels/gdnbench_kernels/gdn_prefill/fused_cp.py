"""The kernel named `sm100_fused_cp` of gdn_prefill: the fused kernel over segments of the sequences.

    segment_table   cu_seqlens                             -> the segments
    chunk_transfer  k, v, g, beta, initial state           -> B and M of each segment
    segment_scan    B, M                                   -> the state before each segment
    chunk_segments  q, k, v, g, beta, states               -> o, final state

So one long sequence with few heads occupies all SMs, for three times the work. The host reads nothing back
from the device and no shape depends on values. A sequence is cut at multiples of the segment's tokens, so its
bits depend neither on its batch nor on the device. A sequence of one segment has the bits of `sm100_fused`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.fused import launch_fused
from gdnbench_kernels.gdn_prefill.launch_args import (
    FLOAT32,
    INT32,
    Outputs,
    check_count,
    check_ctas,
    check_inputs,
    compiled,
    contiguous_aligned,
    ctas_of,
    refuse,
)
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.segment_sources import (
    SEGMENT,
    check_segment,
    scan_source,
    segment_table_source,
    segments_source,
    transfer_source,
)
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import fused_source
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.validate import dtype_name

STRIPS = 16
"""CTAs of `segment_scan` for each state."""


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm100_fused_cp(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    segment: int = SEGMENT,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    `segment` is the number of tokens of a segment, a multiple of 64. The other arguments are those of `sm100`
    without stages. A call of no more tokens than a segment has is one of `sm100_fused`.
    """
    refuse(params)
    check_segment(segment)
    tokens = len(params.v)
    if tokens <= segment:
        return launch_fused(params, fused_source, o, final_state)
    check_inputs(params)
    heads, value_heads, device = params.k.shape[1], params.v.shape[1], params.v.device
    sequences = len(params.cu_seqlens) - 1
    bound = segment_bound(tokens, sequences, segment)
    check_ctas(max(bound, STRIPS * sequences), value_heads)
    outputs = Outputs.allocate(params, o, final_state)
    first = None if params.initial_state is None else contiguous_aligned(params.initial_state)
    final = outputs.final_state
    states = (bound, value_heads, HEAD_DIM, HEAD_DIM)
    check_count("initial_state", states)
    firsts, maps = (torch.empty(states, dtype=FLOAT32, device=device) for _ in range(2))
    gates = (params.g.to(FLOAT32), params.beta.to(FLOAT32))
    q, k, v, g, beta, cu_seqlens = map(
        contiguous_aligned, (params.q, params.k, params.v, *gates, params.cu_seqlens)
    )
    table = tuple(
        torch.empty(shape, dtype=INT32, device=device) for shape in ((sequences + 1,), (bound, 2), (1,))
    )
    of_first, of_final = (None if state is None else dtype_name(state.dtype) for state in (first, final))
    beta_max = params.beta_max
    compiled(device, segment_table_source, segment)(cu_seqlens, *table)
    transfer = compiled(device, transfer_source, heads, value_heads, of_first, beta_max)
    transfer(k, v, g, beta, cu_seqlens, *table, first, firsts, maps, segment)
    compiled(device, scan_source, value_heads)(table[0], maps, firsts)
    segments = compiled(device, segments_source, heads, value_heads, of_first, of_final, beta_max)
    scale, ctas = default_scale(params.scale, HEAD_DIM), ctas_of(bound * value_heads, device)
    segments(q, k, v, g, beta, cu_seqlens, *table, first, firsts, outputs.o, final, scale, segment, ctas)
    return outputs.finish()
