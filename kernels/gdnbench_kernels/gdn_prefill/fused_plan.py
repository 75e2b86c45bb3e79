# SPDX-License-Identifier: Apache-2.0
"""The plan of kernel_sm100_fused.py: its allocations and roles, and the data of its roles. CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import cutlass.cute as cute

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import PARTS
from gdnbench_kernels.gdn_prefill import inverse
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import Accumulator, Buffer, KernelPlan, Pipeline, Sync


class Role(IntEnum):
    """First warp of each role. STATE is two warpgroups, INVERT one, the others one: setmaxnreg applies to
    warpgroups, and a warp reads the tensor memory of its index within a warpgroup. GATE, whose instructions
    are the most of the last four, shares a sub-partition with the warp of INVERT that has the least to do."""

    STATE = 0
    INVERT = 8
    GATE = 12
    MMA = 13
    LOAD = 14
    STORE = 15


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own."""

    TMEM = 1
    INVERT = 2


class Row(IntEnum):
    """Rows of s_gate, the first as `gate_scan.Gate` has them."""

    G_CU = 0
    BETA = 1
    DECAY = 2  # exp(g_cu)
    REST = 3  # exp(g_last - g_cu)


TOKENS = (CHUNK, HEAD_DIM)
STATE = (HEAD_DIM, HEAD_DIM)
UPDATE = (HEAD_DIM, CHUNK)
SQUARE = (CHUNK, CHUNK)
TILE_BYTES = 2 * CHUNK * HEAD_DIM
AHEAD = 2
"""Stages of the tiles that are computed ahead of the state."""
KEYS = 3
"""Stages of K, which is used from the first product, issued ahead, to the last one of its chunk."""
GATES = 4
"""Stages of gates: for the chunks in the inverse, in the state update and in the output; a power of two, so
that a chunk's number tells its stage."""
MAP = {name: f"map_{name}" for name in ("h", "ks", "left", "update", "added")}
"""Names of what kernel_sm100_transfer.py has once for B and once more for M."""
NOBODY = "nobody"
"""Releases no stage: other barriers already order what would be overwritten."""
K_MAJOR = "K-major, SW128"
BY_TOKEN = "row = token, SW128"
ROWS = "row r in lane r"

T_KKT = Accumulator("t_kkt", SQUARE, 0, CHUNK, "M=64: row r in lane 32 (r/16) + r%16", "low", AHEAD)
T_QK = Accumulator("t_qk", SQUARE, 0, CHUNK, "M=64: row r in lane 32 (r/16) + r%16, + 16", "high", AHEAD)
T_KS = Accumulator("t_ks", UPDATE, 2 * CHUNK, CHUNK, f"{ROWS}: (K h^T)^T, then V_new^T")
T_V_NEW = T_KS
T_QS = Accumulator("t_qs", UPDATE, 3 * CHUNK, CHUNK, ROWS, stages=AHEAD)
T_PV = Accumulator("t_pv", UPDATE, 5 * CHUNK, CHUNK, ROWS)
T_ADDED = Accumulator("t_added", STATE, 6 * CHUNK, HEAD_DIM, ROWS)

# Of M, in kernel_sm100_transfer.py; B has the others.
T_MAP_KS = Accumulator("t_map_ks", UPDATE, 3 * CHUNK, CHUNK, f"{ROWS}: (K h^T)^T, then V_new^T, of M")
T_MAP = Accumulator("t_map", STATE, 4 * CHUNK, HEAD_DIM, f"{ROWS}: M")


