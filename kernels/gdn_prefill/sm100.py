"""The kernel named `sm100` of gdn_prefill: four launches for SM100, each also a function of its own.

    chunk_metadata  cu_seqlens                             -> which chunk is whose
    chunk_uw        k, v, g, beta                          -> g_cu, U, W     (A and Ai where asked for)
    chunk_state     k, U, W, g_cu, initial state           -> h, V_new, final state
    chunk_output    q, k, V_new, h, g_cu                   -> o

What lies between them is a `Workspace`. Nothing is read back from the device and no shape depends on values,
so a call can be captured into a CUDA graph; with a workspace and outputs of the caller's it allocates
nothing. Rows of the intermediates past the last chunk are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.checks import dtype_name
from gdnbench_kernels.compiling import Program, Source, program
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.chunks import chunk_bound
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sources import (
    ALIGN,
    BETA_MAX,
    STATE_DTYPES,
    Tap,
    check_heads,
    metadata_source,
    output_source,
    sources,
    state_source,
    uw_source,
)
from gdnbench_kernels.gdn_prefill.torch_chunked import final_dtype

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

B200_SMS = 148
"""CTAs of a persistent launch where there is no device to ask."""

MAX_COUNTED = 2**31
COUNTED = ("g", "beta", "g_cu", "a", "ai", "initial_state", "final_state")
"""Tensors whose elements the kernels count in 32 bits. Of the others they count rows: TMA has 64 bits for an
address."""

CONTIGUOUS = torch.contiguous_format
INT32, FLOAT32, BFLOAT16 = torch.int32, torch.float32, torch.bfloat16
GATES = (FLOAT32, BFLOAT16, torch.float16)
STATES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in STATE_DTYPES)


@dataclass(frozen=True, slots=True)
class ChunkTables:
    """How the tokens are cut into chunks, on the device: see `chunk_metadata`."""

    offsets: Tensor  # [N+1] int32: chunks before each sequence
    indices: Tensor  # [UB, 2] int32: (sequence, chunk within it)
    total: Tensor  # [1] int32

    @classmethod
    def allocate(cls, tokens: int, sequences: int, device: torch.device) -> ChunkTables:
        """For `tokens` tokens of `sequences` sequences, uninitialised."""
        shapes = ((sequences + 1,), (chunk_bound(tokens, sequences, CHUNK), 2), (1,))
        return cls(*(torch.empty(shape, dtype=INT32, device=device) for shape in shapes))


@dataclass(frozen=True, slots=True)
class Workspace:
    """What the kernels of one call hand to each other; UB bounds the number of chunks without reading it."""

    tables: ChunkTables
    g_cu: Tensor  # [T, Hv] float32
    u: Tensor  # [UB C, Hv, V] bfloat16
    w: Tensor  # [UB C, Hv, K] bfloat16
    h: Tensor  # [UB, Hv, V, K] bfloat16
    v_new: Tensor  # [UB C, Hv, V] bfloat16

    @classmethod
    def allocate(cls, tokens: int, sequences: int, value_heads: int, device: torch.device) -> Workspace:
        """For `tokens` tokens of `sequences` sequences, uninitialised."""
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


def sm100(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    o: Tensor | None = None,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    scale: float | None = None,
    chunk_size: int = CHUNK,
    output_final_state: bool = True,
    final_state_dtype: str | None = None,
    beta_max: float = 1.0,
    workspace: Workspace | None = None,
    stages: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """o [T, Hv, V] and final_state [N, Hv, V, K], written to the tensors of that name where given.

    Inputs that are not contiguous, or not aligned, are copied; g and beta of 16 bits are widened. `stages`,
    if given, gets g_cu, A, Ai, U, W, h and V_new; P never leaves the chip. NotImplementedError for a call
    that the kernels are not written for.
    """
    _refuse(q, k, v, chunk_size, beta_max)
    _check_inputs(q, k, v, g, beta, cu_seqlens, initial_state)
    tokens, value_heads, sequences = len(v), v.shape[1], len(cu_seqlens) - 1
    out = _Output.of("o", o, v.shape, BFLOAT16, v.device)
    last: _Output | None = None
    if final_state is not None and not output_final_state:
        raise ValueError("final_state is given, which output_final_state = False says not to fill")
    if output_final_state:
        wanted = final_state_dtype or (None if final_state is None else dtype_name(final_state.dtype))
        dtype = final_dtype(initial_state, wanted)
        _check_dtype("final_state", dtype, STATES)
        states = (sequences, value_heads, HEAD_DIM, HEAD_DIM)
        last = _Output.of("final_state", final_state, states, dtype, v.device)
    space = workspace or Workspace.allocate(tokens, sequences, value_heads, v.device)
    a = ai = None
    _check_rows(len(space.tables.indices), value_heads)
    if stages is not None:
        square = (len(space.h), value_heads, CHUNK, CHUNK)
        _check_count("a", square)
        a, ai = (torch.empty(square, dtype=FLOAT32, device=v.device) for _ in range(2))
        stages |= {"g_cu": space.g_cu, "A": a, "Ai": ai}
        stages |= {"U": space.u, "W": space.w, "h": space.h, "V_new": space.v_new}
    first = None if initial_state is None else _held(initial_state)
    final = None if last is None else last.buffer
    if tokens:
        g, beta = g.to(FLOAT32), beta.to(FLOAT32)
        q, k, v, g, beta, cu_seqlens = map(_held, (q, k, v, g, beta, cu_seqlens))
        tables, g_cu, u, w, h, v_new = space.tables, space.g_cu, space.u, space.w, space.h, space.v_new
        factor = default_scale(scale, HEAD_DIM)
        chunk_metadata(cu_seqlens, tables)
        tap: Tap = "none" if stages is None else "dump"
        uw = {"g_cu": g_cu, "u": u, "w": w}
        chunk_uw(k, v, g, beta, cu_seqlens, tables, **uw, a=a, ai=ai, tap=tap, beta_max=beta_max)
        chunk_state(
            k, u, w, g_cu, cu_seqlens, tables, initial_state=first, h=h, v_new=v_new, final_state=final
        )
        chunk_output(q, k, v_new, h, g_cu, cu_seqlens, tables, o=out.buffer, scale=factor)
    elif final is not None:  # there is no tensor map of no tokens, and nothing to add to the states
        final.zero_() if first is None else final.copy_(first)
    return {"o": out.finish()} | ({} if last is None else {"final_state": last.finish()})


def chunk_metadata(cu_seqlens: Tensor, tables: ChunkTables) -> None:
    """Fills `tables`; rows of `indices` past the last chunk stay as they are."""
    _check_tables(cu_seqlens, tables)
    _compiled(cu_seqlens.device, metadata_source)(cu_seqlens, tables.offsets, tables.indices, tables.total)


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
    """Fills g_cu, u and w. Where no beta is over 1, beta_max 1 is faster than 2.

    A and Ai [UB, Hv, C, C] float32 are for `tap`: "dump" fills a and ai, "inject_a" takes a instead of
    computing it, "inject_ai" takes ai.
    """
    (tokens, heads), value_heads, bound = k.shape[:2], v.shape[1], _check_tables(cu_seqlens, tables)
    _check_rows(bound, value_heads)
    for name, tensor in (("g", g), ("beta", beta), ("g_cu", g_cu)):
        _check(name, tensor, (tokens, value_heads), FLOAT32, k.device)
    for name, tensor in (("u", u), ("w", w)):
        _check(name, tensor, (bound * CHUNK, value_heads, HEAD_DIM), BFLOAT16, k.device)
    _check("k", k, (tokens, heads, HEAD_DIM), BFLOAT16, k.device)
    _check("v", v, (tokens, value_heads, HEAD_DIM), BFLOAT16, k.device)
    for name, square, taps in (("a", a, ("dump", "inject_a")), ("ai", ai, ("dump", "inject_ai"))):
        if (square is not None) != (tap in taps):
            raise ValueError(f"{name} is for tap {' or '.join(taps)}; tap is {tap}")
        if square is not None:
            _check(name, square, (bound, value_heads, CHUNK, CHUNK), FLOAT32, k.device)
    launch = _compiled(k.device, uw_source, heads, value_heads, tap, beta_max)
    ctas = _ctas(bound * value_heads, k.device)
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
    """Fills h and v_new, and final_state if there is to be one, which may be initial_state itself."""
    (tokens, heads), value_heads, bound = k.shape[:2], u.shape[1], _check_tables(cu_seqlens, tables)
    _check_rows(bound, value_heads)
    if len(cu_seqlens) < 2:
        raise ValueError("cu_seqlens has 1 element: no sequence to carry a state through")
    _check("k", k, (tokens, heads, HEAD_DIM), BFLOAT16, k.device)
    _check("g_cu", g_cu, (tokens, value_heads), FLOAT32, k.device)
    _check("h", h, (bound, value_heads, HEAD_DIM, HEAD_DIM), BFLOAT16, k.device)
    for name, tensor in (("u", u), ("w", w), ("v_new", v_new)):
        _check(name, tensor, (bound * CHUNK, value_heads, HEAD_DIM), BFLOAT16, k.device)
    dtypes = []
    for name, state in (("initial_state", initial_state), ("final_state", final_state)):
        if state is not None:
            shape = (len(cu_seqlens) - 1, value_heads, HEAD_DIM, HEAD_DIM)
            _check(name, state, shape, STATES, k.device)
        dtypes.append(None if state is None else dtype_name(state.dtype))
    launch = _compiled(k.device, state_source, heads, value_heads, *dtypes)
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
    """Fills o."""
    (tokens, heads), value_heads, bound = k.shape[:2], o.shape[1], _check_tables(cu_seqlens, tables)
    _check_rows(bound, value_heads)
    for name, tensor in (("q", q), ("k", k)):
        _check(name, tensor, (tokens, heads, HEAD_DIM), BFLOAT16, k.device)
    _check("v_new", v_new, (bound * CHUNK, value_heads, HEAD_DIM), BFLOAT16, k.device)
    _check("h", h, (bound, value_heads, HEAD_DIM, HEAD_DIM), BFLOAT16, k.device)
    _check("g_cu", g_cu, (tokens, value_heads), FLOAT32, k.device)
    _check("o", o, (tokens, value_heads, HEAD_DIM), BFLOAT16, k.device)
    launch = _compiled(k.device, output_source, heads, value_heads)
    ctas = _ctas(bound * value_heads, k.device)
    launch(q, k, v_new, h, g_cu, cu_seqlens, tables.indices, tables.total, o, scale, ctas)


def _compiled(device: torch.device, source: Callable[..., Source], *options: Any) -> Program:
    """The program of a source for that device, or for an SM100 where there is none."""
    newer = device.type == "cuda" and torch.cuda.get_device_capability(device) == (10, 3)
    return _program("sm_103a" if newer else "sm_100a", source, *options)


@cache
def _program(arch: str, source: Callable[..., Source], *options: Any) -> Program:
    return program(source(*options), arch)


def _ctas(items: int, device: torch.device) -> int:
    """CTAs of a persistent launch: one an SM, none without an item."""
    if device.type != "cuda":
        return min(B200_SMS, items)
    return min(torch.cuda.get_device_properties(device).multi_processor_count, items)


@dataclass(frozen=True, slots=True)
class _Output:
    """A tensor to fill, and the caller's, which may be one that the kernels cannot write to."""

    buffer: Tensor
    given: Tensor | None

    @classmethod
    def of(
        cls, name: str, given: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> _Output:
        _check_count(name, shape)
        if given is None:
            return cls(torch.empty(tuple(shape), dtype=dtype, device=device), None)
        _check_form(name, given, shape, dtype, device)
        return cls(given if _fits(given) else torch.empty_like(given, memory_format=CONTIGUOUS), given)

    def finish(self) -> Tensor:
        """The caller's tensor, filled; else ours."""
        if self.given is None or self.given is self.buffer:
            return self.buffer
        return self.given.copy_(self.buffer)


def _fits(tensor: Tensor) -> bool:
    """Whether the kernels can be given this tensor."""
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGN == 0


def _held(tensor: Tensor) -> Tensor:
    """The tensor as the kernels can be given it."""
    return tensor if _fits(tensor) else tensor.clone(memory_format=CONTIGUOUS)


def _refuse(q: Tensor, k: Tensor, v: Tensor, chunk_size: int, beta_max: float) -> None:
    """NotImplementedError for sizes that the kernels are not written for, ValueError for wrong ones."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 3:
            raise ValueError(f"{name} has {tensor.dim()} axes; it has three: tokens, heads, features")
    check_heads(k.shape[1], v.shape[1])
    if k.shape[2] != HEAD_DIM or v.shape[2] != HEAD_DIM:
        raise NotImplementedError(
            f"the SM100 kernels take K = V = {HEAD_DIM}, not K = {k.shape[2]} and V = {v.shape[2]}"
        )
    if chunk_size != CHUNK:
        raise NotImplementedError(f"the SM100 kernels take chunks of {CHUNK} tokens, not of {chunk_size}")
    if not beta_max <= BETA_MAX:
        raise NotImplementedError(
            f"the SM100 kernels take beta up to {BETA_MAX:g}, beyond which their inverse is not accurate"
            f" enough; beta_max is {beta_max:g}"
        )


def _check_inputs(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor, initial_state: Tensor | None
) -> None:
    """Before anything is launched: of one device, of dtypes that are taken, of shapes that fit together."""
    tokens, value_heads = v.shape[:2]
    _check_form("v", v, (tokens, value_heads, HEAD_DIM), BFLOAT16, v.device)
    for name, tensor in (("q", q), ("k", k)):
        _check_form(name, tensor, (tokens, k.shape[1], HEAD_DIM), BFLOAT16, v.device)
    for name, tensor in (("g", g), ("beta", beta)):
        _check_form(name, tensor, (tokens, value_heads), GATES, v.device)
    _check_form("cu_seqlens", cu_seqlens, (cu_seqlens.numel(),), INT32, v.device)
    if len(cu_seqlens) < (2 if tokens else 1):
        raise ValueError(f"cu_seqlens has {len(cu_seqlens)} elements: no sequence for {tokens} tokens")
    if initial_state is not None:
        states = (len(cu_seqlens) - 1, value_heads, HEAD_DIM, HEAD_DIM)
        _check_form("initial_state", initial_state, states, STATES, v.device)


def _check_tables(cu_seqlens: Tensor, tables: ChunkTables) -> int:
    """UB, the rows of the tables."""
    device, bound = cu_seqlens.device, len(tables.indices)
    _check("cu_seqlens", cu_seqlens, (cu_seqlens.numel(),), INT32, device)
    if not len(cu_seqlens):
        raise ValueError("cu_seqlens has no element; it has one more than there are sequences")
    _check("tables.offsets", tables.offsets, cu_seqlens.shape, INT32, device)
    _check("tables.indices", tables.indices, (bound, 2), INT32, device)
    _check("tables.total", tables.total, (1,), INT32, device)
    return bound


def _check(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """ValueError unless a kernel can be given this tensor; NotImplementedError where another kernel could."""
    _check_form(name, tensor, shape, dtypes, device)
    if not _fits(tensor):
        raise ValueError(f"{name} must be contiguous and aligned to {ALIGN} bytes")


def _check_form(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """`_check`, but for how the tensor lies in memory."""
    _check_dtype(name, tensor.dtype, dtypes if isinstance(dtypes, tuple) else (dtypes,))
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be {list(shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, others on {device}; all must be on one device")
    _check_count(name, shape)


def _check_count(name: str, shape: Sequence[int]) -> None:
    if name in COUNTED and prod(shape) >= MAX_COUNTED:
        raise NotImplementedError(
            f"the SM100 kernels take {name} of less than 2^31 elements; it has {prod(shape)}"
        )


def _check_rows(bound: int, value_heads: int) -> None:
    """Rows of the workspace, and so items of a launch, are counted in 32 bits too."""
    if (rows := bound * CHUNK * value_heads) >= MAX_COUNTED:
        raise NotImplementedError(
            f"the SM100 kernels take less than 2^31 rows of chunks and value heads; UB C Hv is {rows}"
        )


def _check_dtype(name: str, dtype: torch.dtype, taken: Sequence[torch.dtype]) -> None:
    if dtype not in taken:
        names = " or ".join(map(dtype_name, taken))
        raise NotImplementedError(f"the SM100 kernels take {name} as {names}, not as {dtype_name(dtype)}")
