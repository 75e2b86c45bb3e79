"""Checks the arguments of a call of v4_decode's compiled kernels, and makes the tensors for its launch.

The checks read shapes, dtypes and addresses, never values, so nothing waits for the device. The errors name
the argument: NotImplementedError for what another kernel could take, ValueError for what no kernel could. The
caches are never copied; other tensors whose memory layout a kernel cannot use are. With one length for all
queries of a request the lengths are repeated, on the device.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.arguments import Output, contiguous_aligned
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.latent_launch import (
    WORD,
    check_tensor,
    layout_named,
    output_of,
    pages_of,
    rows_of_entries,
    scales_of,
)
from gdnbench_kernels.latent_pool import WINDOW, PoolNames
from gdnbench_kernels.launch_checks import check_apart, finite_number, memory_span
from gdnbench_kernels.programs import SM90, SM100, SM103
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, HEAD_DIM, MAX_HEADS, MAX_WINDOW
from gdnbench_kernels.swa_decode.sources import ALIGN
from gdnbench_kernels.v4_decode.checks import window_range
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.params import V4BufferParams
from gdnbench_kernels.v4_decode.segments import EXTRA, INDEX_SHAPES, LENS_SHAPES, IndexForm, flat_rows
from gdnbench_kernels.v4_decode.sizes import EXTRA_BLOCK_SIZES, MAX_QUERIES, MAX_TOPK
from gdnbench_kernels.validate import dtype_name

INT32, FLOAT32, BFLOAT16 = torch.int32, torch.float32, torch.bfloat16
MOST_SLOTS = 1 << 31
"""A slot is an int32 in a kernel."""


@dataclass(frozen=True, slots=True)
class PoolArguments:
    """A segment as a program takes it, of R = B S query rows.

    pages [blocks, bytes] uint8: the cache's own memory, pages a multiple of 16 bytes apart. inv_scale [slots]
    float32 or bfloat16 with per_token_scale, else None. entries [R, n] int32, rows any distance apart: slots,
    or pages in order of position. lens [R] int32. A page holds 2^block_shift rows.
    """

    pages: Tensor
    inv_scale: Tensor | None
    entries: Tensor
    lens: Tensor
    block_shift: int
    layout: CacheLayout
    of_pages: bool

    @property
    def scale_dtype(self) -> str | None:
        """torch's name of inv_scale's dtype; None without inv_scale."""
        return None if self.inv_scale is None else dtype_name(self.inv_scale.dtype)

    @property
    def entry_shift(self) -> int:
        """An entry is of 2^entry_shift rows."""
        return self.block_shift if self.of_pages else 0

    @property
    def capacity(self) -> int:
        """The most rows that a query attends to."""
        return self.entries.shape[1] << self.entry_shift


@dataclass(frozen=True, slots=True)
class V4Arguments:
    """A call's tensors as a program takes them, R query rows of H heads, and its numbers.

    q [R, H, 512] bfloat16, contiguous. extra is None without an extra segment. attn_sink [H] float32 or None.
    """

    q: Tensor
    window: PoolArguments
    extra: PoolArguments | None
    attn_sink: Tensor | None
    scale: float
    form: LseForm
    _o: Output
    _lse: Output | None

    @property
    def rows(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def o(self) -> Tensor:
        """[R, H, 512] bfloat16, the tensor that a kernel writes."""
        return self._o.buffer.flatten(0, 1)

    @property
    def lse(self) -> Tensor | None:
        """[R, H] float32, the tensor that a kernel writes; None if not requested."""
        return None if self._lse is None else self._lse.buffer.flatten(0, 1)

    def launch(self, made: Program, o: Tensor, lse: Tensor | None, splits: int, *more: int) -> None:
        """Run a program whose parameters are those of `sources`, in order, then `more`. With a program of
        splits, o and lse are those of `Partials`, and it takes no sink."""
        window, extra = self.window, self.extra
        pools = [window.pages, window.inv_scale, window.entries, window.lens]
        pools += [None] * 4 if extra is None else [extra.pages, extra.inv_scale, extra.entries, extra.lens]
        made(
            self.q,
            *pools,
            self.attn_sink if splits == 1 else None,
            o,
            lse,
            self.scale,
            window.block_shift,
            0 if extra is None else extra.block_shift,
            0 if extra is None else extra.entry_shift,
            splits,
            *more,
        )

    def finish(self) -> dict[str, Tensor]:
        """Return the filled tensors: the caller's, or new ones."""
        found = {"o": self._o.finish()}
        if self._lse is not None:
            found["lse"] = self._lse.finish()
        return found


