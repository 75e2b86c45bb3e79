# SPDX-License-Identifier: Apache-2.0
"""The layout of a warp's state, the one block of memory that compiled code and Python share.

It has a header (each lane's block, pointers to the CTA's memories, special registers), a cache line of the
allocation table for every instruction that accesses global memory, and a slot for every register that is live
across blocks. A slot has the values of 32 lanes; a predicate is a 32-bit mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.blocks import Blocks, read_set, written_set
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.ir import Kernel, Register

ALIGN = 64

# Header: name -> bytes. Vectors first, each a multiple of a cache line.
_HEADER = {
    "block": 128,  # i32[32]: the block of each lane
    "tid.x": 128,  # i32[32]
    "tid.y": 128,
    "tid.z": 128,
    "fault_address": 256,  # i64[32]
    "live": 4,  # mask of lanes that have not exited
    "waiting": 4,  # mask of lanes that wait at a service
    "joining": 4,  # mask of lanes that wait at a collective for other lanes
    "carry": 4,  # mask of lanes whose carry flag is set
    "active": 4,  # mask of the lanes that execute
    "current": 4,  # the block that they execute
    "fault_code": 4,
    "fault_pc": 4,
    "fault_lanes": 4,
    "skipped": 4,  # nonzero if a skipped fault was recorded
    "inline": 4,  # nonzero if compiled code may execute machine instructions by itself
    "floor": 4,  # the lowest block that may run now
    "executed": 8,
    "mark": 8,  # instructions executed when the current group began to delay others
    "shared": 8,  # pointer to the byte at shared address 0
    "shared_end": 8,
    "param": 8,
    "param_size": 8,
    "local": 8,
    "local_size": 8,
    "bases": 8,  # pointer to the sorted allocation table
    "ends": 8,
    "allocations": 8,
    "counts": 8,  # pointer to i64[blocks, 2]: executions, and the sum of their active lanes
    "phases": 8,  # pointer to i64: completed phases of each mbarrier
    "traffic": 8,  # pointer to i64: bytes by counter
    "shared_first": 8,  # the first shared address of the CTA
    "alive": 8,  # pointer to i64: a bit for each CTA of the cluster that has not exited
}

SCALARS = (
    *("ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y", "nctaid.z"),
    *("warpid", "nwarpid", "smid", "nsmid", "dynamic_smem_size", "total_smem_size"),
    *("clusterid.x", "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y", "nclusterid.z"),
    *("cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z"),
    *("cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z"),
    *("cluster_ctarank", "cluster_nctarank", "is_explicit_cluster"),
)


def _offsets() -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    at = 0
    for name, size in [*_HEADER.items(), *((name, 4) for name in SCALARS)]:
        at = -(-at // min(size, 8)) * min(size, 8)
        offsets[name] = at
        at += size
    return offsets, -(-at // ALIGN) * ALIGN


HEADER, HEADER_SIZE = _offsets()


SITE_BYTES = 16
"""An interval of global memory: base and end, i64."""
SKIP_BYTES, SKIP_LANES, SKIP_COUNT = 320, 256, 264
"""A record of skipped faults: i64[32] addresses, then at these offsets i32 lanes and i64 count."""


def load_field(name: str, field: str, kind: str, align: int) -> str:
    """LLVM IR that loads header field `field` as %name; its pointer is %name.p."""
    return (
        f"  %{name}.p = getelementptr i8, ptr %state, i64 {HEADER[field]}\n"
        f"  %{name} = load {kind}, ptr %{name}.p, align {align}\n"
    )


def slot_bytes(register: Register) -> int:
    """Bytes of a register in 32 lanes."""
    if register.bits == 1:
        return 4
    if register.bits > 64:
        raise UnsupportedError(f"{register.bits}-bit register {register.name}")
    return register.bits * 4


@dataclass(slots=True)
class Layout:
    """The state of one kernel's warps: `slots` by register index, `size` in bytes. Compilation adds sites.
    `log`, if the code writes one (`access_log`), is the offset of two pointers: to the next entry and to the
    end of the log."""

    slots: dict[int, int] = field(default_factory=dict)
    size: int = HEADER_SIZE
    log: int | None = None

    def reserve(self, size: int, align: int = ALIGN) -> int:
        """Reserve `size` more bytes and return their offset."""
        offset = -(-self.size // align) * align
        self.size = offset + size
        return offset


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that start at a cache line."""
    room = np.zeros(size + ALIGN, np.uint8)
    start = -room.ctypes.data % ALIGN
    return room[start : start + size]


def plan_layout(kernel: Kernel, blocks: Blocks, *, logged: bool = False) -> Layout:
    """Slots for the registers that are live across blocks or used by services; with `logged` also for the
    log."""
    kept = 0
    for block in blocks.blocks:
        kept |= block.live_in | block.live_out
        if block.service:
            ins = kernel.instructions[block.start]
            kept |= read_set(ins) | written_set(ins)
    layout = Layout()
    bits = f"{kept:b}"[::-1]  # not `kept >> index`, which takes as long as there are registers
    chosen = [r for r, bit in zip(kernel.registers, bits, strict=False) if bit == "1"]
    for register in sorted(chosen, key=lambda r: -r.bits):
        size = slot_bytes(register)
        layout.slots[register.index] = layout.reserve(size, min(size, ALIGN))
    if logged:
        layout.log = layout.reserve(16, 16)
    return layout
