"""A pool of latent rows as the compiled kernels of swa_decode and v4_decode take it, and checks of it.

The checks read shapes, dtypes and addresses, never values. The errors name the argument: NotImplementedError
for what another kernel could take, ValueError for what no kernel could. The cache is never copied.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gdnbench_kernels.arguments import Output
from gdnbench_kernels.latent_pool import PoolNames
from gdnbench_kernels.launch_checks import TensorCheck, check_own_elements, dtypes_of
from gdnbench_kernels.swa_decode.layouts import SERVED, CacheLayout
from gdnbench_kernels.swa_decode.sources import ALIGN, SCALE_DTYPES

WORD = 4
"""Bytes that lens, attn_sink and lse are aligned to."""
CODES = (torch.float8_e4m3fn, torch.uint8)
SCALES = dtypes_of(SCALE_DTYPES)

check_tensor = TensorCheck("the compiled kernels take", first="q")


def layout_named(names: PoolNames, cache_layout: str) -> CacheLayout:
    """The layout of that name."""
    if cache_layout not in tuple(CacheLayout):
        raise ValueError(f"{names.layout} is {cache_layout!r}; it is one of {', '.join(CacheLayout)}")
    layout = CacheLayout(cache_layout)
    if layout not in SERVED:
        what = "a cache" if names.cache == "cache" else names.cache
        raise NotImplementedError(
            f"the compiled kernels take {what} in {' or '.join(SERVED)}, not in {cache_layout}"
        )
    return layout


def pages_of(
    names: PoolNames, cache: Tensor, layout: CacheLayout, sizes: Sequence[int], device: torch.device
) -> tuple[Tensor, int]:
    """(the cache's memory as uint8 [blocks, bytes], log2 of block_size, which is one of `sizes`)."""
    row = layout.row_size
    if cache.dim() != 3 or cache.shape[2] != row:
        raise ValueError(
            f"{names.cache} has shape {list(cache.shape)}; in {layout} it is [blocks, block_size, {row}]"
        )
    blocks, block_size, _ = cache.shape
    if block_size not in sizes:
        allowed = ", ".join(map(str, sizes))
        raise ValueError(f"{names.cache} has a block_size of {block_size}; it must be one of {allowed}")
    if not blocks:
        raise ValueError(f"{names.cache} has no blocks")
    taken = CODES if layout is CacheLayout.PER_TOKEN_SCALE else (torch.uint8,)
    check_tensor(names.cache, cache, cache.shape, taken, device)
    page = block_size * row
    # The stride of a single page is never used.
    stride = cache.stride(0) if blocks > 1 else page
    if cache.stride()[1:] != (row, 1) or stride < page:
        raise ValueError(
            f"{names.cache} has strides {list(cache.stride())}; rows of a page must be contiguous:"
            f" [{page} or more, {row}, 1]"
        )
    # A page of one or two rows of 584 bytes ends at no multiple of 16 bytes; its pages lie further apart.
    if (blocks > 1 and stride % ALIGN) or cache.data_ptr() % ALIGN:
        raise NotImplementedError(
            f"the compiled kernels take pages aligned to {ALIGN} bytes; {_the(names)} starts"
            f" {cache.data_ptr() % ALIGN} bytes past such an address, and its pages lie {stride} bytes apart"
        )
    codes = cache.view(torch.uint8)
    return codes.as_strided((blocks, page), (-(-stride // ALIGN) * ALIGN, 1)), block_size.bit_length() - 1


def _the(names: PoolNames) -> str:
    return "the cache" if names.cache == "cache" else names.cache


def scales_of(
    names: PoolNames, inv_scale: Tensor | None, layout: CacheLayout, slots: int, device: torch.device
) -> Tensor | None:
    """inv_scale [slots], which per_token_scale has and no other layout."""
    if (inv_scale is not None) != (layout is CacheLayout.PER_TOKEN_SCALE):
        what = "missing" if inv_scale is None else "given"
        raise ValueError(
            f"{names.inv_scale} is {what} with {names.layout} {layout}; it belongs to per_token_scale alone"
        )
    if inv_scale is None:
        return None
    check_tensor(names.inv_scale, inv_scale, (slots,), SCALES, device)
    if not inv_scale.is_contiguous():
        raise NotImplementedError(
            f"the compiled kernels take a contiguous {names.inv_scale}: it is as long as the cache and is not"
            " copied"
        )
    return inv_scale


def rows_of_entries(table: Tensor) -> Tensor:
    """A table [rows, entries] with contiguous elements in a row; the rows may lie any distance apart."""
    return table if table.stride(1) == 1 or table.shape[1] == 1 else table.contiguous()


def output_of(
    name: str,
    given: Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    align: int,
) -> Output:
    """The caller's tensor, checked, or a new one."""
    if given is not None:
        check_tensor(name, given, shape, (dtype,), device)
        check_own_elements(name, given)
    return Output.allocate(given, shape, dtype, device, align)
