"""The kernels named `sm90`, `sm90_fused_cp` and `sm90_prepared` of gdn_prefill, for Hopper: with the squares
in a launch of their own or not, and over segments of the sequences where a call has too few value heads to
occupy the SMs. The launches in order:

    chunk_squares   q, k, g, beta                          -> Ai beta and P of each chunk (prepared)
    chunk_transfer  k, v, g, beta, initial state           -> B and M of each segment
    segment_scan    B, M                                   -> the state before each segment
    chunk_segments  q, k, v, g, beta, states               -> o, final state

Without segments one launch follows the squares, or is the only one. `sm90` takes the plan of `sm90_cuts.py`,
by shapes alone; the others cut where the caller says.
The host reads nothing back from the device and no shape depends on values. A sequence is cut at multiples of
the segment's tokens: its bits depend on these, neither on its batch nor on slices nor on the device. A
sequence of one segment has the bits of `sm90_fused`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.chunks import segment_bound
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    BFLOAT16,
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
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_cuts import CutPlan, plan_of
from gdnbench_kernels.gdn_prefill.sm90_prepared_sources import prepared_source, squares_source
from gdnbench_kernels.gdn_prefill.sm90_segment_sources import (
    SEGMENT_TUNINGS,
    sm90_outputs_source,
    sm90_scan_source,
    sm90_transfer_source,
)
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS, check_slices, sm90_source
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import PREPARED, heads_of_work
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
    return launch_parts(params, plan.segment, plan.slices, o, final_state, prepared=plan.prepared)


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm90_of(
    params: PrefillParams,
    *,
    plan: CutPlan,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
) -> dict[str, Tensor]:
    """`sm90` by that plan."""
    refuse(params)
    return launch_parts(params, plan.segment, plan.slices, o, final_state, prepared=plan.prepared)


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
    check_slices(slices)
    return launch_parts(params, segment, slices, o, final_state, prepared=False)


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm90_prepared(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    segment: int | None = None,
    slices: int = 2,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    The squares have a launch of their own. `segment` is the number of tokens of a segment, a multiple of 64;
    None cuts nothing. `slices` and the other arguments are those of `sm90_fused`, and so are the bits: of a
    call that is cut those of `sm90_fused_cp`.
    """
    refuse(params)
    if segment is not None:
        check_segment(segment)
    check_slices(slices)
    return launch_parts(params, segment, slices, o, final_state, prepared=True)


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a call, and what they are given besides the tensors of all: the squares."""

    params: PrefillParams
    slices: int
    of_first: str | None
    of_final: str | None
    prepared: bool

    def of(self, kind: str) -> Program:
        """That of `kind` whole, transfer or outputs."""
        params = self.params
        heads, value_heads, beta_max = params.k.shape[1], params.v.shape[1], params.beta_max
        dtypes = (self.of_first,) if kind == "transfer" else (self.of_first, self.of_final)
        if self.prepared:
            final = None if kind == "transfer" else self.of_final
            tuning = PREPARED[self.slices]
            known = (kind, heads, value_heads, self.of_first, final, tuning)
            return programs.compiled(SM90, prepared_source, *known)
        sources = {"whole": sm90_source, "transfer": sm90_transfer_source, "outputs": sm90_outputs_source}
        fused = (TUNINGS if kind == "whole" else SEGMENT_TUNINGS)[self.slices]
        options = (heads, value_heads, *dtypes, beta_max, fused)
        return programs.compiled(SM90, sources[kind], *options)


def launch_parts(
    params: PrefillParams,
    segment: int | None,
    slices: int,
    o: Tensor | None,
    final_state: Tensor | None,
    prepared: bool,
) -> dict[str, Tensor]:
    """The outputs of a call, cut or not, with or without a launch for the squares."""
    check_inputs(params)
    if capability_of(params.v.device) is not None:
        programs.arch_of(params.v.device, (SM90,), "this kernel of gdn_prefill")
    value_heads, device, tokens = params.v.shape[1], params.v.device, len(params.v)
    sequences, sms = len(params.cu_seqlens) - 1, multiprocessors(device, SM90)
    cut = segment is not None and tokens > segment
    bound = segment_bound(tokens, sequences, segment) if cut and segment is not None else sequences
    check_ctas(max(2 * bound, STRIPS * sequences), value_heads * slices)
    outputs = Outputs.allocate(params, o, final_state)
    first = None if params.initial_state is None else contiguous_aligned(params.initial_state)
    final = outputs.final_state
    if not tokens:  # a tensor map needs tokens; without them the states do not change
        outputs.leave_states(first)
        return outputs.finish()
    states = (bound, value_heads, HEAD_DIM, HEAD_DIM)
    check_count("initial_state", states)
    gates = (params.g.to(FLOAT32), params.beta.to(FLOAT32))
    q, k, v, g, beta, cu_seqlens = map(
        contiguous_aligned, (params.q, params.k, params.v, *gates, params.cu_seqlens)
    )
    of_first, of_final = (None if state is None else dtype_name(state.dtype) for state in (first, final))
    made = Programs(params, slices, of_first, of_final, prepared)
    squares: tuple[Tensor, ...] = ()
    if prepared:
        shape = (tokens // CHUNK + sequences, value_heads, 2, CHUNK, CHUNK)
        squares = (torch.empty(shape, dtype=BFLOAT16, device=device),)
        works = shape[0] * value_heads // heads_of_work(k.shape[1], value_heads)
        ctas = min(sms, works)
        source = programs.compiled(SM90, squares_source, k.shape[1], value_heads, params.beta_max)
        source(q, k, g, beta, cu_seqlens, *squares, ctas)
    given, scale = (k, v, g, beta, cu_seqlens, *squares), default_scale(params.scale, HEAD_DIM)
    works = bound * value_heads * slices
    if not cut:
        made.of("whole")(q, *given, first, outputs.o, final, scale, min(sms, works))
        return outputs.finish()
    firsts, maps = (torch.empty(states, dtype=FLOAT32, device=device) for _ in range(2))
    followed = bound - sequences
    ctas = min(sms, (2 * followed - 1) * value_heads * slices)
    made.of("transfer")(*given, first, firsts, maps, segment, ctas)
    if followed > 1:
        programs.compiled(SM90, sm90_scan_source, value_heads)(cu_seqlens, maps, firsts, segment)
    made.of("outputs")(q, *given, first, firsts, outputs.o, final, scale, segment, min(sms, works))
    return outputs.finish()
