"""The kernels named `sm90` and `sm90_fused_cp` of gdn_prefill, for Hopper: the fused kernel over segments of
the sequences, where a call has too few value heads to occupy the SMs.

    chunk_transfer  k, v, g, beta, initial state           -> B and M of each segment
    segment_scan    B, M                                   -> the state before each segment
    chunk_segments  q, k, v, g, beta, states               -> o, final state

`sm90` cuts as `sm90_cuts.py` says, from shapes alone, or not at all; `sm90_fused_cp` where the caller says.
The host reads nothing back from the device and no shape depends on values. A sequence is cut at multiples of
the segment's tokens: its bits depend on these, neither on its batch nor on slices nor on the device. A
sequence of one segment has the bits of `sm90_fused`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    FLOAT32,
    Outputs,
    check_count,
    check_ctas,
    check_inputs,
    contiguous_aligned,
    refuse,
)
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.segment_sources import SEGMENT, check_segment
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90 import launch_sm90
from gdnbench_kernels.gdn_prefill.sm90_cuts import plan_of
from gdnbench_kernels.gdn_prefill.sm90_plan import Tuning
from gdnbench_kernels.gdn_prefill.sm90_segment_sources import (
    sm90_outputs_source,
    sm90_scan_source,
    sm90_transfer_source,
)
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS
from gdnbench_kernels.gpu import SM90, capability_of, multiprocessors
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.validate import dtype_name

STRIPS = 16
"""CTAs of `segment_scan` for each state."""


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm90(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    The arguments are those of `sm90_fused`. The bits of a sequence depend on where the call cuts it, and so
    on the shapes of its batch and the number of SMs. Raises NotImplementedError for a call that the kernel
    does not support or for another GPU, ValueError for an invalid call.
    """
    refuse(params)
    sequences, v = len(params.cu_seqlens) - 1, params.v
    plan = plan_of(len(v), max(1, sequences), v.shape[1], multiprocessors(v.device, SM90))
    tuning = TUNINGS[plan.slices]
    if plan.segment is None:
        return launch_sm90(params, tuning, o, final_state)
    return launch_segments(params, plan.segment, tuning, o, final_state)


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm90_fused_cp(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    segment: int = SEGMENT,
    slices: int = 2,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    `segment` is the number of tokens of a segment, a multiple of 64; `slices` and the other arguments are
    those of `sm90_fused`. A call of no more tokens than a segment has is one of `sm90_fused`.
    """
    refuse(params)
    check_segment(segment)
    if slices not in TUNINGS:
        raise ValueError(f"slices is {' or '.join(map(str, TUNINGS))}, not {slices}")
    if len(params.v) <= segment:
        return launch_sm90(params, TUNINGS[slices], o, final_state)
    return launch_segments(params, segment, TUNINGS[slices], o, final_state)


def launch_segments(
    params: PrefillParams, segment: int, tuning: Tuning, o: Tensor | None, final_state: Tensor | None
) -> dict[str, Tensor]:
    """The outputs of a call of more tokens than a segment has."""
    check_inputs(params)
    if capability_of(params.v.device) is not None:
        programs.arch_of(params.v.device, (SM90,), "this kernel of gdn_prefill")
    heads, value_heads, device = params.k.shape[1], params.v.shape[1], params.v.device
    sequences = len(params.cu_seqlens) - 1
    bound = segment_bound(len(params.v), sequences, segment)
    check_ctas(max(2 * bound, STRIPS * sequences), value_heads * tuning.slices)
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
    of_first, of_final = (None if state is None else dtype_name(state.dtype) for state in (first, final))
    sms, beta_max, scale = (
        multiprocessors(device, SM90),
        params.beta_max,
        default_scale(params.scale, HEAD_DIM),
    )
    followed = bound - sequences
    works = (2 * followed - 1) * value_heads * tuning.slices
    transfer = programs.compiled(SM90, sm90_transfer_source, heads, value_heads, of_first, beta_max, tuning)
    transfer(k, v, g, beta, cu_seqlens, first, firsts, maps, segment, min(sms, works))
    if followed > 1:
        programs.compiled(SM90, sm90_scan_source, value_heads)(cu_seqlens, maps, firsts, segment)
    segments = programs.compiled(
        SM90, sm90_outputs_source, heads, value_heads, of_first, of_final, beta_max, tuning
    )
    ctas = min(sms, bound * value_heads * tuning.slices)
    segments(q, k, v, g, beta, cu_seqlens, first, firsts, outputs.o, final, scale, segment, ctas)
    return outputs.finish()