def planned(split: bool) -> KernelPlan:
    """The kernel's plan. With `split` the inverse exchanges twice as much and uses the memory of one stage of
    K."""
    keys = KEYS - split
    return KernelPlan(
        name="chunk_fused",
        roles=Role,
        warps={"STATE": 8, "INVERT": 4, "GATE": 1, "MMA": 1, "LOAD": 1, "STORE": 1},
        does={
            "STATE": "carries S in registers, 64 rows each four warps; h, X, V_new and o",
            "INVERT": "KKT and QK from TMEM; A and Ai in registers; Ai beta and P into SMEM",
            "LOAD": "TMA of K, Q and V; zeros past the end of the sequence",
            "MMA": "allocates TMEM; all products, KKT and QK ahead",
            "GATE": "scans g; g_cu, beta, exp(g_cu) and exp(g_last - g_cu) into SMEM",
            "STORE": "o to global memory",
        },
        smem=(
            Buffer("s_k", TOKENS, "bfloat16", f"{K_MAJOR}; read as N-major too", keys),
            Buffer("s_q", TOKENS, "bfloat16", K_MAJOR, AHEAD),
            Buffer("s_v", TOKENS, "bfloat16", BY_TOKEN),
            Buffer("s_h", STATE, "bfloat16", K_MAJOR),
            Buffer("s_left", UPDATE, "bfloat16", f"{K_MAJOR}: X^T, then (V_new exp(g_last - g_cu))^T"),
            Buffer("s_v_new", UPDATE, "bfloat16", f"{K_MAJOR}: V_new^T"),
            Buffer("s_aib", SQUARE, "bfloat16", f"{K_MAJOR}: Ai beta_j", AHEAD),
            Buffer("s_p", SQUARE, "bfloat16", K_MAJOR, AHEAD),
            Buffer("s_o", TOKENS, "bfloat16", BY_TOKEN),
            Buffer("s_gate", (len(Row), CHUNK), "float32", "a row for each of GATE's", GATES, align=128),
            *inverse.buffers(split),
        ),
        tmem=(T_KKT, T_QK, T_KS, T_QS, T_PV, T_ADDED),
        pipelines=(
            Pipeline("k", keys, "LOAD", 1, "MMA commit", 1, TILE_BYTES),
            Pipeline("q", AHEAD, "LOAD", 1, "MMA commit", 1, TILE_BYTES),
            Pipeline("v", 1, "LOAD", 1, "STATE warp", 8, TILE_BYTES),
            Pipeline("tail", 2, "LOAD", 1, NOBODY, 1, TILE_BYTES),
            Pipeline("gate", GATES, "GATE", 1, "INVERT, STATE warp", 12),
            Pipeline("scores", AHEAD, "MMA commit", 1, NOBODY, 1),
            Pipeline("squares", AHEAD, "INVERT warp", 4, "MMA commit", 1),
            Pipeline("h", PARTS, "STATE warp", 8, NOBODY, 1),
            Pipeline("ks", 1, "MMA commit", 1, NOBODY, 1),
            Pipeline("left", 1, "STATE warp", 8, NOBODY, 1),
            Pipeline("update", 1, "MMA commit", 1, NOBODY, 1),
            Pipeline("added", 1, "MMA commit", 1, NOBODY, 1),
            Pipeline("o", 1, "STATE warp", 8, "STORE", 1),
        ),
        syncs=SYNCS,
    )


def _with_map(part: Any, prefix: str = "") -> tuple[Any, ...]:
    """A buffer or pipeline of B, and M's own if M has one: that of MAP's."""
    name = part.name.removeprefix(prefix)
    return (part, replace(part, name=f"{prefix}{MAP[name]}")) if name in MAP else (part,)


def planned_transfer(split: bool) -> KernelPlan:
    """The plan of kernel_sm100_transfer.py: the kernel's own without Q, P and o."""
    plan = planned(split)
    outputs = ("q", "v_new", "p", "o")
    # KKT, which INVERT waits for, is issued after the product that reads the last squares of the stage.
    changes: dict[str, dict[str, Any]] = {
        "k": {"stages": KEYS},
        "squares": {"empty_by": NOBODY},
    }
    return replace(
        plan,
        name="chunk_transfer",
        does={
            **plan.does,
            "STATE": "carries B in registers and M in TMEM, 64 rows each four warps; h, X and V_new",
            "INVERT": "KKT from TMEM; A and Ai in registers; Ai beta into SMEM",
            "LOAD": "TMA of K and V; zeros past the end of the sequence",
            "MMA": "allocates TMEM; all products, KKT ahead",
            "STORE": "nothing: setmaxnreg needs a fourth warp",
        },
        smem=tuple(
            part
            for buffer in plan.smem
            if buffer.name.removeprefix("s_") not in outputs
            for part in _with_map(replace(buffer, stages=KEYS) if buffer.name == "s_k" else buffer, "s_")
        ),
        tmem=(T_KKT, T_KS, T_MAP_KS, T_MAP, T_ADDED),
        pipelines=tuple(
            part
            for pipe in plan.pipelines
            if pipe.name not in outputs
            for part in _with_map(replace(pipe, **changes.get(pipe.name, {})))
        ),
        syncs=TRANSFER_SYNCS,
    )


