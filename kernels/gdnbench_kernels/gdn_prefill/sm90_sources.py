# SPDX-License-Identifier: Apache-2.0
"""The source of gdn_prefill's SM90 kernel: its host object and the types of its arguments."""

from __future__ import annotations

from dataclasses import asdict

from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import WIDE, Tuning
from gdnbench_kernels.gdn_prefill.sources import (
    Build,
    Examples,
    StateDtype,
    check_beta_max,
    check_heads,
    check_states,
)
from gdnbench_kernels.source import Source

TUNINGS = {1: WIDE, 2: Tuning()}
"""By slices."""


def check_slices(slices: int) -> None:
    """Raises ValueError for slices that no build has."""
    if not isinstance(slices, int) or slices not in TUNINGS:
        raise ValueError(f"slices is {' or '.join(map(str, TUNINGS))}, not {slices!r}")


def sm90_sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    beta_max: float = 1.0,
    slices: int = 2,
) -> list[Source]:
    """The kernel named `sm90_fused`, for sm_90a alone.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. beta_max:
    the largest beta, up to 2; beyond 1 the inverse takes three times the products. slices: CTAs that divide
    the rows of a value head, 1 or 2.
    """
    check_slices(slices)
    return [sm90_source(heads, value_heads, initial_state, final_state, beta_max, TUNINGS[slices])]


def sm90_source(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: float,
    tuning: Tuning,
) -> Source:
    """`FusedSm90`, for states of those dtypes, one build for beta up to 1 and another for beta up to 2."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.fused_sm90",
        f"{__name__}:build_fused",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
        **asdict(tuning.for_beta(beta_max)),
    )


def build_fused(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: int,
    **tuning: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, initial_state, o, final_state, scale, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.kernel_sm90_fused import FusedSm90

    of = Examples()
    return FusedSm90(heads, value_heads, split=beta_max > 1, tuning=Tuning(**tuning)), (
        *of.inputs(heads, value_heads),
        of.states(initial_state, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        of.stream(),
    )
