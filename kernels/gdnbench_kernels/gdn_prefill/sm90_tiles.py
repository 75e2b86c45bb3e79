# SPDX-License-Identifier: Apache-2.0
"""A CTA's work, pipelines and buffers of the fused kernels for Hopper. CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import WorkTile
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_inverse import Scratch
from gdnbench_kernels.plan import KernelPlan

BF16 = cutlass.BFloat16


@dataclass(frozen=True, kw_only=True)
class SliceTile(WorkTile):
    """The work of a CTA: the chunks of a sequence, for one slice of the V rows of a value head."""

    slice: cutlass.Int32

    @staticmethod
    def locate(cu_seqlens: cute.Tensor, value_heads: int, slices: int, number: cutlass.Int32) -> SliceTile:
        """Order: slices of a head, heads of a sequence, sequences. So CTAs that read the same Q and K are
        neighbours."""
        tile = WorkTile.create(cu_seqlens, value_heads, number // slices)
        found = {field.name: getattr(tile, field.name) for field in fields(tile)}
        return SliceTile(**found, slice=number % slices)


@dataclass(frozen=True)
class Rows:
    """The V rows of S of a thread's warpgroup, and the thread's place in them."""

    first: Any
    warp: Any
    lane: Any

    def fragment(self, state: cute.Tensor) -> cute.Tensor:
        """A thread's 64 elements of a state [V, K] in global memory, in the order of wgmma's sums."""
        row = self.first + 16 * self.warp + self.lane // 4
        corner = cute.domain_offset((row, 2 * (self.lane % 4)), state)
        align = 2 * state.element_type.width // 8
        layout = cute.make_layout((2, 2, HEAD_DIM // 8), stride=(1, 8 * HEAD_DIM, 8))
        return cute.make_tensor(corner.iterator.align(align), layout)


@dataclass(frozen=True)
class States:
    """The states of a call in global memory, each [N, Hv, V, K] or None."""

    initial: Any
    final: Any

    @cute.jit
    def load(self, rows: Rows, work: SliceTile, r_s: cute.Tensor) -> None:
        """Load a thread's elements of the initial state; zeros if there is none."""
        if cutlass.const_expr(self.initial is None):
            r_s.fill(0.0)
        else:
            read_state(rows, self.initial[work.sequence, work.head, None, None], r_s)

    @cute.jit
    def store(self, rows: Rows, work: SliceTile, r_s: cute.Tensor) -> None:
        """Store them in the final state, if the call asks for it."""
        if cutlass.const_expr(self.final is not None):
            write_state(rows, self.final[work.sequence, work.head, None, None], r_s)


@cute.jit
def read_state(rows: Rows, state: cute.Tensor, r_s: cute.Tensor) -> None:
    """Load a thread's elements of a state [V, K] in global memory."""
    g_part = rows.fragment(state)
    r_part = cute.make_rmem_tensor(g_part.shape, state.element_type)
    cute.autovec_copy(g_part, r_part)
    r_s.store(r_part.load().to(cutlass.Float32))


@cute.jit
def write_state(rows: Rows, state: cute.Tensor, r_s: cute.Tensor) -> None:
    """Store a thread's elements of a state [V, K] to global memory."""
    r_part = cute.make_rmem_tensor(r_s.shape, state.element_type)
    r_part.store(r_s.load().to(state.element_type))
    cute.autovec_copy(r_part, rows.fragment(state))


