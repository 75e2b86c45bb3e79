"""The sources of gdn_prefill's SM100 kernels: the host objects and the types of their arguments.

The numbers of tokens, sequences and chunks are run-time values; heads, feature dims and dtypes are compiled
in. The `build_` function of a source imports CuTe DSL when the kernel is compiled.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, Literal, get_args

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.source import Source

ALIGN = 16
"""Alignment of every tensor in bytes, which TMA requires of a base address."""

BETA_MAX = 2.0
"""The largest beta for which the inverse meets its limits."""

MAX_HEADS = 2**31 // HEAD_DIM**2 - 1
"""The elements of one sequence's state, Hv V K, are indexed with 32 bits."""

StateDtype = Literal["float32", "bfloat16"]
STATE_DTYPES: tuple[str, ...] = get_args(StateDtype)

Tap = Literal["none", "dump", "inject_a", "inject_ai", "invert"]
"""A and Ai: only in registers; both also stored; one of them loaded instead of computed; or A loaded and Ai
stored."""
TAPS: tuple[str, ...] = get_args(Tap)
A_TAPS, AI_TAPS = ("dump", "inject_a", "invert"), ("dump", "inject_ai", "invert")
"""The taps that store or load A, and those that store or load Ai."""

Build = tuple[Any, tuple[Any, ...]]
"""The object to compile, and examples of its arguments."""


def sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    tap: Tap = "none",
    beta_max: float = 1.0,
) -> list[Source]:
    """The four kernels of a call, in the order they run.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. tap: what
    becomes of A and Ai, which stay in registers, or are both stored (dump), or one is loaded instead of
    computed (inject_a, inject_ai; invert: A is loaded, Ai stored). beta_max: the largest beta, up to 2;
    beyond 1 the inverse takes three times the products.
    """
    return [
        metadata_source(),
        uw_source(heads, value_heads, tap, beta_max),
        state_source(heads, value_heads, initial_state, final_state),
        output_source(heads, value_heads),
    ]


def fused_sources(
    heads: int = 16,
    value_heads: int = 32,
    initial_state: StateDtype | None = "float32",
    final_state: StateDtype | None = "float32",
    beta_max: float = 1.0,
    cut: int = 0,
) -> list[Source]:
    """The one kernel of a fused call, or the two of one whose last works are cut.

    heads, value_heads: H and Hv. initial_state, final_state: their dtypes, none for a call without. beta_max:
    the largest beta, up to 2; beyond 1 the inverse takes three times the products. cut: tokens behind which
    the last works are cut, a multiple of 64; 0: they are not cut.
    """
    if not cut:
        return [fused_source(heads, value_heads, initial_state, final_state, beta_max)]
    check_cut(cut)
    return [
        rounds_source(heads, value_heads, initial_state, final_state, beta_max),
        rests_source(heads, value_heads, final_state, beta_max),
    ]


def metadata_source() -> Source:
    """`ChunkMetadata`, for any batch."""
    return Source.create("gdn_prefill.chunk_metadata", f"{__name__}:build_metadata")


def uw_source(heads: int, value_heads: int, tap: Tap, beta_max: float) -> Source:
    """`ChunkUW`, one build for beta up to 1 and another for beta up to 2."""
    check_heads(heads, value_heads)
    if tap not in TAPS:
        raise ValueError(f"tap is {' or '.join(TAPS)}, not {tap!r}")
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.chunk_uw",
        f"{__name__}:build_uw",
        heads=heads,
        value_heads=value_heads,
        tap=tap,
        beta_max=2 if beta_max > 1 else 1,
    )


def state_source(
    heads: int, value_heads: int, initial_state: StateDtype | None, final_state: StateDtype | None
) -> Source:
    """`ChunkState`, for states of those dtypes."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    return Source.create(
        "gdn_prefill.chunk_state",
        f"{__name__}:build_state",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
    )


def output_source(heads: int, value_heads: int) -> Source:
    """`ChunkOutput`."""
    check_heads(heads, value_heads)
    return Source.create(
        "gdn_prefill.chunk_output", f"{__name__}:build_output", heads=heads, value_heads=value_heads
    )


def fused_source(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: float,
) -> Source:
    """`ChunkFused`, for states of those dtypes, one build for beta up to 1 and another for beta up to 2."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.chunk_fused",
        f"{__name__}:build_fused",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
    )


