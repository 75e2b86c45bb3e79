"""The sources of gdn_prefill's kernels by segments (fused_cp.py): host objects and types of their arguments.

The tokens of a segment are compiled into the table alone. Like sources.py, this imports CuTe DSL only when a
kernel is compiled.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import (
    Build,
    Examples,
    StateDtype,
    check_beta_max,
    check_heads,
    check_states,
)
from gdnbench_kernels.source import Source

SEGMENT = 1024
"""L: tokens of a segment, unless a call says otherwise."""


def cp_sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    beta_max: float = 1.0,
    segment: int = SEGMENT,
) -> list[Source]:
    """The four kernels of a context-parallel call, in the order they run.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. beta_max:
    the largest beta, up to 2; beyond 1 the inverse takes three times the products. segment: tokens of a
    segment, a multiple of 64.
    """
    return [
        segment_table_source(segment),
        transfer_source(heads, value_heads, initial_state, beta_max),
        scan_source(value_heads),
        segments_source(heads, value_heads, initial_state, final_state, beta_max),
    ]


def segment_table_source(segment: int) -> Source:
    """`ChunkMetadata` for segments of that many tokens, at least one of each sequence."""
    check_segment(segment)
    return Source.create("gdn_prefill.segment_table", f"{__name__}:build_segment_table", segment=segment)


def transfer_source(
    heads: int, value_heads: int, initial_state: StateDtype | None, beta_max: float
) -> Source:
    """`ChunkTransfer`, for initial states of that dtype, one build for beta up to 1 and one for beta up to
    2."""
    check_heads(heads, value_heads)
    check_states(initial_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.chunk_transfer",
        f"{__name__}:build_transfer",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        beta_max=2 if beta_max > 1 else 1,
    )


def scan_source(value_heads: int) -> Source:
    """`SegmentScan`."""
    check_heads(1, value_heads)
    return Source.create("gdn_prefill.segment_scan", f"{__name__}:build_scan", value_heads=value_heads)


def segments_source(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: float,
) -> Source:
    """`ChunkSegments`, with the builds of `fused_source`."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.chunk_segments",
        f"{__name__}:build_segments",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
    )


def check_segment(segment: int) -> None:
    """Raises ValueError for segments that are no whole chunks."""
    if not isinstance(segment, int) or segment < CHUNK or segment % CHUNK:
        raise ValueError(f"a segment is a multiple of {CHUNK} tokens, not {segment!r}")


def build_segment_table(segment: int) -> Build:
    """cu_seqlens, offsets, indices, total."""
    from gdnbench_kernels.gdn_prefill.chunk_metadata import ChunkMetadata

    of = Examples()
    return ChunkMetadata(tokens=segment, least=1), (
        of.tensor("int32", of.offsets),
        *_table(of),
        of.stream(),
    )


def build_transfer(heads: int, value_heads: int, initial_state: StateDtype | None, beta_max: int) -> Build:
    """k, v, g, beta, cu_seqlens, offsets, indices, total, initial_state, firsts, maps, tokens."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.kernel_sm100_transfer import ChunkTransfer

    of = Examples()
    return ChunkTransfer(heads, value_heads, split=beta_max > 1), (
        *of.inputs(heads, value_heads)[1:],
        *_table(of),
        of.states(initial_state, value_heads),
        slot_states(of, value_heads),
        slot_states(of, value_heads),
        cutlass.Int32(CHUNK),
        of.stream(),
    )


def build_scan(value_heads: int) -> Build:
    """offsets, maps, firsts."""
    from gdnbench_kernels.gdn_prefill.kernel_sm100_scan import SegmentScan

    of = Examples()
    return SegmentScan(value_heads), (
        of.tensor("int32", of.offsets),
        slot_states(of, value_heads),
        slot_states(of, value_heads),
        of.stream(),
    )


def build_segments(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, offsets, indices, total, initial_state, firsts, o, final_state, scale,
    tokens, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.fused_segments import ChunkSegments

    of = Examples()
    return ChunkSegments(heads, value_heads, split=beta_max > 1), (
        *of.inputs(heads, value_heads),
        *_table(of),
        of.states(initial_state, value_heads),
        slot_states(of, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(CHUNK),
        cutlass.Int32(1),
        of.stream(),
    )


def _table(of: Examples) -> tuple[Any, ...]:
    """The table of segments: offsets, indices, total."""
    return (
        of.tensor("int32", of.offsets),
        of.tensor("int32", of.chunks, 2),
        of.tensor("int32", 1),
    )


def slot_states(of: Examples, value_heads: int) -> Any:
    """firsts or maps."""
    return of.tensor("float32", of.chunks, value_heads, HEAD_DIM, HEAD_DIM)
