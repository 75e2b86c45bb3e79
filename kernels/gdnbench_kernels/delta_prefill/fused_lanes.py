"""Where a thread of the STATE role stores and loads matrices of 8 x 8, as offsets into a tile. CuTe DSL.

A warp has 16 rows of each tile of 128 rows: those of its lanes of tensor memory. stmatrix and ldmatrix move
four matrices at once, 16 rows by 16 columns of them; each lane passes the address of one row of one matrix.
In a row of 128 bytes the swizzle exchanges chunks of 16 bytes: chunk c of row r is at c ^ (r % 8). So a
lane's addresses in all tiles follow from one offset, by XOR with a constant, or by adding one.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import GROUP_WARPS, HALF_LANES
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import WARP

BF16 = cutlass.BFloat16
ROW = 128
"""Bytes of a row of a swizzled tile: 64 columns of bf16; further columns follow all rows."""
PAIR = 16
"""Columns that one stmatrix or ldmatrix moves."""
PAIRS = CHUNK // PAIR


@dataclass(frozen=True)
class Lanes:
    """The calling thread's offsets in bytes. `by_row`: in a tile of 128 rows, for each 16 columns.
    `by_token`: in a tile whose rows are tokens and whose columns are the warp's rows, for the first 16
    tokens."""

    by_row: tuple[Any, ...]
    by_token: Any

    @staticmethod
    def create(half: Any, thread: Any) -> Lanes:
        """For thread number `thread` of the warpgroup `half` of STATE."""
        lane = thread % WARP
        first = WARP * (thread // WARP % GROUP_WARPS) + HALF_LANES * half  # the warp's first row
        row = first + lane % 16
        chunk = lane // 16 ^ row % 8
        start = ROW * row + 16 * chunk
        column, token = first + 8 * (lane // 8 % 2), 8 * (lane // 16) + lane % 8
        by_token = ROW * (CHUNK * (column // CHUNK) + token) + 16 * (column % CHUNK // 8 ^ token % 8)
        return Lanes(tuple(start ^ 2 * PAIR * pair for pair in range(PAIRS)), by_token)

    def store(self, r_values: cute.Tensor, s_tile: cute.Tensor, part: int = 0) -> None:
        """Store a thread's 32 values of 64 columns, in the order of tcgen05.ld 16x256b, to columns 64 part ..
        of a tile of 128 rows."""
        for pair in range(PAIRS):
            self._store(r_values, pair, s_tile, self.by_row[pair] + HEAD_DIM * ROW * part, False)

    def store_by_token(self, r_values: cute.Tensor, s_tile: cute.Tensor, first: int = 0) -> None:
        """Store values of (row, token), from token `first` on, to a tile of (token, row)."""
        for pair in range(cute.size(r_values) // blackwell.VECTOR):
            self._store(r_values, pair, s_tile, self.by_token + ROW * (first + PAIR * pair), True)

    def load_by_token(self, s_tile: cute.Tensor, r_values: cute.Tensor) -> None:
        """The inverse of `store_by_token`."""
        atom = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(True, 4), BF16)
        for pair in range(PAIRS):
            r_pair = cute.local_tile(flat(r_values), (blackwell.VECTOR,), (pair,))
            cute.copy(atom, _row(s_tile, self.by_token + PAIR * ROW * pair), r_pair)

    def _store(
        self, r_values: cute.Tensor, pair: int, s_tile: cute.Tensor, offset: Any, transpose: bool
    ) -> None:
        atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(transpose, 4), BF16)
        r_pair = cute.local_tile(flat(r_values), (blackwell.VECTOR,), (pair,))
        cute.copy(atom, r_pair, _row(s_tile, offset))


def flat(r_values: cute.Tensor) -> cute.Tensor:
    """A thread's values in their order."""
    return cute.make_tensor(r_values.iterator, cute.make_layout(cute.size(r_values)))


def _row(s_tile: cute.Tensor, offset: Any) -> cute.Tensor:
    """The 16 bytes at an offset of a tile in shared memory."""
    pointer = cute.make_ptr(BF16, s_tile.iterator.toint() + offset, cute.AddressSpace.smem, assumed_align=16)
    return cute.make_tensor(pointer, cute.make_layout(blackwell.VECTOR))
