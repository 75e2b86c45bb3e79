# SPDX-License-Identifier: Apache-2.0
"""The left operands of the portable kernel in shared memory: queries, then weights. CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import CHUNK
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW

TILE = 16
"""Heads per product."""


@dataclass(frozen=True)
class Queries:
    """Q in shared memory, f16, with features in the order of the keys."""

    s_q: cutlass.Int32
    lane: cutlass.Int32
    tiles: int

    def store_row(self, row: Any, part: int, words: list[Any]) -> None:
        """Store eight features of a row, four pairs: those of the lane in half `part` of a row. The first and
        third pair go to one chunk of a step, the others to the other. The steps' chunks are permuted so that
        lanes access different banks."""
        step = part * (HEAD_DIM // 32) + self.lane // 2
        for odd in range(2):
            chunk = (2 * step + odd) ^ (step >> 2 & 1) ^ (row % 8)
            address = self.s_q + row * (2 * HEAD_DIM) + chunk * CHUNK + self.lane % 2 * (CHUNK // 2)
            ops.store_shared(address, words[odd], words[odd + 2])

    def mma(self, acc: cute.Tensor, step: Any, keys: list[ops.Pair]) -> None:
        """acc[m][n] += Q K^T over 16 features, for 8 entries each."""
        lane = self.lane
        for m in range(self.tiles):
            chunk = (2 * step + (lane >> 4)) ^ (step >> 2 & 1) ^ (lane & 7)
            row = m * TILE + (lane & 15)
            a = ops.ldmatrix(self.s_q + row * (2 * HEAD_DIM) + chunk * CHUNK)
            for n, b in enumerate(keys):
                ops.mma(acc, (len(keys) * m + n) * 4, a, b)


@dataclass(frozen=True)
class Weights:
    """P in shared memory, f16 [rows, 128]."""

    s_p: cutlass.Int32
    lane: cutlass.Int32
    tiles: int

    def store_pair(self, row: Any, entry: Any, pair: Any) -> None:
        """Store the weights of `entry`, which is even, and the next entry."""
        chunk = (entry // 8) ^ (row % 8)
        ops.store_shared(self.s_p + row * (2 * MAX_WINDOW) + chunk * CHUNK + entry % 8 * 2, pair)

    def fragments(self, step: Any) -> list[ops.Quad]:
        """The operands of 16 entries, for every 16 rows."""
        lane = self.lane
        chunk = (2 * step + (lane >> 4)) ^ (lane & 7)
        at = self.s_p + (lane & 15) * (2 * MAX_WINDOW) + chunk * CHUNK
        return [ops.ldmatrix(at + m * TILE * (2 * MAX_WINDOW)) for m in range(self.tiles)]
