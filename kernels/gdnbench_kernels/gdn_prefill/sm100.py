"""The kernel named `sm100` of gdn_prefill: four launches for SM100, each also available as a function.

    chunk_metadata  cu_seqlens                             -> the chunk tables
    chunk_uw        k, v, g, beta                          -> g_cu, U, W     (A and Ai on request)
    chunk_state     k, U, W, g_cu, initial state           -> h, V_new, final state
    chunk_output    q, k, V_new, h, g_cu                   -> o

The intermediates are a `Workspace`. The host reads nothing back from the device and no shape depends on
values, so a call can be captured into a CUDA graph; with the caller's workspace and outputs it allocates
nothing. Rows of the intermediates past the last chunk are not written.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.chunks import chunk_bound
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.launch_args import (
    BFLOAT16,
    FLOAT32,
    INT32,
    STATES,
    Outputs,
    check_count,
    check_inputs,
    check_rows,
    check_tensor,
    compiled,
    contiguous_aligned,
    ctas_of,
    refuse,
)
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import (
    A_TAPS,
    AI_TAPS,
    BETA_MAX,
    Tap,
    metadata_source,
    output_source,
    sources,
    state_source,
    uw_source,
)
from gdnbench_kernels.params import takes_params
from gdnbench_kernels.validate import dtype_name

__all__ = [
    "BETA_MAX",
    "ChunkTables",
    "Workspace",
    "chunk_metadata",
    "chunk_output",
    "chunk_state",
    "chunk_uw",
    "sm100",
    "sources",
]


@dataclass(frozen=True, slots=True)
class ChunkTables:
    """The chunks of the tokens, on the device; `chunk_metadata` fills the tables."""

    offsets: Tensor  # [N+1] int32: chunks before each sequence
    indices: Tensor  # [UB, 2] int32: (sequence, chunk within it)
    total: Tensor  # [1] int32

    @classmethod
    def allocate(cls, tokens: int, sequences: int, device: torch.device) -> ChunkTables:
        """Uninitialised tables for `tokens` tokens of `sequences` sequences."""
        shapes = ((sequences + 1,), (chunk_bound(tokens, sequences, CHUNK), 2), (1,))
        return cls(*(torch.empty(shape, dtype=INT32, device=device) for shape in shapes))


@dataclass(frozen=True, slots=True)
class Workspace:
    """The intermediates between the kernels of one call. UB bounds the number of chunks without reading
    it."""

    tables: ChunkTables
    g_cu: Tensor  # [T, Hv] float32
    u: Tensor  # [UB C, Hv, V] bfloat16
    w: Tensor  # [UB C, Hv, K] bfloat16
    h: Tensor  # [UB, Hv, V, K] bfloat16
    v_new: Tensor  # [UB C, Hv, V] bfloat16

    @classmethod
    def allocate(cls, tokens: int, sequences: int, value_heads: int, device: torch.device) -> Workspace:
        """An uninitialised workspace for `tokens` tokens of `sequences` sequences."""
        tables = ChunkTables.allocate(tokens, sequences, device)
        bound = len(tables.indices)
        rows = (bound * CHUNK, value_heads, HEAD_DIM)
        return cls(
            tables,
            g_cu=torch.empty((tokens, value_heads), dtype=FLOAT32, device=device),
            u=torch.empty(rows, dtype=BFLOAT16, device=device),
            w=torch.empty(rows, dtype=BFLOAT16, device=device),
            h=torch.empty((bound, value_heads, HEAD_DIM, HEAD_DIM), dtype=BFLOAT16, device=device),
            v_new=torch.empty(rows, dtype=BFLOAT16, device=device),
        )


@takes_params(PrefillParams, without=("gate", "state_layout", "qk"))
def sm100(
    params: PrefillParams,
    *,
    o: Tensor | None = None,
    final_state: Tensor | None = None,
    workspace: Workspace | None = None,
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name if they are given.

    Inputs that are not contiguous and aligned are copied; g and beta of 16 bits are widened. `stages`, if
    given, gets g_cu, A, Ai, U, W, h and V_new; P never leaves the chip. Raises NotImplementedError for a call
    that the kernels do not support.
    """
    refuse(params)
    check_inputs(params)
    q, k, v = params.q, params.k, params.v
    g, beta, cu_seqlens = params.g, params.beta, params.cu_seqlens
    tokens, value_heads, sequences = len(v), v.shape[1], len(cu_seqlens) - 1
    outputs = Outputs.allocate(params, o, final_state)
    space = workspace or Workspace.allocate(tokens, sequences, value_heads, v.device)
    a = ai = None
    check_rows(len(space.tables.indices), value_heads)
    if stages is not None:
        square = (len(space.h), value_heads, CHUNK, CHUNK)
        check_count("a", square)
        a, ai = (torch.empty(square, dtype=FLOAT32, device=v.device) for _ in range(2))
        stages |= {"g_cu": space.g_cu, "A": a, "Ai": ai}
        stages |= {"U": space.u, "W": space.w, "h": space.h, "V_new": space.v_new}
    first = None if params.initial_state is None else contiguous_aligned(params.initial_state)
    final = outputs.final_state
    if tokens:
        g, beta = g.to(FLOAT32), beta.to(FLOAT32)
        q, k, v, g, beta, cu_seqlens = map(contiguous_aligned, (q, k, v, g, beta, cu_seqlens))
        tables, g_cu, u, w, h, v_new = space.tables, space.g_cu, space.u, space.w, space.h, space.v_new
        factor = default_scale(params.scale, HEAD_DIM)
        chunk_metadata(cu_seqlens, tables)
        tap: Tap = "none" if stages is None else "dump"
        uw = {"g_cu": g_cu, "u": u, "w": w}
        chunk_uw(k, v, g, beta, cu_seqlens, tables, **uw, a=a, ai=ai, tap=tap, beta_max=params.beta_max)
        chunk_state(
            k, u, w, g_cu, cu_seqlens, tables, initial_state=first, h=h, v_new=v_new, final_state=final
        )
        chunk_output(q, k, v_new, h, g_cu, cu_seqlens, tables, o=outputs.o, scale=factor)
    else:  # a tensor map needs tokens; without them the states do not change
        outputs.leave_states(first)
    return outputs.finish()


