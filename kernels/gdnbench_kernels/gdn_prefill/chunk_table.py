# SPDX-License-Identifier: Apache-2.0
"""Looks up a chunk on the device in the tables that `chunk_metadata` writes. CuTe DSL."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM

__all__ = ["CHUNK", "HEAD_DIM", "chunk_at"]


@cute.jit
def chunk_at(
    chunk: cutlass.Int32, chunk_indices: cute.Tensor, cu_seqlens: cute.Tensor
) -> tuple[cutlass.Int32, cutlass.Int32]:
    """(first token, number of tokens, 1..64) of global chunk `chunk` < total_chunks."""
    sequence = chunk_indices[chunk, 0]
    start = cu_seqlens[sequence] + CHUNK * chunk_indices[chunk, 1]
    return start, cutlass.min(CHUNK, cu_seqlens[sequence + 1] - start)