def rounds_source(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: float,
) -> Source:
    """`ChunkRounds`, the first launch of a call whose last works are cut, with the builds of
    `fused_source`."""
    check_heads(heads, value_heads)
    check_states(initial_state, final_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.chunk_rounds",
        f"{__name__}:build_rounds",
        heads=heads,
        value_heads=value_heads,
        initial_state=initial_state,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
    )


def rests_source(heads: int, value_heads: int, final_state: StateDtype | None, beta_max: float) -> Source:
    """`ChunkRests`, the second launch, which reads no initial state."""
    check_heads(heads, value_heads)
    check_states(final_state)
    check_beta_max(beta_max)
    return Source.create(
        "gdn_prefill.chunk_rests",
        f"{__name__}:build_rests",
        heads=heads,
        value_heads=value_heads,
        final_state=final_state,
        beta_max=2 if beta_max > 1 else 1,
    )


def check_cut(cut: int) -> None:
    """Raises ValueError for a cut that is not between chunks."""
    if cut < CHUNK or cut % CHUNK:
        raise ValueError(f"works are cut behind a multiple of {CHUNK} tokens, not behind {cut}")


def check_heads(heads: int, value_heads: int) -> None:
    """Raises ValueError unless every value head has a key head, and a state's strides fit in 32 bits."""
    if value_heads > MAX_HEADS:
        raise ValueError(f"{value_heads} value heads are more than {MAX_HEADS}, which a state has at most")
    if heads < 1 or value_heads < 1 or value_heads % heads:
        raise ValueError(f"{value_heads} value heads are no multiple of {heads} key heads")


def check_states(*dtypes: StateDtype | None) -> None:
    """Raises ValueError for a dtype that states cannot have."""
    for dtype in dtypes:
        if dtype not in (None, *STATE_DTYPES):
            raise ValueError(f"a state is {' or '.join(STATE_DTYPES)}, or there is none; not {dtype!r}")


def check_beta_max(beta_max: float) -> None:
    """Raises ValueError for a beta_max that no build supports."""
    if not 0 <= beta_max <= BETA_MAX:
        raise ValueError(f"beta_max is from 0 to {BETA_MAX:g}, not {beta_max:g}")


def build_metadata() -> Build:
    """cu_seqlens, chunk_offsets, chunk_indices, total_chunks."""
    from gdnbench_kernels.gdn_prefill.chunk_metadata import ChunkMetadata

    of = Examples()
    return ChunkMetadata(), (
        of.tensor("int32", of.offsets),
        of.tensor("int32", of.offsets),
        of.tensor("int32", of.chunks, 2),
        of.tensor("int32", 1),
        of.stream(),
    )


def build_uw(heads: int, value_heads: int, tap: Tap, beta_max: int) -> Build:
    """k, v, g, beta, cu_seqlens, chunk_indices, total_chunks, g_cu, u, w, a, ai, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill import triangle
    from gdnbench_kernels.gdn_prefill.chunk_uw import ChunkUW

    of = Examples()
    square = ("float32", of.chunks, value_heads, CHUNK, CHUNK)
    return ChunkUW(heads, value_heads, triangle.Tap[tap.upper()], split=beta_max > 1), (
        of.tensor("bfloat16", of.tokens, heads, HEAD_DIM),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.tensor("float32", of.tokens, value_heads),
        of.tensor("float32", of.tokens, value_heads),
        of.tensor("int32", of.offsets),
        of.tensor("int32", of.chunks, 2),
        of.tensor("int32", 1),
        of.tensor("float32", of.tokens, value_heads),
        of.tensor("bfloat16", of.rows, value_heads, HEAD_DIM),
        of.tensor("bfloat16", of.rows, value_heads, HEAD_DIM),
        of.tensor(*square) if tap in A_TAPS else None,
        of.tensor(*square) if tap in AI_TAPS else None,
        cutlass.Int32(1),
        of.stream(),
    )


def build_state(
    heads: int, value_heads: int, initial_state: StateDtype | None, final_state: StateDtype | None
) -> Build:
    """k, u, w, g_cu, cu_seqlens, chunk_offsets, initial_state, h, v_new, final_state."""
    from gdnbench_kernels.gdn_prefill.chunk_state import ChunkState

    of = Examples()

    return ChunkState(heads, value_heads), (
        of.tensor("bfloat16", of.tokens, heads, HEAD_DIM),
        of.tensor("bfloat16", of.rows, value_heads, HEAD_DIM),
        of.tensor("bfloat16", of.rows, value_heads, HEAD_DIM),
        of.tensor("float32", of.tokens, value_heads),
        of.tensor("int32", of.offsets),
        of.tensor("int32", of.offsets),
        of.states(initial_state, value_heads),
        of.tensor("bfloat16", of.chunks, value_heads, HEAD_DIM, HEAD_DIM),
        of.tensor("bfloat16", of.rows, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        of.stream(),
    )


def build_output(heads: int, value_heads: int) -> Build:
    """q, k, v_new, h, g_cu, cu_seqlens, chunk_indices, total_chunks, o, scale, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.chunk_output import ChunkOutput

    of = Examples()
    return ChunkOutput(heads, value_heads), (
        of.tensor("bfloat16", of.tokens, heads, HEAD_DIM),
        of.tensor("bfloat16", of.tokens, heads, HEAD_DIM),
        of.tensor("bfloat16", of.rows, value_heads, HEAD_DIM),
        of.tensor("bfloat16", of.chunks, value_heads, HEAD_DIM, HEAD_DIM),
        of.tensor("float32", of.tokens, value_heads),
        of.tensor("int32", of.offsets),
        of.tensor("int32", of.chunks, 2),
        of.tensor("int32", 1),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        of.stream(),
    )


