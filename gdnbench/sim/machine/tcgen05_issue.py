# SPDX-License-Identifier: Apache-2.0
"""Checks shared by all tcgen05 instructions: the CTAs they work on, the issuing lane, addresses in tensor
memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Values, Warp
from gdnbench.sim.machine.footprint import Footprint, moved_to
from gdnbench.sim.machine.operands import scalar_operand
from gdnbench.sim.ptx.ir import Instruction

# The tensor core of a CTA, or of a pair of CTAs, works in the order of issue: products, copies into TMEM and
# commits form one stream (PTX ISA 9.7.16.6.2). The ISA guarantees the order only for operations of one
# thread, or of threads that fences order; this model also orders all others.
STREAM = "tcgen05"

Group = tuple[Cta, ...]
"""The CTAs that an instruction works on: one, or both of a pair, the even one first."""


def cta_group(cta: Cta, ins: Instruction) -> Group:
    """The CTAs that an instruction of `cta` works on. Raises KernelFault if the kernel has both kinds of
    groups (PTX ISA, "tcgen05.mma"; ptxas refuses it), or if the CTA has no peer that runs (table 46)."""
    if len(cta.launch.cta_groups) > 1:
        raise KernelFault(
            FaultKind.PAIR,
            f"{ins.name} in a kernel with tcgen05 instructions of both .cta_group::1 and .cta_group::2",
        )
    if "cta_group::2" not in ins.mods:
        return (cta,)
    even = cta.rank & ~1
    pair = tuple(cta.members[even : even + 2])
    if len(pair) == 1:
        raise KernelFault(
            FaultKind.PAIR,
            f"{ins.name} in the CTA of rank {cta.rank} of a cluster of {len(cta.members)}: it has no peer",
        )
    check_pair_runs(ins, pair)
    return pair


def check_pair_runs(ins: Instruction, group: Group) -> None:
    """Raises KernelFault if a CTA of a pair has exited."""
    for cta in group:
        if cta.cluster is not None and not cta.cluster.arrays.runs(cta.rank):
            raise KernelFault(
                FaultKind.EXITED,
                f"{ins.op}.cta_group::2 accesses the CTA of rank {cta.rank}, which has exited",
            )


@dataclass(frozen=True, slots=True)
class Accesses:
    """What an operation reads and writes in one CTA, at addresses without its rank."""

    reads: tuple[Footprint, ...]
    writes: tuple[Footprint, ...]


def submit(
    cta: Cta,
    warp: Warp,
    group: Group,
    ins: Instruction,
    land: Callable[[], None],
    accesses: Callable[[], Sequence[Accesses]],
) -> None:
    """Issue a product or copy of a warp of `cta` to the stream of `group`. `accesses` computes its accesses
    by CTA, for the checker."""
    operation = AsyncOperation(ins.op, land, stream=STREAM)
    if cta.checker is not None:
        pairs = list(zip((member.shared.origin for member in group), accesses(), strict=True))
        operation.reads = tuple(chain(*(moved_to(origin, one.reads) for origin, one in pairs)))
        operation.writes = tuple(chain(*(moved_to(origin, one.writes) for origin, one in pairs)))
    cta.tensor_issuers.add(warp.index)
    group[0].queue.submit(operation)


def single_issuer(cta: Cta, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> int:
    """The lane that issues a single-thread operation.

    In PTX every active lane issues its own operation, but ptxas makes one uniform instruction per warp and
    compilers rely on it. So equal operands make one operation, which a note reports.
    """
    active = lanes.tobytes()  # one byte per lane: twice as fast as NumPy
    first, count = active.index(1), active.count(1)
    if count > 1:
        for source in sources:
            for values in source if isinstance(source, tuple) else (source,):
                if (values[lanes] != values[first]).any():
                    raise UnsupportedError(f"{ins.op} issued by {count} lanes with different operands")
        cta.note(f"{ins.op} issued by {count} lanes with equal operands counts as one", ins)
    return first


def lane_value(source: Argument, lane: int) -> int:
    """A scalar operand of one lane."""
    return int(scalar_operand(source)[lane])


def quarter_base(warp_index: int, address: int, lanes: int, ins: Instruction) -> int:
    """The first TMEM lane of a warp's access to `lanes` lanes: the hardware uses the warp's own quarter and
    the low five bits of the lane field."""
    quarter = 32 * (warp_index % 4)
    within = (address >> 16) % 32
    if within % 16 or within + lanes > 32:
        raise KernelFault(
            FaultKind.TMEM_ACCESS, f"{ins.name} accesses {lanes} lanes from lane {within} of its quarter"
        )
    return quarter + within


def foreign_quarter(warp_index: int, address: int, ins: Instruction) -> KernelFault | None:
    """The fault of an access to a lane in another warp's quarter. A warp reaches lanes 32 (warp % 4) .. +31
    (PTX ISA 9.7.16.8.1). An address with lane 0..31 works in every warp, and kernels rely on it."""
    quarter = 32 * (warp_index % 4)
    lane = address >> 16
    if lane < 32 or quarter <= lane < quarter + 32:
        return None
    return KernelFault(
        FaultKind.TMEM_ACCESS,
        f"{ins.name} at lane {lane} of TMEM; this warp reaches lanes {quarter}..{quarter + 31}",
    )


def as_values(source: Argument) -> tuple[Values, ...]:
    """The registers of a vector operand; a single register counts as a vector of one."""
    return source if isinstance(source, tuple) else (source,)
