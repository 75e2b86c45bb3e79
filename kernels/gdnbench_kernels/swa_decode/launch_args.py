"""Checks the arguments of a call of swa_decode's compiled kernels, and makes the tensors for its launch.

The checks read shapes, dtypes and addresses, never values, so nothing waits for the device. The errors name
the argument: NotImplementedError for what another kernel could take, ValueError for what no kernel could. The
cache is never copied; other tensors whose memory layout a kernel cannot use are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels import programs
from gdnbench_kernels.arguments import Output, contiguous_aligned
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.launch_checks import (
    TensorCheck,
    check_apart,
    check_own_elements,
    dtypes_of,
    finite_number,
    memory_span,
)
from gdnbench_kernels.programs import SM90, SM100, SM103
from gdnbench_kernels.swa_decode.layouts import SERVED, CacheLayout
from gdnbench_kernels.swa_decode.params import SwaBufferParams
from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES, HEAD_DIM, MAX_HEADS, MAX_WINDOW
from gdnbench_kernels.swa_decode.sources import ALIGN, SCALE_DTYPES
from gdnbench_kernels.swa_decode.window import INDEX_SHAPES, flat_indices
from gdnbench_kernels.validate import dtype_name

WORD = 4
"""Bytes that lens, attn_sink and lse are aligned to."""

CODES = (torch.float8_e4m3fn, torch.uint8)
INT32, FLOAT32, BFLOAT16 = torch.int32, torch.float32, torch.bfloat16
SCALES = dtypes_of(SCALE_DTYPES)

_check = TensorCheck("the compiled kernels take", first="q")


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
    layout = _layout(params.cache_layout)
    q, attn_sink = params.q, params.attn_sink
    if q.dim() != 3 or q.shape[2] != HEAD_DIM:
        raise ValueError(f"q has shape {list(q.shape)}; it must be [T, H, {HEAD_DIM}]")
    tokens, heads, _ = q.shape
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"q has {heads} heads; it must have 1 to {MAX_HEADS}")
    _check("q", q, q.shape, (BFLOAT16,), q.device)
    pages, block_shift = _pages(params.cache, layout, q.device)
    scales = _scales(params.inv_scale, layout, len(pages) << block_shift, q.device)
    indices = _indices(params.swa_indices, params.index_shape, tokens, q.device)
    _check("swa_lens", params.swa_lens, (tokens,), (INT32,), q.device)
    if attn_sink is not None:
        _check("attn_sink", attn_sink, (heads,), (FLOAT32,), q.device)
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
        _o=_output("o", params.o, q.shape, BFLOAT16, q.device, ALIGN),
        _lse=_output("lse", params.lse, (tokens, heads), FLOAT32, q.device, WORD)
        if params.output_lse
        else None,
    )
    _check_apart(found)
    return found


def arch_of(device: torch.device, archs: Sequence[str] = (SM90, SM100, SM103)) -> str:
    """The target for that device. Raises NotImplementedError for a device that none of `archs` runs on."""
    return programs.arch_of(device, archs, "this kernel of swa_decode")


def _layout(cache_layout: str) -> CacheLayout:
    if cache_layout not in tuple(CacheLayout):
        raise ValueError(f"cache_layout is {cache_layout!r}; it is one of {', '.join(CacheLayout)}")
    layout = CacheLayout(cache_layout)
    if layout not in SERVED:
        raise NotImplementedError(
            f"the compiled kernels take a cache in {' or '.join(SERVED)}, not in {cache_layout}"
        )
    return layout


def _pages(cache: Tensor, layout: CacheLayout, device: torch.device) -> tuple[Tensor, int]:
    """(the cache's memory as uint8 [blocks, bytes], log2 of block_size)."""
    row = layout.row_size
    if cache.dim() != 3 or cache.shape[2] != row:
        raise ValueError(
            f"cache has shape {list(cache.shape)}; in {layout} it is [blocks, block_size, {row}]"
        )
    blocks, block_size, _ = cache.shape
    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise ValueError(f"cache has a block_size of {block_size}; it must be one of {sizes}")
    if not blocks:
        raise ValueError("cache has no blocks")
    taken = CODES if layout is CacheLayout.PER_TOKEN_SCALE else (torch.uint8,)
    _check("cache", cache, cache.shape, taken, device)
    page = block_size * row
    # The stride of a single page is never used.
    stride = cache.stride(0) if blocks > 1 else page
    if cache.stride()[1:] != (row, 1) or stride < page:
        raise ValueError(
            f"cache has strides {list(cache.stride())}; rows of a page must be contiguous:"
            f" [{page} or more, {row}, 1]"
        )
    if stride % ALIGN or cache.data_ptr() % ALIGN:
        raise NotImplementedError(
            f"the compiled kernels take pages aligned to {ALIGN} bytes; the cache starts"
            f" {cache.data_ptr() % ALIGN} bytes past such an address, and its pages lie {stride} bytes apart"
        )
    codes = cache.view(torch.uint8)
    return codes.as_strided((blocks, page), (stride, 1)), block_size.bit_length() - 1


def _check_apart(given: Arguments) -> None:
    """Raises ValueError for outputs in the memory of each other or of an input, which later CTAs still
    read."""
    tensors = {"q": given.q, "cache": given.pages, "inv_scale": given.inv_scale, "swa_lens": given.lens}
    tensors |= {"swa_indices": given.indices, "attn_sink": given.attn_sink, "o": given.o, "lse": given.lse}
    spans = {name: memory_span(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    check_apart(("o", "lse"), spans)


def _scales(inv_scale: Tensor | None, layout: CacheLayout, slots: int, device: torch.device) -> Tensor | None:
    if (inv_scale is not None) != (layout is CacheLayout.PER_TOKEN_SCALE):
        what = "missing" if inv_scale is None else "given"
        raise ValueError(
            f"inv_scale is {what} with cache_layout {layout}; it belongs to per_token_scale alone"
        )
    if inv_scale is None:
        return None
    _check("inv_scale", inv_scale, (slots,), SCALES, device)
    if not inv_scale.is_contiguous():
        raise NotImplementedError(
            "the compiled kernels take a contiguous inv_scale: it is as long as the cache and is not copied"
        )
    return inv_scale


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
    _check("swa_indices", swa_indices, swa_indices.shape, (INT32,), device)
    indices = flat_indices(swa_indices, index_shape)
    return indices if indices.stride(1) == 1 or window == 1 else indices.contiguous()


def _output(
    name: str,
    given: Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    align: int,
) -> Output:
    if given is not None:
        _check(name, given, shape, (dtype,), device)
        check_own_elements(name, given)
    return Output.allocate(given, shape, dtype, device, align)
