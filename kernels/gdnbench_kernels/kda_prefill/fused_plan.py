# SPDX-License-Identifier: Apache-2.0
"""The plan of kernel_sm100_fused.py: its allocations and roles, and the data of its roles. CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.gdn_prefill import inverse
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import Accumulator, Buffer, KernelPlan, Pipeline, Sync

LEVELS = (1, 2, 4, 8, 16, 32)
"""Half the tokens of a block, level by level. A pair of tokens (i, j), i > j, belongs to the one level whose
block has i in its upper half and j in its lower half."""
HALVES = 2
"""Parts of a chunk's tokens: two threads of SCALE have a pair of channels, each in half of the tokens."""


class Role(IntEnum):
    """First warp of each role. setmaxnreg applies to warpgroups, and a warp reads the tensor memory of its
    index within a warpgroup, so STATE is two warpgroups, SCALE and INVERT are one each."""

    STATE = 0
    SCALE = 8
    INVERT = 12
    LOAD = 16
    SCORES = 17
    MMA = 18
    STORE = 19


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1
    INVERT = 2
    SCALE = 3


class Row(IntEnum):
    """Rows of s_halves, each once for either half of the chunk's tokens."""

    SUM = 0  # of the gates
    PRODUCT = 1  # of the decays


TOKENS = (CHUNK, HEAD_DIM)
STATE = (HEAD_DIM, HEAD_DIM)
UPDATE = (HEAD_DIM, CHUNK)
SQUARE = (CHUNK, CHUNK)
TILE_BYTES = 2 * CHUNK * HEAD_DIM
KEYS = 2
"""Stages of K: for the chunk being scaled and for the one whose state is updated."""
SCORES = 3
TOTALS = 2
BETAS = 2
BLOCKS_ALIGN = 1024
"""Of s_blocks, which is an operand of a product between two inversions."""
K_MAJOR = "K-major, SW128"
BY_TOKEN = "row = token, SW128"
ROWS = "row r in lane r"

T_S = Accumulator("t_s", STATE, 0, HEAD_DIM, ROWS)
T_O = Accumulator("t_o", UPDATE, 2 * CHUNK, CHUNK, ROWS)
T_KS = Accumulator("t_ks", UPDATE, 3 * CHUNK, CHUNK, ROWS)
T_V_NEW = Accumulator("t_v_new", UPDATE, 4 * CHUNK, CHUNK, ROWS)
T_KKT = Accumulator("t_kkt", SQUARE, 5 * CHUNK, CHUNK, "M=64: row r in lane 32 (r/16) + r%16", "low", SCORES)
T_QK = Accumulator(
    "t_qk", SQUARE, 5 * CHUNK, CHUNK, "M=64: row r in lane 32 (r/16) + r%16, + 16", "high", SCORES
)


def planned(split: bool) -> KernelPlan:
    """The kernel's plan. With `split` the inverse exchanges twice as much and uses the memory of one stage of
    K."""
    keys = KEYS - split
    return KernelPlan(
        name="kda_fused",
        roles=Role,
        warps={"STATE": 8, "SCALE": 4, "INVERT": 4, "LOAD": 1, "SCORES": 1, "MMA": 1, "STORE": 1},
        does={
            "STATE": "rounds S to h and decays S in TMEM; X, V_new and o; 64 rows each four warps",
            "SCALE": "K and Q of each level, Kd, Qd, Ke and the decay of the chunk into SMEM",
            "INVERT": "A and P from the levels' products; Ai in registers; Ai beta and P into SMEM",
            "LOAD": "TMA of K, Q, g and V; zeros past the end of the sequence",
            "SCORES": "products of the levels",
            "MMA": "allocates TMEM; products with the state",
            "STORE": "o to global memory",
        },
        smem=(
            Buffer("s_k", TOKENS, "bfloat16", f"{K_MAJOR}: K, then Ke, read N-major", keys),
            Buffer("s_q", TOKENS, "bfloat16", K_MAJOR),
            Buffer("s_g", TOKENS, "float32", BY_TOKEN),
            Buffer("s_v", TOKENS, "bfloat16", BY_TOKEN),
            Buffer("s_scaled_k", TOKENS, "bfloat16", f"{K_MAJOR}: K of a level, then Kd"),
            Buffer("s_scaled_q", TOKENS, "bfloat16", f"{K_MAJOR}: Q of a level, then Qd"),
            Buffer("s_h", STATE, "bfloat16", K_MAJOR),
            Buffer("s_left", UPDATE, "bfloat16", f"{K_MAJOR}: X^T, then V_new^T"),
            Buffer("s_aib", SQUARE, "bfloat16", f"{K_MAJOR}: Ai beta_j, rounded"),
            Buffer("s_p", SQUARE, "bfloat16", K_MAJOR),
            Buffer("s_o", TOKENS, "bfloat16", BY_TOKEN),
            Buffer("s_total", (HEAD_DIM,), "float32", "the chunk's decay of each channel", TOTALS, align=128),
            Buffer("s_halves", (HALVES * len(Row), HEAD_DIM), "float32", "rows contiguous", align=128),
            Buffer("s_beta", (CHUNK,), "float32", "a chunk's", BETAS, align=128),
            *inverse.buffers(split, BLOCKS_ALIGN),
        ),
        tmem=(T_S, T_O, T_KS, T_V_NEW, T_KKT, T_QK),
        pipelines=(
            Pipeline("k", keys, "LOAD", 1, "MMA commit", 1, TILE_BYTES),
            Pipeline("q", 1, "LOAD", 1, "SCALE warp, SCORES commit", 5, TILE_BYTES),
            Pipeline("g", 1, "LOAD", 1, "SCALE warp", 4, 2 * TILE_BYTES),
            Pipeline("v", 1, "LOAD", 1, "STATE warp", 8, TILE_BYTES),
            Pipeline("tail", 2, "LOAD", 1, "nobody", 1, TILE_BYTES),
            Pipeline("scaled", 1, "SCALE warp", 4, "SCORES commit", 1),
            Pipeline("reads", 1, "SCALE warp", 4, "MMA commit", 1),
            Pipeline("ends", keys, "SCALE warp", 4, "nobody", 1),
            Pipeline("total", TOTALS, "SCALE warp", 4, "STATE warp", 8),
            Pipeline("scores", SCORES, "SCORES commit", 1, "INVERT warp", 4),
            Pipeline("squares", 1, "INVERT warp", 4, "MMA commit", 1),
            Pipeline("h", 1, "STATE warp", 8, "MMA commit", 1),
            Pipeline("ks", 1, "MMA commit", 1, "STATE warp", 8),
            Pipeline("left", 1, "STATE warp", 8, "MMA commit", 1),
            Pipeline("update", 1, "MMA commit", 1, "STATE warp", 8),
            Pipeline("added", 1, "MMA commit", 1, "STATE warp", 8),
            Pipeline("out", 1, "MMA commit", 1, "STATE warp", 8),
            Pipeline("o", 1, "STATE warp", 8, "STORE", 1),
        ),
        syncs=SYNCS,
    )


