"""Checks shared by all tcgen05 instructions: the issuing lane, refused forms, addresses in tensor memory."""

from __future__ import annotations

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Values
from gdnbench.sim.machine.operands import scalar_operand
from gdnbench.sim.ptx.ir import Instruction

# The tensor core of a CTA works in the order of issue: products, copies into TMEM and commits form one stream
# (PTX ISA 9.7.16.6.2). The ISA guarantees the order only for operations of one thread, or of threads that
# fences order; this model also orders all others.
STREAM = "tcgen05"


def refuse_pairs(ins: Instruction) -> None:
    """Raises UnsupportedError for cta_group::2: CTA pairs need clusters."""
    if "cta_group::1" not in ins.mods:
        raise UnsupportedError(f"{ins.op}.cta_group::2")


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
    """The first TMEM lane of a warp's access to `lanes` lanes.

    A warp reaches lanes 32 (warp % 4) .. +31 (PTX ISA 9.7.16.8.1). The hardware uses the warp's own quarter
    and the low five bits of the lane field. So an address with lane 0..31 works in every warp, and kernels
    rely on it; a lane in another warp's quarter is a fault.
    """
    quarter = 32 * (warp_index % 4)
    lane = address >> 16
    if lane >= 32 and not quarter <= lane < quarter + 32:
        raise KernelFault(
            FaultKind.TMEM_ACCESS,
            f"{ins.name} at lane {lane} of TMEM; this warp reaches lanes {quarter}..{quarter + 31}",
        )
    within = lane % 32
    if within % 16 or within + lanes > 32:
        raise KernelFault(
            FaultKind.TMEM_ACCESS, f"{ins.name} accesses {lanes} lanes from lane {within} of its quarter"
        )
    return quarter + within


def as_values(source: Argument) -> tuple[Values, ...]:
    """The registers of a vector operand; a single register counts as a vector of one."""
    return source if isinstance(source, tuple) else (source,)