SYNCS = (
    Sync("fence.mbarrier_init, barrier TMEM", "all", "mbarriers, tensor memory: before their use"),
    Sync("setmaxnreg", "all", "increases wait for the others' decrease"),
    Sync("tail pipeline", "LOAD", "K, V have landed before zeros are stored"),
    Sync("fence.proxy.async", "LOAD", "zeros in s_k written before products read them"),
    Sync("barrier INVERT", "INVERT", "exchanges within the inverse: inverse.py"),
    Sync("fence.proxy.async", "INVERT", "s_aib, s_p written before products read them"),
    Sync("fence.proxy.async", "STATE", "s_h, s_left, s_v_new written before products"),
    Sync("fence.proxy.async", "STATE", "s_o written before TMA, s_v read before TMA writes"),
    Sync("tcgen05.wait::ld", "INVERT, STATE", "tensor memory read before its release"),
    Sync("tcgen05.fence before, after", "MMA, INVERT, STATE", "tensor memory, with the mbarriers around"),
    Sync("bulk wait_group.read", "STORE", "the TMA store has read s_o before its release"),
    Sync("bulk wait_group", "STORE", "o stored before the CTA ends"),
    Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
    Sync("barrier of the CTA", "all", "tensor memory read before it is freed"),
)


TRANSFER_SYNCS = (
    *SYNCS[:3],
    Sync("fence.proxy.async", "LOAD", "zeros in s_k written before products read them"),
    Sync("barrier INVERT", "INVERT", "exchanges within the inverse: inverse.py"),
    Sync("fence.proxy.async", "INVERT", "s_aib written before products read it"),
    Sync("fence.proxy.async", "STATE", "s_h, s_left, also of M, written before products"),
    Sync("fence.proxy.async", "STATE", "s_v read before TMA writes"),
    Sync("tcgen05.wait::st", "STATE", "M stored before a product adds to it"),
    *(sync for sync in SYNCS if sync.name.startswith("tcgen05")),
    *SYNCS[-2:],
)


OF_OUTPUTS: Any = None
"""A pipeline or buffer that a plan without outputs lacks."""
OF_MAP: Any = None
"""One that only a plan with M has."""


@dataclass(frozen=True, kw_only=True)
class Pipelines(blackwell.Pipelines):
    k: blackwell.Pipeline
    q: blackwell.Pipeline = OF_OUTPUTS
    v: blackwell.Pipeline
    tail: blackwell.Pipeline
    gate: blackwell.Pipeline
    scores: blackwell.Pipeline
    squares: blackwell.Pipeline
    h: blackwell.Pipeline
    ks: blackwell.Pipeline
    left: blackwell.Pipeline
    update: blackwell.Pipeline
    added: blackwell.Pipeline
    o: blackwell.Pipeline = OF_OUTPUTS
    map_h: blackwell.Pipeline = OF_MAP
    map_ks: blackwell.Pipeline = OF_MAP
    map_left: blackwell.Pipeline = OF_MAP
    map_update: blackwell.Pipeline = OF_MAP
    map_added: blackwell.Pipeline = OF_MAP

    @classmethod
    def allocate(cls, spec: KernelPlan, smem: Any) -> Pipelines:
        """The barriers of every pipeline of the plan, next in `smem`."""
        return cls(**{pipe.name: blackwell.Pipeline.allocate(pipe, smem) for pipe in spec.pipelines})

    def of_map(self) -> Pipelines:
        """M's own in place of B's."""
        return replace(self, **{name: getattr(self, own) for name, own in MAP.items()})

    def init(self) -> None:
        """Initialise the barriers of the plan's pipelines."""
        for field in fields(self):
            if (pipe := getattr(self, field.name)) is not None:  # neither of OF_OUTPUTS nor of OF_MAP
                pipe.init()


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The plan's buffers: tiles (rows, columns, stages), gates (row, token, stage)."""

    k: cute.Tensor
    q: cute.Tensor = OF_OUTPUTS
    v: cute.Tensor
    h: cute.Tensor
    left: cute.Tensor
    v_new: cute.Tensor = OF_OUTPUTS
    aib: cute.Tensor
    p: cute.Tensor = OF_OUTPUTS
    o: cute.Tensor = OF_OUTPUTS
    gate: cute.Tensor
    map_h: cute.Tensor = OF_MAP
    map_left: cute.Tensor = OF_MAP

    def of_map(self) -> Shared:
        """M's own in place of B's."""
        return replace(self, h=self.map_h, left=self.map_left)

    @staticmethod
    def allocate(plan: KernelPlan, smem: Any) -> Shared:
        """Allocate all buffers but the inverse's."""
        *tiles, gate = plan.smem[: -len(inverse.buffers())]
        buffers = {tile.name.removeprefix("s_"): blackwell.tiles(smem, tile) for tile in tiles}
        return Shared(**buffers, gate=blackwell.vectors(smem, gate))
