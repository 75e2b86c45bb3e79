# SPDX-License-Identifier: Apache-2.0
"""Calls of FlashInfer's HCA kernel (CuTe DSL, SM100), recorded as v4_decode.

    function                              window                         compressed positions, all of them
    trtllm_batch_decode_sparse_mla_dsv4   hca_swa_indices [B*Q, 128],    hca_compressed_block_tables
      with backend="cute-dsl"             swa_topk_lens [B*Q]            [B*Q, pages], sparse_topk_lens [B*Q]
    cute_dsl_hca_decode                   window_indices,                compressed_block_tables,
                                          window_valid_lens              sparse_topk_lens

`sparse_topk_lens` counts 128 window slots as well, whatever the window has. The kernel gathers before it
masks: every index must be legal, and the record says so (`masked_indices`). Queries and pages are e4m3
without scales; capture makes the q of the record in bfloat16, which is exact, and scales of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gdnbench.capture.adapter import NotCaptured, Observation
from gdnbench.capture.adapters.serving_flash_mla import MANY_QUERIES
from gdnbench.capture.adapters.v4_calls import Segment, unit_scales, v4_observation

if TYPE_CHECKING:
    from torch import Tensor

OWN_SCALE = "values with a scale of their own (bmm2_scale, output_scale), which the operations do not have"
ROWS = "rows of another format than the 584 bytes of DeepSeek-V4 or 512 values of q's dtype"
UNEVEN = "a window's pool whose rows are no whole pages of 16 to 256"
WINDOW = 128
PLACES = {
    "window": ("swa_kv_cache", "window_kv_cache"),
    "compressed": ("compressed_kv_cache", "compressed_kv_cache"),
    "window_indices": ("hca_swa_indices", "window_indices"),
    "pages": ("hca_compressed_block_tables", "compressed_block_tables"),
    "window_lens": ("swa_topk_lens", "window_valid_lens"),
    "scale": ("bmm1_scale", "softmax_scale"),
    "output_scale": ("bmm2_scale", "output_scale"),
}
"""Parameters of either function."""


def hca_observation(arguments: Mapping[str, Any], *, direct: bool) -> Observation:
    """A call of the HCA kernel. `direct`: of `cute_dsl_hca_decode`. NotCaptured for a call that the operation
    does not describe."""
    import torch

    from gdnbench.capture.adapters.paged import paged_view
    from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
    from gdnbench_kernels.v4_decode.sizes import MAX_QUERIES

    given = {name: arguments[places[direct]] for name, places in PLACES.items()}
    query, lengths = arguments["query"], arguments["sparse_topk_lens"]
    caches = (given["window"], given["compressed"])
    if given["output_scale"] != 1:
        raise NotCaptured(OWN_SCALE)
    if any(one.shape[-1] != HEAD_DIM or one.dtype != query.dtype for one in caches):
        raise NotCaptured(ROWS)
    if query.shape[1] > MAX_QUERIES:
        raise NotCaptured(MANY_QUERIES)
    layout = "per_token_scale" if query.element_size() == 1 else "bfloat16"
    window, compressed = (
        _in_pages(one) if one.ndim == 2 else paged_view(one, layout, None) for one in caches
    )
    scaled = layout == "per_token_scale"
    made = ["extra_lens", *(("q", "inv_scale", "extra_inv_scale") if scaled else ())]
    return v4_observation(
        q=query.to(torch.bfloat16),
        window=Segment(
            window,
            given["window_indices"],
            given["window_lens"],
            layout,
            unit_scales(window) if scaled else None,
        ),
        extra=Segment(
            compressed,
            given["pages"],
            (lengths - WINDOW).clamp(min=0),
            layout,
            unit_scales(compressed) if scaled else None,
            of_pages=True,
        ),
        attn_sink=arguments["sinks"],
        scale=float(given["scale"]),
        dispatch={"path": "decode", "backend": "flashinfer cute-dsl", "made_by_capture": made},
        callers={"q": query, "extra_lens": lengths},
        masked_indices="legal",
    )


def _in_pages(pool: Tensor) -> Tensor:
    """A pool of rows [rows, 512] as pages of the operation, as large as divide it."""
    from gdnbench_kernels.swa_decode.sizes import BLOCK_SIZES

    size = next((one for one in sorted(BLOCK_SIZES, reverse=True) if pool.shape[0] % one == 0), None)
    if size is None:
        raise NotCaptured(UNEVEN)
    return pool.view(-1, size, pool.shape[1])
