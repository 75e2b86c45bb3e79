# SPDX-License-Identifier: Apache-2.0
"""The plan of kernel_sm100.py: its allocations and roles, and the data of its roles. CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench_kernels import blackwell
from gdnbench_kernels.plan import Accumulator, Buffer, KernelPlan, Pipeline, Sync
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW, TILE_HEADS

HEADS = TILE_HEADS
TOKENS = MAX_WINDOW
QUARTERS = 4
FEATURES = HEAD_DIM // QUARTERS
"""Features of a quarter of a latent row, which is gathered, multiplied and stored at once."""
HALF = 64
"""Columns of an accumulator that a thread loads at once."""


class Role(IntEnum):
    """First warp of each role. SOFTMAX and EPILOGUE read the tensor memory of a warp's index in its
    warpgroup. setmaxnreg needs whole warpgroups: IDLE fills the last one."""

    SOFTMAX = 0
    EPILOGUE = 4
    GATHER = 8
    LOAD = 16
    MMA = 17
    IDLE = 18


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1
    EPILOGUE = 2


REGISTERS = {Role.SOFTMAX: 120, Role.EPILOGUE: 72, Role.GATHER: 112, Role.LOAD: 64}
"""Registers per thread after setmaxnreg; LOAD, MMA and IDLE have LOAD's. 96 at launch, the most that 640
threads can have."""
TILED_REGISTERS = {**REGISTERS, Role.EPILOGUE: 80, Role.LOAD: 56}
"""The same of a kernel whose items have several tiles of entries: EPILOGUE also rescales o between them."""

K_MAJOR = "K-major, SW128"
LANES = "M=64: row r in lane 32 (r/16) + r%16"
T_S = Accumulator("t_s", (HEADS, TOKENS), 0, TOKENS, LANES, "low")
T_EVEN = Accumulator("t_even", (HEADS, FEATURES), TOKENS, FEATURES, LANES, "low", QUARTERS // 2)
T_ODD = Accumulator("t_odd", (HEADS, FEATURES), TOKENS, FEATURES, f"{LANES}, + 16", "high", QUARTERS // 2)
"""Accumulators of quarters 0 and 2 of o, and of quarters 1 and 3."""

PLAN = KernelPlan(
    name="tcgen05_decode",
    roles=Role,
    warps={"SOFTMAX": 4, "EPILOGUE": 4, "GATHER": 8, "LOAD": 1, "MMA": 1, "IDLE": 2},
    does={
        "SOFTMAX": "S from TMEM, softmax over the window, P into s_p; lse",
        "EPILOGUE": "O from TMEM, divided, through s_o to memory",
        "GATHER": "rows of the window from the pages, as bf16 into s_kv; their factors",
        "LOAD": "TMA of Q",
        "MMA": "allocates TMEM; all products",
        "IDLE": "nothing",
    },
    smem=(
        Buffer("s_kv", (TOKENS, FEATURES), "bfloat16", f"{K_MAJOR}; read as N-major too", QUARTERS),
        Buffer("s_q", (HEADS, FEATURES), "bfloat16", K_MAJOR, QUARTERS),
        Buffer("s_p", (HEADS, TOKENS), "bfloat16", K_MAJOR),
        Buffer("s_o", (HEADS, FEATURES), "bfloat16", "row = head, SW128"),
        Buffer("s_factor", (TOKENS, 2), "float32", "factor of a token, then 0, or -inf if not attended"),
        Buffer("s_inverse", (HEADS,), "float32", "what o of a head is multiplied by", align=16),
    ),
    tmem=(T_S, T_EVEN, T_ODD),
    pipelines=(
        Pipeline("kv", QUARTERS, "GATHER warp", 8, "MMA commit", 1),
        Pipeline("q", QUARTERS, "LOAD", 1, "MMA commit", 1, 2 * HEADS * FEATURES),
        Pipeline("factor", 1, "GATHER warp", 8, "SOFTMAX warp", 4),
        Pipeline("scores", 1, "MMA commit", 1, "SOFTMAX warp", 4),
        Pipeline("p", 1, "SOFTMAX warp", 4, "MMA commit", 1),
        Pipeline("inverse", 1, "SOFTMAX warp", 4, "EPILOGUE warp", 4),
        Pipeline("o", QUARTERS, "MMA commit", 1, "EPILOGUE warp", 4),
    ),
    syncs=(
        Sync("fence.mbarrier_init, barrier TMEM", "all", "mbarriers, TMEM there before they are used"),
        Sync("setmaxnreg", "all", "increases wait for the others' decrease"),
        Sync("relinquish", "MMA", "TMEM taken before another CTA may ask for it"),
        Sync("fence.proxy.async, s_kv", "GATHER", "rows written before products read them"),
        Sync("fence.proxy.async, s_p", "SOFTMAX", "P written before products read it"),
        Sync("bar.warp.sync", "SOFTMAX", "no factor is loaded early: registers"),
        Sync("bar.warp.sync, arrivals", "who arrives by warp", "a warp's accesses before the arrival for it"),
        Sync("tcgen05.fence before, after", "MMA, SOFTMAX, EPILOGUE", "products, TMEM with arrivals, waits"),
        Sync("tcgen05.wait::ld", "SOFTMAX, EPILOGUE", "TMEM read before its release"),
        Sync("bulk wait_group.read", "EPILOGUE, warp 4", "the last TMA store has read s_o"),
        Sync("barrier EPILOGUE, first", "EPILOGUE", "s_o read by the last store before it is written"),
        Sync("fence.proxy.async, s_o", "EPILOGUE", "o in s_o before the TMA store reads it"),
        Sync("barrier EPILOGUE, second", "EPILOGUE", "all of s_o written before it is stored"),
        Sync("bulk wait_group", "EPILOGUE, warp 4", "o stored before the CTA ends"),
        Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
        Sync("barrier of the CTA", "all", "TMEM read before it is freed"),
    ),
)


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    kv: blackwell.Pipeline
    q: blackwell.Pipeline
    factor: blackwell.Pipeline
    scores: blackwell.Pipeline
    p: blackwell.Pipeline
    inverse: blackwell.Pipeline
    o: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), then vectors."""

    kv: cute.Tensor
    q: cute.Tensor
    p: cute.Tensor
    o: cute.Tensor
    factor: cute.Tensor
    inverse: cute.Tensor

    @staticmethod
    def allocate(smem: Any) -> Shared:
        *tiles, factor, inverse = PLAN.smem
        s_tiles = [blackwell.tiles(smem, tile) for tile in tiles]
        return Shared(*s_tiles, *(blackwell.vectors(smem, vector) for vector in (factor, inverse)))