def chunk_metadata(cu_seqlens: Tensor, tables: ChunkTables) -> None:
    """Fill `tables`. Rows of `indices` past the last chunk stay unchanged."""
    _check_tables(cu_seqlens, tables)
    compiled(cu_seqlens.device, metadata_source)(cu_seqlens, tables.offsets, tables.indices, tables.total)


def chunk_uw(
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    tables: ChunkTables,
    *,
    g_cu: Tensor,
    u: Tensor,
    w: Tensor,
    a: Tensor | None = None,
    ai: Tensor | None = None,
    tap: Tap = "none",
    beta_max: float = 1.0,
) -> None:
    """Fill g_cu, u and w. If no beta exceeds 1, beta_max 1 is faster than 2.

    `tap` decides the use of a and ai [UB, Hv, C, C] float32: "dump" writes both, "inject_a" reads a instead
    of computing A, "inject_ai" reads ai, "invert" reads a and writes ai.
    """
    (tokens, heads), value_heads, bound = k.shape[:2], v.shape[1], _check_tables(cu_seqlens, tables)
    check_rows(bound, value_heads)
    for name, tensor in (("g", g), ("beta", beta), ("g_cu", g_cu)):
        check_tensor(name, tensor, (tokens, value_heads), FLOAT32, k.device)
    for name, tensor in (("u", u), ("w", w)):
        check_tensor(name, tensor, (bound * CHUNK, value_heads, HEAD_DIM), BFLOAT16, k.device)
    check_tensor("k", k, (tokens, heads, HEAD_DIM), BFLOAT16, k.device)
    check_tensor("v", v, (tokens, value_heads, HEAD_DIM), BFLOAT16, k.device)
    for name, square, taps in (("a", a, A_TAPS), ("ai", ai, AI_TAPS)):
        if (square is not None) != (tap in taps):
            raise ValueError(f"{name} is for tap {' or '.join(taps)}; tap is {tap}")
        if square is not None:
            check_tensor(name, square, (bound, value_heads, CHUNK, CHUNK), FLOAT32, k.device)
    launch = compiled(k.device, uw_source, heads, value_heads, tap, beta_max)
    ctas = ctas_of(bound * value_heads, k.device)
    launch(k, v, g, beta, cu_seqlens, tables.indices, tables.total, g_cu, u, w, a, ai, ctas)