def prepare(params: V4BufferParams) -> V4Arguments:
    """The arguments of a call, checked. Raises NotImplementedError for a call that the kernels do not
    support, ValueError for an invalid one."""
    q, attn_sink = params.q, params.attn_sink
    if q.dim() != 4 or q.shape[3] != HEAD_DIM:
        raise ValueError(f"q has shape {list(q.shape)}; it must be [B, S, H, {HEAD_DIM}]")
    requests, queries, heads, _ = q.shape
    if not 1 <= queries <= MAX_QUERIES:
        raise ValueError(f"q has {queries} queries a request; it must have 1 to {MAX_QUERIES}")
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"q has {heads} heads; it must have 1 to {MAX_HEADS}")
    check_tensor("q", q, q.shape, (BFLOAT16,), q.device)
    if attn_sink is not None:
        check_tensor("attn_sink", attn_sink, (heads,), (FLOAT32,), q.device)
    if params.lse is not None and not params.output_lse:
        raise ValueError("lse is given, which output_lse = False says not to fill")
    lse_shape = (requests, queries, heads)
    found = V4Arguments(
        q=contiguous_aligned(q, ALIGN).flatten(0, 1),
        window=_window(params),
        extra=_extra(params),
        attn_sink=None if attn_sink is None else contiguous_aligned(attn_sink, WORD),
        scale=HEAD_DIM**-0.5 if params.scale is None else finite_number("scale", params.scale),
        form=LseForm(params.lse_base, params.lse_sink, params.lse_empty),
        _o=output_of("o", params.o, q.shape, BFLOAT16, q.device, ALIGN),
        _lse=output_of("lse", params.lse, lse_shape, FLOAT32, q.device, WORD) if params.output_lse else None,
    )
    _check_apart(found)
    return found


def arch_of(device: torch.device, archs: Sequence[str] = (SM90, SM100, SM103)) -> str:
    """The target for that device. Raises NotImplementedError for a device that none of `archs` runs on."""
    return programs.arch_of(device, archs, "this kernel of v4_decode")


def _window(params: V4BufferParams) -> PoolArguments:
    given = (params.cache, params.inv_scale, params.swa_indices, params.swa_lens)
    found = _pool(params, WINDOW, params.cache_layout, BLOCK_SIZES, *given, of_pages=False)
    if not 1 <= found.capacity <= MAX_WINDOW:
        raise ValueError(window_range(found.capacity))
    return found


def _extra(params: V4BufferParams) -> PoolArguments | None:
    """The extra segment, or None. Raises ValueError if only a part of it is given."""
    if params.extra_cache is None and params.extra_indices is None and params.extra_lens is None:
        if params.extra_inv_scale is not None:
            raise ValueError("extra_inv_scale is given and extra_cache is not; leave it out")
        return None
    if params.extra_cache is None or params.extra_indices is None or params.extra_lens is None:
        raise ValueError("an extra segment needs extra_cache, extra_indices and extra_lens; one is missing")
    if params.extra_index_form not in tuple(IndexForm):
        raise ValueError(
            f"extra_index_form is {params.extra_index_form!r}; it is one of {', '.join(IndexForm)}"
        )
    of_pages = params.extra_index_form == IndexForm.BLOCK_TABLE
    given = (params.extra_cache, params.extra_inv_scale, params.extra_indices, params.extra_lens)
    found = _pool(params, EXTRA, params.extra_layout, EXTRA_BLOCK_SIZES, *given, of_pages=of_pages)
    entries = found.entries.shape[1]
    if not of_pages and not 1 <= entries <= MAX_TOPK:
        raise ValueError(f"extra_indices has {entries} slots a query; it must have 1 to {MAX_TOPK}")
    if not 1 <= found.capacity < MOST_SLOTS:
        raise ValueError(f"extra_indices has pages of {found.capacity} positions; it must have 1 to 2^31 - 1")
    return found