def build_fused(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, initial_state, o, final_state, scale, ctas."""
    import cutlass

    from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import ChunkFused

    of = Examples()
    return ChunkFused(heads, value_heads, split=beta_max > 1), (
        *of.inputs(heads, value_heads),
        of.states(initial_state, value_heads),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(1),
        of.stream(),
    )


def build_rounds(
    heads: int,
    value_heads: int,
    initial_state: StateDtype | None,
    final_state: StateDtype | None,
    beta_max: int,
) -> Build:
    """q, k, v, g, beta, cu_seqlens, initial_state, carried, o, final_state, scale, cut, ctas."""
    from gdnbench_kernels.gdn_prefill.fused_rounds import ChunkRounds

    kernel = ChunkRounds(heads, value_heads, split=beta_max > 1)
    return kernel, _rounds(heads, value_heads, initial_state, final_state)


def build_rests(heads: int, value_heads: int, final_state: StateDtype | None, beta_max: int) -> Build:
    """The arguments of `build_rounds`, without an initial state."""
    from gdnbench_kernels.gdn_prefill.fused_rounds import ChunkRests

    return ChunkRests(heads, value_heads, split=beta_max > 1), _rounds(heads, value_heads, None, final_state)


def _rounds(
    heads: int, value_heads: int, initial_state: StateDtype | None, final_state: StateDtype | None
) -> tuple[Any, ...]:
    import cutlass

    of = Examples()
    return (
        *of.inputs(heads, value_heads),
        of.states(initial_state, value_heads),
        of.tensor("float32", of.chunks, HEAD_DIM, HEAD_DIM),
        of.tensor("bfloat16", of.tokens, value_heads, HEAD_DIM),
        of.states(final_state, value_heads),
        cutlass.Float32(1.0),
        cutlass.Int32(CHUNK),
        cutlass.Int32(1),
        of.stream(),
    )


class Examples:
    """Contiguous tensors with only types, and the open extents."""

    def __init__(self) -> None:
        import cutlass
        import cutlass.cute as cute
        from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

        self._make: Any = make_fake_tensor
        self._dtypes: dict[str, Any] = {
            "bfloat16": cutlass.BFloat16,
            "float32": cutlass.Float32,
            "int32": cutlass.Int32,
        }
        self.stream: Any = make_fake_stream
        self.tokens, self.sequences, self.offsets = cute.sym_int(), cute.sym_int(), cute.sym_int()
        self.chunks, self.rows = cute.sym_int(), cute.sym_int()  # UB, and UB C

    def tensor(self, dtype: str, *shape: Any) -> Any:
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        return self._make(self._dtypes[dtype], shape, tuple(strides), assumed_align=ALIGN)

    def inputs(self, heads: int, value_heads: int) -> tuple[Any, ...]:
        """q, k, v, g, beta, cu_seqlens."""
        keys = self.tensor("bfloat16", self.tokens, heads, HEAD_DIM)
        values = self.tensor("bfloat16", self.tokens, value_heads, HEAD_DIM)
        gates = self.tensor("float32", self.tokens, value_heads)
        return keys, keys, values, gates, gates, self.tensor("int32", self.offsets)

    def states(self, dtype: StateDtype | None, value_heads: int) -> Any:
        """None without a dtype."""
        if dtype is None:
            return None
        return self.tensor(dtype, self.sequences, value_heads, HEAD_DIM, HEAD_DIM)