@dataclass(frozen=True)
class PipelineState:
    """A stage of a pipeline and its phase. Every work tile of a CTA uses the same stages, each at most once.
    So a consumer's phase is the parity of the turn, a producer's the opposite."""

    index: Any
    phase: Any


def consumer_state(turn: cutlass.Int32, stage: Any = 0) -> PipelineState:
    return PipelineState(stage, turn & 1)


def producer_state(turn: cutlass.Int32, stage: Any = 0) -> PipelineState:
    return PipelineState(stage, (turn & 1) ^ 1)


@dataclass(frozen=True)
class Tile:
    """A tile of 128 entries of an item: its number among the CTA's tiles, and whether the item has tiles
    before it."""

    step: Any
    more: Any


def base_of(quarter: cutlass.Int32, base: cute.Pointer) -> cute.Pointer:
    """The base address with which T_EVEN, at stage quarter / 2, addresses the accumulator of `quarter`, which
    for odd quarters is in T_ODD."""
    distance = T_ODD.offset - T_EVEN.offset
    return base + cute.assume(quarter % 2 * distance, divby=distance)


@dataclass(frozen=True)
class TileScheduler:
    """The work of a CTA: its part of o's features for each of its items, a tile of heads of a request."""

    tiles: int  # tiles of heads per request
    count: cutlass.Int32
    first: cutlass.Int32  # first quarter of o's features
    stop: cutlass.Int32

    @staticmethod
    def create(tokens: Any, heads: int) -> TileScheduler:
        """The scheduler of CTA (part, worker) in a grid of (parts, workers)."""
        tiles = -(-heads // HEADS)
        part, worker, _ = cute.arch.block_idx()
        parts, workers, _ = cute.arch.grid_dim()
        quarters = QUARTERS // parts
        return TileScheduler(
            tiles, (tokens * tiles - worker + workers - 1) // workers, part * quarters, (part + 1) * quarters
        )

    def work_tile(self, turn: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32]:
        """(request, its first head) of the CTA's item number `turn`."""
        item = cute.arch.block_idx()[1] + turn * cute.arch.grid_dim()[1]
        return item // self.tiles, item % self.tiles * HEADS

    def tiles_of(self, turn: cutlass.Int32) -> Any:
        """How many tiles of entries the CTA's item number `turn` has."""
        return 1

    def owns(self, quarter: Any) -> Any:
        """Whether the CTA computes this quarter of o."""
        return (quarter >= self.first) & (quarter < self.stop)


def half_mma() -> cute.TiledMma:
    """An MMA whose accumulator has the columns that a thread loads at once."""
    return blackwell.make_tiled_mma(OperandMajorMode.K, HEADS, HALF)