@dataclass(frozen=True, kw_only=True)
class Tma:
    """The tensors in global memory from and to which TMA copies tiles: K and Q of all features, V and o of
    those of a slice."""

    k: blackwell.Tma
    q: Any
    v: blackwell.Tma
    o: Any

    @staticmethod
    def create(k: cute.Tensor, q: Any, v: cute.Tensor, o: Any, slices: int) -> Tma:
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        keys: dict[str, Any] = {
            name: None if x is None else blackwell.Tma.create(load, blackwell.by_head(x), (CHUNK, HEAD_DIM))
            for name, x in (("k", k), ("q", q))
        }
        own: dict[str, Any] = {
            name: None
            if x is None
            else blackwell.Tma.create(operation, by_slice(x, slices), (CHUNK, HEAD_DIM // slices))
            for name, operation, x in (("v", load, v), ("o", store, o))
        }
        return Tma(**keys, **own)

    def used(self) -> tuple[blackwell.Tma, ...]:
        return tuple(tensor for tensor in (self.k, self.q, self.v, self.o) if tensor is not None)


def by_slice(x: cute.Tensor, slices: int) -> cute.Tensor:
    """[T, Hv, V] as (tokens, features of a slice, heads times slices)."""
    features = HEAD_DIM // slices
    layout = cute.make_layout((x.shape[0], features, x.shape[1] * slices), stride=(x.stride[0], 1, features))
    return cute.make_tensor(x.iterator, layout)


@dataclass(frozen=True, kw_only=True)
class Pipelines(blackwell.Pipelines):
    k: blackwell.Pipeline
    q: Any = None
    v: blackwell.Pipeline
    tail_k: blackwell.Pipeline
    tail_v: blackwell.Pipeline
    gate: blackwell.Pipeline
    aib: blackwell.Pipeline
    p: Any = None
    o: Any = None

    @classmethod
    def allocate(cls, spec: KernelPlan, smem: Any) -> Pipelines:
        return cls(**{pipe.name: blackwell.Pipeline.allocate(pipe, smem) for pipe in spec.pipelines})

    def init(self) -> None:
        """Initialise the barriers of the plan's pipelines."""
        for field in fields(self):
            if (pipe := getattr(self, field.name)) is not None:
                pipe.init()


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), gates (row, token, stage)."""

    k: cute.Tensor
    q: Any = None
    v: cute.Tensor
    aib: cute.Tensor
    p: Any = None
    o: Any = None
    gate: cute.Tensor

    @staticmethod
    def allocate(plan: KernelPlan, smem: Any) -> Shared:
        """Allocate all buffers but the inverse's."""
        buffers = {}
        for buffer in plan.smem:
            name = buffer.name.removeprefix("s_")
            if name == "gate":
                buffers[name] = blackwell.vectors(smem, buffer)
                break
            buffers[name] = blackwell.tiles(smem, buffer)
        return Shared(**buffers)


def address_of(s_tiles: cute.Tensor, stage: Any, block: Any = 0) -> Any:
    """The shared address of a stage of a buffer of tiles, from a block of 64 columns on."""
    rows, columns = cute.size(s_tiles, mode=[0]), cute.size(s_tiles, mode=[1])
    return s_tiles.iterator.toint() + stage * (2 * rows * columns) + block * (rows * 128)


@dataclass(frozen=True)
class Lane:
    """Offsets of the calling thread, warp `warp` of its warpgroup, for ldmatrix and stmatrix in tiles with
    rows of 128 bytes: in chunk c of row r, with the swizzle at c ^ (r % 8), are 8 columns."""

    warp: Any
    lane: Any

    def by_row(self, pair: int) -> Any:
        """Of columns 16 pair .. of the warp's 16 rows."""
        row = 16 * self.warp + self.lane % 16
        return (128 * row + 16 * (self.lane // 16 ^ row % 8)) ^ 32 * pair

    def by_token(self, pair: int) -> Any:
        """Of rows 16 pair .. of the warp's 16 columns."""
        column = 2 * self.warp + self.lane // 8 % 2
        row = 8 * (self.lane // 16) + self.lane % 8
        return 128 * row + 16 * (column ^ self.lane % 8) + 2048 * pair


def allocate_scratch(plan: KernelPlan, smem: Any, split: bool, heads: int = 1) -> Scratch:
    """The memory of the inverses, of the first warpgroup."""
    buffers = plan.buffer("s_blocks"), plan.buffer("s_diagonal")
    return Scratch.allocate(smem, buffers, split, heads)
