"""Checks the arguments of a call of swa_decode's compiled kernels, and makes the tensors for its launch.

The checks read shapes, dtypes and addresses, never values, so nothing waits for the device. The errors name
the argument: NotImplementedError for what another kernel could take, ValueError for what no kernel could. The
cache is never copied; other tensors whose memory layout a kernel cannot use are.
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
from gdnbench_kernels.latent_pool import WINDOW
from gdnbench_kernels.launch_checks import check_apart, finite_number, memory_span
from gdnbench_kernels.programs import SM90, SM100, SM103
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, HEAD_DIM, MAX_HEADS, MAX_WINDOW
from gdnbench_kernels.swa_decode.sources import ALIGN
from gdnbench_kernels.swa_decode.window import INDEX_SHAPES, flat_indices
from gdnbench_kernels.validate import dtype_name

INT32, FLOAT32, BFLOAT16 = torch.int32, torch.float32, torch.bfloat16


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's tensors as a program takes them, T tokens of H heads, and its numbers.

    q [T, H, 512] bfloat16, contiguous. pages [blocks, bytes] uint8: the cache's own memory, pages a multiple
    of 16 bytes apart. inv_scale [slots] float32 or bfloat16 with per_token_scale, else None. indices [T, W]
    int32, rows any distance apart. lens [T] int32. attn_sink [H] float32 or None. A page holds
    2^block_shift tokens.
    """

    q: Tensor
    pages: Tensor
    inv_scale: Tensor | None
    indices: Tensor
    lens: Tensor
    attn_sink: Tensor | None
    scale: float
    block_shift: int
    layout: CacheLayout
    _o: Output
    _lse: Output | None

    @property
    def tokens(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def scale_dtype(self) -> str | None:
        """torch's name of inv_scale's dtype; None without inv_scale."""
        return None if self.inv_scale is None else dtype_name(self.inv_scale.dtype)

    @property
    def o(self) -> Tensor:
        """[T, H, 512] bfloat16, the tensor that a kernel writes."""
        return self._o.buffer

    @property
    def lse(self) -> Tensor | None:
        """[T, H] float32, the tensor that a kernel writes; None if not requested."""
        return None if self._lse is None else self._lse.buffer

    def launch(self, made: Program, *more: int) -> None:
        """Run a program whose parameters are those of `sources`, in order, then `more`. Does nothing without
        tokens."""
        if not self.tokens:
            return
        made(
            self.q,
            self.pages,
            self.inv_scale,
            self.indices,
            self.lens,
            self.attn_sink,
            self.o,
            self.lse,
            self.scale,
            self.block_shift,
            *more,
        )

    def finish(self) -> dict[str, Tensor]:
        """Return the filled tensors: the caller's, or new ones."""
        found = {"o": self._o.finish()}
        if self._lse is not None:
            found["lse"] = self._lse.finish()
        return found


def prepare(params: SwaBufferParams) -> Arguments:
    """The arguments of a call, checked. Raises NotImplementedError for a call that the kernels do not
    support, ValueError for an invalid one."""
    layout = layout_named(WINDOW, params.cache_layout)
    q, attn_sink = params.q, params.attn_sink
    if q.dim() != 3 or q.shape[2] != HEAD_DIM:
        raise ValueError(f"q has shape {list(q.shape)}; it must be [T, H, {HEAD_DIM}]")
    tokens, heads, _ = q.shape
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"q has {heads} heads; it must have 1 to {MAX_HEADS}")
    check_tensor("q", q, q.shape, (BFLOAT16,), q.device)
    pages, block_shift = pages_of(WINDOW, params.cache, layout, BLOCK_SIZES, q.device)
    scales = scales_of(WINDOW, params.inv_scale, layout, len(pages) << block_shift, q.device)
    indices = _indices(params.swa_indices, params.index_shape, tokens, q.device)
    check_tensor("swa_lens", params.swa_lens, (tokens,), (INT32,), q.device)
    if attn_sink is not None:
        check_tensor("attn_sink", attn_sink, (heads,), (FLOAT32,), q.device)
    if params.lse is not None and not params.output_lse:
        raise ValueError("lse is given, which output_lse = False says not to fill")
    found = Arguments(
        q=contiguous_aligned(q, ALIGN),
        pages=pages,
        inv_scale=scales,
        indices=indices,
        lens=contiguous_aligned(params.swa_lens, WORD),
        attn_sink=None if attn_sink is None else contiguous_aligned(attn_sink, WORD),
        scale=HEAD_DIM**-0.5 if params.scale is None else finite_number("scale", params.scale),
        block_shift=block_shift,
        layout=layout,
        _o=output_of("o", params.o, q.shape, BFLOAT16, q.device, ALIGN),
        _lse=output_of("lse", params.lse, (tokens, heads), FLOAT32, q.device, WORD)
        if params.output_lse
        else None,
    )
    _check_apart(found)
    return found


def arch_of(device: torch.device, archs: Sequence[str] = (SM90, SM100, SM103)) -> str:
    """The target for that device. Raises NotImplementedError for a device that none of `archs` runs on."""
    return programs.arch_of(device, archs, "this kernel of swa_decode")


def _check_apart(given: Arguments) -> None:
    """Raises ValueError for outputs in the memory of each other or of an input, which later CTAs still
    read."""
    tensors = {"q": given.q, "cache": given.pages, "inv_scale": given.inv_scale, "swa_lens": given.lens}
    tensors |= {"swa_indices": given.indices, "attn_sink": given.attn_sink, "o": given.o, "lse": given.lse}
    spans = {name: memory_span(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    check_apart(("o", "lse"), spans)


def _indices(swa_indices: Tensor, index_shape: str, tokens: int, device: torch.device) -> Tensor:
    """[T, W] with contiguous elements in a row."""
    if index_shape not in INDEX_SHAPES:
        raise ValueError(f"index_shape is {index_shape!r}; it is one of {', '.join(INDEX_SHAPES)}")
    axes = INDEX_SHAPES[index_shape]
    window = swa_indices.shape[-1] if swa_indices.dim() else 0
    extents = {"T": tokens, "1": 1, "W": window}
    if tuple(swa_indices.shape) != tuple(extents[axis] for axis in axes):
        wanted = ", ".join(str(tokens) if axis == "T" else axis for axis in axes)
        raise ValueError(
            f"swa_indices has shape {list(swa_indices.shape)}; with index_shape {index_shape} it must be"
            f" [{wanted}]"
        )
    if not 1 <= window <= MAX_WINDOW:
        raise ValueError(f"swa_indices has a window of {window}; it must be 1 to {MAX_WINDOW}")
    check_tensor("swa_indices", swa_indices, swa_indices.shape, (INT32,), device)
    return rows_of_entries(flat_indices(swa_indices, index_shape))
