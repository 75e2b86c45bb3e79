# SPDX-License-Identifier: Apache-2.0
"""The sources of gdn_prefill's SM90 kernels by segments (sm90_cp.py): host objects and types of their
arguments. The tokens of a segment are a run-time value."""

from __future__ import annotations

from dataclasses import asdict, replace

from gdnbench_kernels.gdn_prefill.segment_sources import SEGMENT, check_segment, slot_states
from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import Tuning
from gdnbench_kernels.gdn_prefill.sm90_sources import TUNINGS, check_slices
from gdnbench_kernels.gdn_prefill.sources import (
    Build,
    Examples,
    StateDtype,
    check_beta_max,
    check_heads,
    check_states,
)
from gdnbench_kernels.source import Source

_NARROW = TUNINGS[2]
SEGMENT_TUNINGS = TUNINGS | {
    2: replace(
        _NARROW,
        state_registers=_NARROW.state_registers - 8,
        other_registers=_NARROW.other_registers + 8,
    )
}
"""By slices. LOAD, GATE and STORE find segments, for which they need 8 registers more. With one slice STATE
has none to give, and a few spill: no plan of `sm90` takes that build."""


def sm90_cp_sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    beta_max: float = 1.0,
    slices: int = 2,
) -> list[Source]:
    """The three kernels of a context-parallel call for sm_90a, in the order they run.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. beta_max:
    the largest beta, up to 2; beyond 1 the inverse takes three times the products. slices: CTAs that divide
    the rows of a value head, 1 or 2.
    """
    check_slices(slices)
    tuning = SEGMENT_TUNINGS[slices]
    return [
        sm90_transfer_source(heads, value_heads, initial_state, beta_max, tuning),
        sm90_scan_source(value_heads),
        sm90_outputs_source(heads, value_heads, initial_state, final_state, beta_max, tuning),
    ]


def sm90_transfer_source(
    heads: int, value_heads: int, initial_state: StateDtype | None, beta_max: float, tuning: Tuning
) -> Source:
    """`SegmentTransfer`, for initial states of that dtype, one build for beta up to 1 and one for beta up to
    2."""
    check_heads(heads, value_heads)
    check_states(initial_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.transfer_sm90",
        f"{__name__}:build_transfer",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        beta_max=2 if beta_max > 1 else 1,
        **asdict(tuning.for_beta(beta_max)),
    )


def sm90_scan_source(value_heads: int) -> Source:
    """`CutScan`, without packed multiply-adds."""
    check_heads(1, value_heads)
    return Source.create("gdn_prefill.scan_sm90", f"{__name__}:build_scan", value_heads=value_heads)


def sm90_outputs_source(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: float,
    tuning: Tuning,
) -> Source:
    """`SegmentOutputs`, with the builds of `sm90_source`."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.segments_sm90",
        f"{__name__}:build_outputs",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
        **asdict(tuning.for_beta(beta_max)),
    )


def build_transfer(
    heads: int, value_heads: int, initial_state: StateDtype | None, beta_max: int, **tuning: int
) -> Build:
    """k, v, g, beta, cu_seqlens, initial_state, firsts, maps, tokens, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.sm90_segments import SegmentTransfer

    of = Examples()
    return SegmentTransfer(heads, value_heads, split=beta_max > 1, tuning=Tuning(**tuning)), (
        *of.inputs(heads, value_heads)[1:],
        of.states(initial_state, value_heads),
        slot_states(of, value_heads),
        slot_states(of, value_heads),
        cutlass.Int32(1),
        cutlass.Int32(1),
        of.stream(),
    )


def build_scan(value_heads: int) -> Build:
    """cu_seqlens, maps, firsts, tokens."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.sm90_segments import CutScan

    of = Examples()
    return CutScan(value_heads, packed=False), (
        of.tensor("int32", of.offsets),
        slot_states(of, value_heads),
        slot_states(of, value_heads),
        cutlass.Int32(1),
        of.stream(),
    )


def build_outputs(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: int,
    **tuning: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, initial_state, firsts, o, final_state, scale, tokens, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.sm90_segments import SegmentOutputs

    of = Examples()
    return SegmentOutputs(heads, value_heads, split=beta_max > 1, tuning=Tuning(**tuning)), (
        *of.inputs(heads, value_heads),
        of.states(initial_state, value_heads),
        slot_states(of, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        cutlass.Int32(1),
        of.stream(),
    )


__all__ = ["SEGMENT", "check_segment", "sm90_cp_sources"]
