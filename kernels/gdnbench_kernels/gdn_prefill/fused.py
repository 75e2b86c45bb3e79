"""The kernel named `sm100_fused` of gdn_prefill: one launch, without intermediates in global memory.

`kernel_sm100_fused.py` needs no chunk tables and no workspace: every CTA processes one sequence. As in
`sm100`, the host reads nothing back from the device and no shape depends on values.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import PrefillTensors
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    FLOAT32,
    Outputs,
    check_ctas,
    check_inputs,
    compiled,
    contiguous_aligned,
    ctas_of,
    refuse,
)
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import check_cut, fused_source, rests_source, rounds_source
from gdnbench_kernels.gpu import multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.source import Source
from gdnbench_kernels.validate import dtype_name


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm100_fused(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    cut: int | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    The arguments are those of `sm100` without stages. With `cut`, a multiple of 64, the works of a last round
    that does not fill the GPU are cut behind so many tokens, for two launches (fused_rounds.py) with the same
    bits. The launch stays one where no such round follows a full one.
    """
    refuse(params)
    if cut is not None:
        check_cut(cut)
        if len(params.v) and is_uneven(
            (len(params.cu_seqlens) - 1) * params.v.shape[1], multiprocessors(params.v.device)
        ):
            return _launch_rounds(params, cut, o, final_state)
    return launch_fused(params, fused_source, o, final_state)


def is_uneven(works: int, ctas: int) -> bool:
    """Whether a round that does not fill the CTAs follows one that does."""
    return works > ctas and works % ctas > 0


def _launch_rounds(
    params: PrefillParams, cut: int, o: Tensor | None, final_state: Tensor | None
) -> dict[str, Tensor]:
    check_inputs(params)
    heads, value_heads, device = params.k.shape[1], params.v.shape[1], params.v.device
    check_ctas(len(params.cu_seqlens) - 1, value_heads)
    outputs = Outputs.allocate(params, o, final_state)
    first = None if params.initial_state is None else contiguous_aligned(params.initial_state)
    final = outputs.final_state
    gates = (params.g.to(FLOAT32), params.beta.to(FLOAT32))
    inputs = [
        contiguous_aligned(tensor) for tensor in (params.q, params.k, params.v, *gates, params.cu_seqlens)
    ]
    of_first, of_final = (None if state is None else dtype_name(state.dtype) for state in (first, final))
    ctas, scale = multiprocessors(device), default_scale(params.scale, HEAD_DIM)
    carried = torch.empty((ctas, HEAD_DIM, HEAD_DIM), dtype=FLOAT32, device=device)
    launch = compiled(device, rounds_source, heads, value_heads, of_first, of_final, params.beta_max)
    launch(*inputs, first, carried, outputs.o, final, scale, cut, ctas)
    launch = compiled(device, rests_source, heads, value_heads, of_final, params.beta_max)
    launch(*inputs, None, carried, outputs.o, final, scale, cut, ctas)
    return outputs.finish()


def launch_fused(
    params: PrefillTensors,
    source: Callable[..., Source],
    o: Tensor | None,
    final_state: Tensor | None,
    *,
    by_channel: bool = False,
) -> dict[str, Tensor]:
    """The outputs of a call, by the kernel of `source`; see `sm100_fused`. `by_channel`: g is [T, Hv, K], not
    [T, Hv]."""
    check_inputs(params, by_channel=by_channel)
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
        launch = compiled(v.device, source, heads, value_heads, *dtypes, params.beta_max)
        scale = default_scale(params.scale, HEAD_DIM)
        # KDA's kernel has a CTA for each sequence and value head.
        grid = () if by_channel else (ctas_of(sequences * value_heads, v.device),)
        launch(q, k, v, g, beta, cu_seqlens, first, outputs.o, final, scale, *grid)
    else:  # a tensor map needs tokens; without them the states do not change
        outputs.leave_states(first)
    return outputs.finish()
