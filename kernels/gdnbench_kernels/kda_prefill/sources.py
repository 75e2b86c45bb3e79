# SPDX-License-Identifier: Apache-2.0
"""The source of kda_prefill's SM100 kernel: the host object and the types of its arguments."""

from __future__ import annotations

from gdnbench_kernels.gdn_prefill.sizes import HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import (
    Build,
    Examples,
    StateDtype,
    check_beta_max,
    check_heads,
    check_states,
)
from gdnbench_kernels.source import Source


def fused_sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    beta_max: float = 1.0,
) -> list[Source]:
    """The one kernel of a fused call.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. beta_max:
    the largest beta, up to 2; beyond 1 the inverse takes three times the products.
    """
    return [fused_source(heads, value_heads, initial_state, final_state, beta_max)]


def fused_source(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: float,
) -> Source:
    """`KdaFused`, for states of those dtypes, one build for beta up to 1 and another for beta up to 2."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    check_beta_max(beta_max)
    return Source.create(
        "kda_prefill.fused",
        f"{__name__}:build_fused",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
    )


def build_fused(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, initial_state, o, final_state, scale."""
    import cutlass

    from gdnbench_kernels.kda_prefill.kernel_sm100_fused import KdaFused

    of = Examples()
    return KdaFused(heads, value_heads, split=beta_max > 1), (
        of.tensor("bfloat16", of.tokens, heads, HEAD_DIM),
        of.tensor("bfloat16", of.tokens, heads, HEAD_DIM),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.tensor("float32", of.tokens, value_heads, HEAD_DIM),
        of.tensor("float32", of.tokens, value_heads),
        of.tensor("int32", of.offsets),
        of.states(initial_state, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        of.stream(),
    )
