# SPDX-License-Identifier: Apache-2.0
"""The plan of kernel_sm90_fused.py and its tuning parameters. Does not import CuTe DSL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM
from gdnbench_kernels.plan import Buffer, KernelPlan, Pipeline, Sync

GROUP_ROWS = 64
"""V rows of the state in a warpgroup of STATE: M of wgmma."""
GROUPS = HEAD_DIM // GROUP_ROWS
GROUP_WARPS = 4
GATES = 4
"""Stages of gates."""
SCANNERS = 2
"""Warps of GATE. A scan takes about as long as STATE takes for a chunk."""
K_MAJOR = "K-major, SW128"
BY_TOKEN = "row = token, SW128"
REGISTERS = 512
"""Registers of the 128 lanes of a quarter of the SM, per lane: what the warpgroups of a CTA share."""


class Barrier(IntEnum):
    """Named barriers; 0 is the CTA's own. Warpgroup i of INVERT has number INVERT + i."""

    INVERT = 1


@dataclass(frozen=True, slots=True)
class Tuning:
    """`slices` is the number of CTAs among which the V rows of a value head are divided. The parameters do
    not change the result."""

    slices: int = 2
    inverters: int = 2  # warpgroups of INVERT, which take chunks in turn
    keys: int = 4  # stages of K and of Q
    values: int = 2
    squares: int = 2
    outputs: int = 2
    state_registers: int = 224
    invert_registers: int = 128
    other_registers: int = 32

    def __post_init__(self) -> None:
        if self.slices not in (1, GROUPS):
            raise ValueError(f"slices is 1 or {GROUPS}, not {self.slices}")
        if self.inverters not in (1, 2):
            raise ValueError(f"inverters is 1 or 2, not {self.inverters}")
        if self.keys % self.inverters or self.squares % self.inverters:
            # A warpgroup must see every phase of a stage's barrier, or it takes one for the next but one.
            raise ValueError(
                f"two inverters need even stages, not {self.keys} of K and {self.squares} squares"
            )
        total = (
            self.groups * self.state_registers + self.inverters * self.invert_registers + self.other_registers
        )
        if total > REGISTERS // self.threads_factor * self.threads_factor:
            raise ValueError(f"the warpgroups of a CTA have {REGISTERS} registers per lane, not {total}")

    def for_beta(self, beta_max: float) -> Tuning:
        """The tuning of the build for beta up to `beta_max`: beyond 1 the inverse exchanges twice as much,
        and there is memory for one warpgroup of INVERT."""
        if beta_max <= 1 or self.inverters == 1:
            return self
        return replace(self, inverters=1, state_registers=232, invert_registers=216)

    @property
    def groups(self) -> int:
        """Warpgroups of STATE."""
        return GROUPS // self.slices

    @property
    def sparing(self) -> bool:
        """Whether STATE orders its products so that they fit in few registers."""
        return self.slices == 1

    @property
    def threads_factor(self) -> int:
        """Warpgroups of the CTA, which start with equal registers, a multiple of 8."""
        return 8 * (self.groups + self.inverters + 1)


WIDE = Tuning(
    slices=1,
    inverters=1,
    keys=3,
    state_registers=192,
    invert_registers=96,
    other_registers=32,
)
"""For CTAs that have all rows of a value head: with fewer registers than these ptxas makes products wait."""


def roles_of(tuning: Tuning) -> Any:
    """An IntEnum: first warp of each role. STATE and INVERT are warpgroups, the others share the last:
    setmaxnreg applies to warpgroups. GATE has the most instructions of these, and in its sub-partitions
    are the warps of INVERT with the fewest."""
    invert = GROUP_WARPS * tuning.groups
    others = invert + GROUP_WARPS * tuning.inverters
    firsts = {
        "STATE": 0,
        "INVERT": invert,
        "GATE": others,
        "LOAD": others + SCANNERS,
        "STORE": others + SCANNERS + 1,
    }
    return IntEnum("Role", firsts)


