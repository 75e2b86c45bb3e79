"""What all tcgen05 instructions share: who issues them, what is refused by name, addresses in tensor
memory."""

from __future__ import annotations

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Values
from gdnbench.sim.ptx.ir import Instruction

# The tensor core of a CTA works in the order of issue: products, copies into TMEM and commits form one stream
# (PTX ISA 9.7.16.6.2). The ISA promises it for pairs of one thread, or of threads that fences order; a
# product that reads TMEM which an unordered product writes is not told apart.
STREAM = "tcgen05"


def refuse_pairs(ins: Instruction) -> None:
    """Pairs of CTAs need clusters."""
    if "cta_group::1" not in ins.mods:
        raise UnsupportedError(f"{ins.op}.cta_group::2")


def single_issuer(cta: Cta, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...]) -> int:
    """The lane that issues a single-thread operation.

    By PTX every active lane would issue its own; ptxas makes one uniform instruction a warp of them, and
    compilers rely on it. So equal operands are one operation, which a note reports.
    """
    active = lanes.tobytes()  # one byte a lane: twice as fast as asking NumPy
    first, count = active.index(1), active.count(1)
    if count > 1:
        for source in sources:
            for values in source if isinstance(source, tuple) else (source,):
                if (values[lanes] != values[first]).any():
                    raise UnsupportedError(f"{ins.op} issued by {count} lanes with different operands")
        cta.note(f"{ins.op} issued by {count} lanes with equal operands counts as one", ins)
    return first


def value(source: Argument, lane: int) -> int:
    """A scalar operand of one lane."""
    assert not isinstance(source, tuple)
    return int(source[lane])


def quarter_base(warp_index: int, address: int, lanes: int, ins: Instruction) -> int:
    """The first TMEM lane of a warp's access to `lanes` lanes.

    A warp reaches lanes 32 (warp % 4) .. +31 (PTX ISA 9.7.16.8.1). Hardware takes the warp's own quarter and
    the low five bits of the lane field, so an address with lane 0..31 works in every warp and kernels use it;
    a lane in another warp's quarter is a mistake.
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