SYNCS = (
    Sync("fence.mbarrier_init, barrier TMEM", "all", "mbarriers, tensor memory: before their use"),
    Sync("setmaxnreg", "all", "increases wait for the others' decrease"),
    Sync("tail pipeline", "LOAD", "K, V have landed before zeros are stored"),
    Sync("fence.proxy.async", "LOAD", "zeros in s_k written before products read them"),
    Sync("fence.proxy.async", "SCALE", "s_scaled_k, s_scaled_q, s_k written before products"),
    Sync("fence.proxy.async", "SCALE", "s_q, s_g read before TMA writes"),
    Sync("barrier SCALE", "SCALE", "s_halves written before the other half is read"),
    Sync("barrier INVERT", "INVERT", "exchanges within the inverse: inverse.py"),
    Sync("barrier INVERT", "INVERT", "s_blocks read before Ai beta's rest replaces it"),
    Sync("fence.proxy.async", "INVERT", "s_aib, s_blocks, s_p written before products read them"),
    Sync("fence.proxy.async", "STATE", "s_h, s_left written before products"),
    Sync("fence.proxy.async", "STATE", "s_o written before TMA, s_v read before TMA writes"),
    Sync("tcgen05.wait::ld", "INVERT, STATE", "tensor memory read before its release"),
    Sync("tcgen05.wait::st", "STATE", "S written before products add to it"),
    Sync("tcgen05.fence before, after", "TMEM's users", "tensor memory, with the mbarriers around"),
    Sync("bulk wait_group.read", "STORE", "the TMA store has read s_o before its release"),
    Sync("bulk wait_group", "STORE", "o stored before the CTA ends"),
    Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
    Sync("barrier of the CTA", "all", "tensor memory read before it is freed"),
)


@dataclass(frozen=True)
class Pipelines(blackwell.Pipelines):
    k: blackwell.Pipeline
    q: blackwell.Pipeline
    g: blackwell.Pipeline
    v: blackwell.Pipeline
    tail: blackwell.Pipeline
    scaled: blackwell.Pipeline
    reads: blackwell.Pipeline
    ends: blackwell.Pipeline
    total: blackwell.Pipeline
    scores: blackwell.Pipeline
    squares: blackwell.Pipeline
    h: blackwell.Pipeline
    ks: blackwell.Pipeline
    left: blackwell.Pipeline
    update: blackwell.Pipeline
    added: blackwell.Pipeline
    out: blackwell.Pipeline
    o: blackwell.Pipeline


@dataclass(frozen=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), s_total (channel, stage), s_halves (row, channel),
    s_beta (token, stage)."""

    k: cute.Tensor
    q: cute.Tensor
    g: cute.Tensor
    v: cute.Tensor
    scaled_k: cute.Tensor
    scaled_q: cute.Tensor
    h: cute.Tensor
    left: cute.Tensor
    aib: cute.Tensor
    p: cute.Tensor
    o: cute.Tensor
    total: cute.Tensor
    halves: cute.Tensor
    beta: cute.Tensor

    @staticmethod
    def allocate(plan: KernelPlan, smem: Any) -> Shared:
        """Allocate all buffers but the inverse's."""
        *tiles, total, halves, beta = plan.smem[: -len(inverse.buffers())]
        s_tiles = [blackwell.tiles(smem, tile) for tile in tiles]
        s_total, s_halves, s_beta = [blackwell.vectors(smem, buffer) for buffer in (total, halves, beta)]
        return Shared(*s_tiles, *[s_total, s_halves[None, None, 0], s_beta])