def planned(tuning: Tuning, split: bool = False) -> KernelPlan:
    """The kernel's plan. With `split` the inverse exchanges twice as much."""
    rows = GROUP_ROWS * tuning.groups
    states, inverters = GROUP_WARPS * tuning.groups, GROUP_WARPS * tuning.inverters
    keys, own = (CHUNK, HEAD_DIM), (CHUNK, rows)
    key_bytes, own_bytes = 2 * CHUNK * HEAD_DIM, 2 * CHUNK * rows
    square = (CHUNK, CHUNK)
    return KernelPlan(
        name="chunk_fused_sm90",
        roles=roles_of(tuning),
        warps={
            "STATE": states,
            "INVERT": inverters,
            "GATE": SCANNERS,
            "LOAD": 1,
            "STORE": 1,
        },
        does={
            "STATE": "64 rows of S each four warps, in registers; products 3 to 7",
            "INVERT": "a chunk each four warps, ahead of STATE: products 1 and 2, Ai beta, P",
            "GATE": "a chunk each warp: scans g; g_cu, beta, exp(g_cu), exp(g_last - g_cu) into SMEM",
            "LOAD": "TMA of K, Q and V; zeros in K and V past the end of the sequence",
            "STORE": "o to global memory",
        },
        smem=(
            Buffer("s_k", keys, "bfloat16", f"{K_MAJOR}; read as N-major too", tuning.keys),
            Buffer("s_q", keys, "bfloat16", K_MAJOR, tuning.keys),
            Buffer("s_v", own, "bfloat16", BY_TOKEN, tuning.values),
            Buffer("s_aib", square, "bfloat16", f"{K_MAJOR}: Ai beta_j", tuning.squares),
            Buffer("s_p", square, "bfloat16", K_MAJOR, tuning.squares),
            Buffer("s_o", own, "bfloat16", BY_TOKEN, tuning.outputs),
            Buffer("s_gate", (4, CHUNK), "float32", "a row for each of GATE's", GATES, align=128),
            *inverse_buffers(split, tuning.inverters),
        ),
        tmem=(),
        pipelines=(
            Pipeline("k", tuning.keys, "LOAD", 1, "INVERT, STATE warp", GROUP_WARPS + states, key_bytes),
            Pipeline("q", tuning.keys, "LOAD", 1, "INVERT, STATE warp", GROUP_WARPS + states, key_bytes),
            Pipeline("v", tuning.values, "LOAD", 1, "STATE warp", states, own_bytes),
            Pipeline("tail_k", 1, "LOAD", 1, "nobody", 1, key_bytes),
            Pipeline("tail_v", 1, "LOAD", 1, "nobody", 1, own_bytes),
            Pipeline("gate", GATES, "GATE", 1, "INVERT, STATE warp", GROUP_WARPS + states),
            Pipeline("aib", tuning.squares, "INVERT warp", GROUP_WARPS, "STATE warp", states),
            Pipeline("p", tuning.squares, "INVERT warp", GROUP_WARPS, "STATE warp", states),
            Pipeline("o", tuning.outputs, "STATE warp", states, "STORE", 1),
        ),
        syncs=SYNCS,
    )


def inverse_buffers(split: bool, count: int) -> tuple[Buffer, Buffer]:
    """Those of sm90_inverse.py for so many inverses at a time."""
    parts = (1 + split) * count
    return (
        Buffer("s_blocks", (10, 16, 16), "float16", "16 x 16 blocks of 8 x 8", parts, align=128),
        Buffer("s_diagonal", (4, 16, 20), "float32", "columns contiguous, padded", count, align=128),
    )


SYNCS = (
    Sync("fence.mbarrier_init, barrier of the CTA", "all", "mbarriers before their use"),
    Sync("setmaxnreg", "all", "increases wait for the others' decrease"),
    Sync("tail pipelines", "LOAD", "K, V have landed before zeros are stored"),
    Sync("fence.proxy.async", "LOAD", "zeros written before products read them"),
    Sync("barrier INVERT", "INVERT", "exchanges within the inverse: sm90_inverse.py"),
    Sync("fence.proxy.async", "INVERT", "s_aib, s_p written before products read them"),
    Sync("fence.proxy.async", "STATE", "s_o written before TMA, s_v read before a load"),
    Sync("wgmma.wait_group", "INVERT, STATE", "operands read before their release"),
    Sync("bulk wait_group.read", "STORE", "the TMA store has read s_o before its release"),
    Sync("bulk wait_group", "STORE", "o stored before the CTA ends"),
    Sync("producer_tail", "each producer", "no arrival after the CTA ends"),
)
