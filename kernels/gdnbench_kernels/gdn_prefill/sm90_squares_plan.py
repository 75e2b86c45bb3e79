# SPDX-License-Identifier: Apache-2.0
"""The plans of kernel_sm90_squares.py and of the state kernels that read what it leaves. Does not import CuTe
DSL."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.gdn_prefill.sm90_plan import (
    BY_TOKEN,
    GATES,
    GROUP_ROWS,
    GROUP_WARPS,
    GROUPS,
    K_MAJOR,
    SCANNERS,
    inverse_buffers,
)
from gdnbench_kernels.plan import Buffer, KernelPlan, Pipeline, Sync

KEY_BYTES, SQUARE_BYTES = 2 * CHUNK * HEAD_DIM, 2 * CHUNK * CHUNK


INVERTERS = 3
WARP_ROWS = CHUNK // GROUP_WARPS
"""Rows of a square that a warp stores."""


class SquareRole(IntEnum):
    """First warp of each role of kernel_sm90_squares.py."""

    INVERT = 0
    GATE = GROUP_WARPS * INVERTERS
    LOAD = GATE + SCANNERS
    NONE = GATE + SCANNERS + 1


@dataclass(frozen=True, slots=True)
class SquareTuning:
    """Of kernel_sm90_squares.py; the parameters do not change the result."""

    inverters: int = INVERTERS  # warpgroups of INVERT, which take works in turn
    invert_registers: int = 152
    other_registers: int = 40

    def groups(self, split: bool) -> int:
        """Warpgroups of INVERT that have memory: with `split` the inverse exchanges twice as much."""
        return min(self.inverters, 2) if split else self.inverters


def heads_of_work(heads: int, value_heads: int) -> int:
    """Value heads that have their squares together: they share a key head."""
    return 2 if value_heads // heads % 2 == 0 else 1


@dataclass(frozen=True, slots=True)
class PreparedTuning:
    """Of a state kernel. `slices` is the number of CTAs among which the V rows of a value head are divided;
    the parameters do not change the result."""

    slices: int = 2
    keys: int = 4  # stages of K and of Q
    values: int = 3
    squares: int = 3
    outputs: int = 2
    state_registers: int = 0  # as at launch
    other_registers: int = 0

    inverters = 0
    sparing = False

    @property
    def groups(self) -> int:
        """Warpgroups of STATE."""
        return GROUPS // self.slices


PREPARED = {
    1: PreparedTuning(slices=1, keys=3, values=2, squares=3, state_registers=232, other_registers=40),
    2: PreparedTuning(),
}
"""By slices."""


def planned_squares(tuning: SquareTuning, split: bool, together: int) -> KernelPlan:
    """The plan of kernel_sm90_squares.py for so many value heads of a work."""
    keys, groups = (CHUNK, HEAD_DIM), tuning.groups(split)
    gates, tiles = 2 * groups, GROUP_WARPS * groups * together
    return KernelPlan(
        name="chunk_squares_sm90",
        roles=SquareRole,
        warps={"INVERT": GROUP_WARPS * INVERTERS, "GATE": SCANNERS, "LOAD": 1, "NONE": 1},
        does={
            "INVERT": "a work each four warps: products 1 and 2, P, Ai beta, and their stores",
            "GATE": "a value head each warp: scans g; g_cu and beta into SMEM",
            "LOAD": "TMA of K and Q; zeros in K past the end of the sequence",
            "NONE": "nothing",
        },
        smem=(
            Buffer("s_k", keys, "bfloat16", K_MAJOR, groups),
            Buffer("s_q", keys, "bfloat16", K_MAJOR, groups),
            Buffer("s_squares", (WARP_ROWS, CHUNK), "bfloat16", "row = token, SW128; a tile a warp", tiles),
            Buffer("s_gate", (2, CHUNK), "float32", "g_cu, beta of a value head", gates * together, 128),
            Buffer("s_work", (1,), "int32", "the number of a work", gates, 128),
            *inverse_buffers(split, groups * together),
        ),
        tmem=(),
        pipelines=(
            Pipeline("k", groups, "LOAD", 1, "INVERT warp", GROUP_WARPS, KEY_BYTES),
            Pipeline("q", groups, "LOAD", 1, "INVERT warp", GROUP_WARPS, KEY_BYTES),
            Pipeline("tail_k", 1, "LOAD", 1, "nobody", 1, KEY_BYTES),
            Pipeline("gate", gates, "GATE warp", together, "INVERT warp", GROUP_WARPS),
        ),
        syncs=(
            Sync("fence.mbarrier_init, barrier of the CTA", "all", "mbarriers before their use"),
            Sync("setmaxnreg", "all", "increases wait for the others' decrease"),
            Sync("tail pipeline", "LOAD", "K has landed before zeros are stored"),
            Sync("fence.proxy.async", "LOAD", "zeros written before products read them"),
            Sync("barrier INVERT", "INVERT", "exchanges within the inverse: sm90_inverse.py"),
            Sync("fence.proxy.async", "INVERT", "squares written before TMA reads them"),
            Sync("bulk wait_group.read", "INVERT warp", "TMA has read the warp's rows before the next"),
            Sync("bulk wait_group", "INVERT warp", "squares stored before the CTA ends"),
        ),
    )


def prepared_roles(tuning: PreparedTuning) -> Any:
    """First warp of each role of a state kernel."""
    others = GROUP_WARPS * tuning.groups
    load = others + SCANNERS
    return IntEnum("Role", {"STATE": 0, "GATE": others, "LOAD": load, "STORE": load + 1})


def planned_prepared(tuning: PreparedTuning, outputs: bool = True) -> KernelPlan:
    """The plan of a state kernel, with or without outputs."""
    rows, states = GROUP_ROWS * tuning.groups, GROUP_WARPS * tuning.groups
    keys, own, square = (CHUNK, HEAD_DIM), (CHUNK, rows), (CHUNK, CHUNK)
    own_bytes = 2 * CHUNK * rows
    smem = [
        Buffer("s_k", keys, "bfloat16", f"{K_MAJOR}; read as N-major too", tuning.keys),
        Buffer("s_q", keys, "bfloat16", K_MAJOR, tuning.keys),
        Buffer("s_v", own, "bfloat16", BY_TOKEN, tuning.values),
        Buffer("s_aib", square, "bfloat16", f"{K_MAJOR}: Ai beta_j", tuning.squares),
        Buffer("s_p", square, "bfloat16", K_MAJOR, tuning.squares),
        Buffer("s_o", own, "bfloat16", BY_TOKEN, tuning.outputs),
        Buffer("s_gate", (4, CHUNK), "float32", "a row for each of GATE's", GATES, align=128),
    ]
    pipelines = [
        Pipeline("k", tuning.keys, "LOAD", 1, "STATE warp", states, KEY_BYTES),
        Pipeline("q", tuning.keys, "LOAD", 1, "STATE warp", states, KEY_BYTES),
        Pipeline("v", tuning.values, "LOAD", 1, "STATE warp", states, own_bytes),
        Pipeline("tail_k", 1, "LOAD", 1, "nobody", 1, KEY_BYTES),
        Pipeline("tail_v", 1, "LOAD", 1, "nobody", 1, own_bytes),
        Pipeline("gate", GATES, "GATE", 1, "STATE warp", states),
        Pipeline("aib", tuning.squares, "LOAD", 1, "STATE warp", states, SQUARE_BYTES),
        Pipeline("p", tuning.squares, "LOAD", 1, "STATE warp", states, SQUARE_BYTES),
        Pipeline("o", tuning.outputs, "STATE warp", states, "STORE", 1),
    ]
    of_outputs = ("s_q", "s_p", "s_o", "q", "p", "o")
    return KernelPlan(
        name="chunk_prepared_sm90",
        roles=prepared_roles(tuning),
        warps={"STATE": states, "GATE": SCANNERS, "LOAD": 1, "STORE": 1},
        does={
            "STATE": "64 rows of S each four warps, in registers; products 3 to 7",
            "GATE": "a chunk each warp: scans g; exp(g_cu) and exp(g_last - g_cu) into SMEM",
            "LOAD": "TMA of K, Q, V and the squares; zeros in K and V past the end of the sequence",
            "STORE": "o to global memory",
        },
        smem=tuple(buffer for buffer in smem if outputs or buffer.name not in of_outputs),
        tmem=(),
        pipelines=tuple(pipe for pipe in pipelines if outputs or pipe.name not in of_outputs),
        syncs=(
            Sync("fence.mbarrier_init, barrier of the CTA", "all", "mbarriers before their use"),
            Sync("setmaxnreg", "all", "increases wait for the others' decrease"),
            Sync("tail pipelines", "LOAD", "K, V have landed before zeros are stored"),
            Sync("fence.proxy.async", "LOAD", "zeros written before products read them"),
            Sync("fence.proxy.async", "STATE", "s_o written before TMA, s_v read before TMA writes"),
            Sync("wgmma.wait_group", "STATE", "operands read before their release"),
            Sync("bulk wait_group.read", "STORE", "the TMA store has read s_o before its release"),
            Sync("bulk wait_group", "STORE", "o stored before the CTA ends"),
            Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
        ),
    )
