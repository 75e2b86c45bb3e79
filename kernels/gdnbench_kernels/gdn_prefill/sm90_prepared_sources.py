# SPDX-License-Identifier: Apache-2.0
"""The sources of gdn_prefill's SM90 kernels with squares in memory (sm90_cp.py): host objects and types of
their arguments."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gdnbench_kernels.gdn_prefill.segment_sources import slot_states
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_segment_sources import sm90_scan_source
from gdnbench_kernels.gdn_prefill.sm90_sources import check_slices
from gdnbench_kernels.gdn_prefill.sm90_squares_plan import PREPARED, PreparedTuning, SquareTuning
from gdnbench_kernels.gdn_prefill.sources import (
    Build,
    Examples,
    StateDtype,
    check_beta_max,
    check_heads,
    check_states,
)
from gdnbench_kernels.source import Source

SQUARES = SquareTuning()


def sm90_prepared_sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    beta_max: float = 1.0,
    slices: int = 2,
) -> list[Source]:
    """The kernels of a call whose squares have a launch of their own, for sm_90a: the squares; whole
    sequences; by segments B and M, the scan and the outputs.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. beta_max:
    the largest beta, up to 2; beyond 1 the inverse takes three times the products. slices: CTAs that divide
    the rows of a value head, 1 or 2.
    """
    check_slices(slices)
    tuning = PREPARED[slices]
    return [
        squares_source(heads, value_heads, beta_max),
        prepared_source("whole", heads, value_heads, initial_state, final_state, tuning),
        prepared_source("transfer", heads, value_heads, initial_state, None, tuning),
        sm90_scan_source(value_heads),
        prepared_source("outputs", heads, value_heads, initial_state, final_state, tuning),
    ]


def squares_source(heads: int, value_heads: int, beta_max: float) -> Source:
    """`SquaresSm90`, one build for beta up to 1 and one for beta up to 2."""
    check_heads(heads, value_heads)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.squares_sm90",
        f"{__name__}:build_squares",
        heads=heads,
        value_heads=value_heads,
        beta_max=2 if beta_max > 1 else 1,
        **asdict(SQUARES),
    )


def prepared_source(
    kind: str,
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    tuning: PreparedTuning,
) -> Source:
    """`PreparedSm90` for `kind` whole, `PreparedTransfer` for transfer, `PreparedOutputs` for outputs."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    return Source.create(
        f"gdn_prefill.prepared_{kind}_sm90",
        f"{__name__}:build_{kind}",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        **asdict(tuning),
    )


def build_squares(heads: int, value_heads: int, beta_max: int, **tuning: int) -> Build:
    """q, k, g, beta, cu_seqlens, squares, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.kernel_sm90_squares import SquaresSm90

    of = Examples()
    kernel = SquaresSm90(heads, value_heads, split=beta_max > 1, tuning=SquareTuning(**tuning))
    q, k, _, *gates = of.inputs(heads, value_heads)
    return kernel, (
        q,
        k,
        *gates,
        _squares(of, value_heads),
        cutlass.Int32(1),
        of.stream(),
    )


def build_whole(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    **tuning: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, squares, initial_state, o, final_state, scale, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.sm90_prepared import PreparedSm90

    of = Examples()
    return PreparedSm90(heads, value_heads, tuning=PreparedTuning(**tuning)), (
        *of.inputs(heads, value_heads),
        _squares(of, value_heads),
        of.states(initial_state, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        of.stream(),
    )


def build_transfer(
    heads: int, value_heads: int, initial_state: StateDtype | None, final_state: None, **tuning: int
) -> Build:
    """k, v, g, beta, cu_seqlens, squares, initial_state, firsts, maps, tokens, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.sm90_prepared import PreparedTransfer

    of = Examples()
    return PreparedTransfer(heads, value_heads, tuning=PreparedTuning(**tuning)), (
        *of.inputs(heads, value_heads)[1:],
        _squares(of, value_heads),
        of.states(initial_state, value_heads),
        slot_states(of, value_heads),
        slot_states(of, value_heads),
        cutlass.Int32(1),
        cutlass.Int32(1),
        of.stream(),
    )


def build_outputs(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    **tuning: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, squares, initial_state, firsts, o, final_state, scale, tokens, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.sm90_prepared import PreparedOutputs

    of = Examples()
    return PreparedOutputs(heads, value_heads, tuning=PreparedTuning(**tuning)), (
        *of.inputs(heads, value_heads),
        _squares(of, value_heads),
        of.states(initial_state, value_heads),
        slot_states(of, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        cutlass.Int32(1),
        of.stream(),
    )


def _squares(of: Examples, value_heads: int) -> Any:
    return of.tensor("bfloat16", of.chunks, value_heads, 2, CHUNK, CHUNK)