def chunk_state(
    k: Tensor,
    u: Tensor,
    w: Tensor,
    g_cu: Tensor,
    cu_seqlens: Tensor,
    tables: ChunkTables,
    *,
    initial_state: Tensor | None,
    h: Tensor,
    v_new: Tensor,
    final_state: Tensor | None,
) -> None:
    """Fill h and v_new, and final_state unless it is None. final_state may be initial_state itself."""
    (tokens, heads), value_heads, bound = k.shape[:2], u.shape[1], _check_tables(cu_seqlens, tables)
    check_rows(bound, value_heads)
    if len(cu_seqlens) < 2:
        raise ValueError("cu_seqlens has 1 element: no sequence to carry a state through")
    check_tensor("k", k, (tokens, heads, HEAD_DIM), BFLOAT16, k.device)
    check_tensor("g_cu", g_cu, (tokens, value_heads), FLOAT32, k.device)
    check_tensor("h", h, (bound, value_heads, HEAD_DIM, HEAD_DIM), BFLOAT16, k.device)
    for name, tensor in (("u", u), ("w", w), ("v_new", v_new)):
        check_tensor(name, tensor, (bound * CHUNK, value_heads, HEAD_DIM), BFLOAT16, k.device)
    dtypes = []
    for name, state in (("initial_state", initial_state), ("final_state", final_state)):
        if state is not None:
            shape = (len(cu_seqlens) - 1, value_heads, HEAD_DIM, HEAD_DIM)
            check_tensor(name, state, shape, STATES, k.device)
        dtypes.append(None if state is None else dtype_name(state.dtype))
    launch = compiled(k.device, state_source, heads, value_heads, *dtypes)
    launch(k, u, w, g_cu, cu_seqlens, tables.offsets, initial_state, h, v_new, final_state)


def chunk_output(
    q: Tensor,
    k: Tensor,
    v_new: Tensor,
    h: Tensor,
    g_cu: Tensor,
    cu_seqlens: Tensor,
    tables: ChunkTables,
    *,
    o: Tensor,
    scale: float,
) -> None:
    """Fill o."""
    (tokens, heads), value_heads, bound = k.shape[:2], o.shape[1], _check_tables(cu_seqlens, tables)
    check_rows(bound, value_heads)
    for name, tensor in (("q", q), ("k", k)):
        check_tensor(name, tensor, (tokens, heads, HEAD_DIM), BFLOAT16, k.device)
    check_tensor("v_new", v_new, (bound * CHUNK, value_heads, HEAD_DIM), BFLOAT16, k.device)
    check_tensor("h", h, (bound, value_heads, HEAD_DIM, HEAD_DIM), BFLOAT16, k.device)
    check_tensor("g_cu", g_cu, (tokens, value_heads), FLOAT32, k.device)
    check_tensor("o", o, (tokens, value_heads, HEAD_DIM), BFLOAT16, k.device)
    launch = compiled(k.device, output_source, heads, value_heads)
    ctas = ctas_of(bound * value_heads, k.device)
    launch(q, k, v_new, h, g_cu, cu_seqlens, tables.indices, tables.total, o, scale, ctas)


def _check_tables(cu_seqlens: Tensor, tables: ChunkTables) -> int:
    """UB, the number of rows of the tables."""
    device, bound = cu_seqlens.device, len(tables.indices)
    check_tensor("cu_seqlens", cu_seqlens, (cu_seqlens.numel(),), INT32, device)
    if not len(cu_seqlens):
        raise ValueError("cu_seqlens has no element; it has one more than there are sequences")
    check_tensor("tables.offsets", tables.offsets, cu_seqlens.shape, INT32, device)
    check_tensor("tables.indices", tables.indices, (bound, 2), INT32, device)
    check_tensor("tables.total", tables.total, (1,), INT32, device)
    return bound