def _pool(
    params: V4BufferParams,
    names: PoolNames,
    layout_name: str,
    sizes: Sequence[int],
    cache: Tensor,
    inv_scale: Tensor | None,
    indices: Tensor,
    lens: Tensor,
    *,
    of_pages: bool,
) -> PoolArguments:
    layout, device = layout_named(names, layout_name), params.q.device
    pages, block_shift = pages_of(names, cache, layout, sizes, device)
    slots = len(pages) << block_shift
    if slots > MOST_SLOTS:
        raise NotImplementedError(
            f"the compiled kernels take {names.cache} of at most 2^31 rows, not of {slots}"
        )
    return PoolArguments(
        pages=pages,
        inv_scale=scales_of(names, inv_scale, layout, slots, device),
        entries=_entries(params, names, indices),
        lens=_lens(params, names, lens),
        block_shift=block_shift,
        layout=layout,
        of_pages=of_pages,
    )


def _entries(params: V4BufferParams, names: PoolNames, indices: Tensor) -> Tensor:
    """[R, n] with contiguous elements in a row."""
    if params.index_shape not in INDEX_SHAPES:
        raise ValueError(f"index_shape is {params.index_shape!r}; it is one of {', '.join(INDEX_SHAPES)}")
    requests, queries = params.q.shape[:2]
    last = indices.shape[-1] if indices.dim() else 0
    extents = {"B": requests, "S": queries, "T": requests * queries, "1": 1, "W": last}
    axes = INDEX_SHAPES[params.index_shape]
    if tuple(indices.shape) != tuple(extents[axis] for axis in axes):
        wanted = ", ".join(axis if axis == "W" else str(extents[axis]) for axis in axes)
        raise ValueError(
            f"{names.indices} has shape {list(indices.shape)}; with index_shape {params.index_shape} it must"
            f" be [{wanted}]"
        )
    check_tensor(names.indices, indices, indices.shape, (INT32,), params.q.device)
    return rows_of_entries(flat_rows(indices, requests * queries))


def _lens(params: V4BufferParams, names: PoolNames, lens: Tensor) -> Tensor:
    """[R], contiguous."""
    if params.lens_shape not in LENS_SHAPES:
        raise ValueError(f"lens_shape is {params.lens_shape!r}; it is one of {', '.join(LENS_SHAPES)}")
    requests, queries = params.q.shape[:2]
    extents = {"B": requests, "S": queries, "T": requests * queries}
    shape = tuple(extents[axis] for axis in LENS_SHAPES[params.lens_shape])
    check_tensor(names.lens, lens, shape, (INT32,), params.q.device)
    if params.lens_shape == "B" and queries > 1:
        return lens.repeat_interleave(queries)
    return contiguous_aligned(lens.flatten(), WORD)


def _check_apart(given: V4Arguments) -> None:
    """Raises ValueError for outputs in the memory of each other or of an input, which later CTAs still
    read."""
    tensors = {"q": given.q, "attn_sink": given.attn_sink, "o": given.o, "lse": given.lse}
    for names, pool in ((WINDOW, given.window), (EXTRA, given.extra)):
        if pool is not None:
            tensors |= {names.cache: pool.pages, names.inv_scale: pool.inv_scale}
            tensors |= {names.indices: pool.entries, names.lens: pool.lens}
    spans = {name: memory_span(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    check_apart(("o", "lse"), spans)
