# SPDX-License-Identifier: Apache-2.0
"""Access to the operands that an engine passes to the machine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.engine_interface import LANES, Argument, Lanes, Values
from gdnbench.sim.machine.memory import resolve
from gdnbench.sim.ptx.ir import Instruction, Sink

SHARED_SPACES = ("shared", "shared::cta", "shared::cluster")
SHARED_BITS = 1 << 32


def scalar_operand(argument: Argument) -> Values:
    """A source with one value per lane. Raises UnsupportedError for a vector."""
    if isinstance(argument, tuple):
        raise UnsupportedError("a vector where an operand has one value")
    return argument


def vector_operand(argument: Argument) -> tuple[Values, ...]:
    """A source that is a vector, or an address with coordinates, as a tuple. Raises UnsupportedError for any
    other."""
    if not isinstance(argument, tuple):
        raise UnsupportedError("one value where an operand is a vector")
    return argument


def active_lanes(lanes: Lanes) -> list[int]:
    """The indices of the active lanes, ascending."""
    indices: list[int] = np.flatnonzero(lanes).tolist()
    return indices


def uniform_value(argument: Argument, lanes: Lanes, what: str) -> int:
    """The value of an operand that all active lanes must agree on. Raises KernelFault if they differ."""
    values = equal_operands(lanes, scalar_operand(argument))
    if values is None:
        raise KernelFault(FaultKind.DIVERGENCE, f"{what} differs between the lanes of a warp")
    return values[0]


def shared_address(address: int, ins: Instruction) -> int:
    """An address operand in the CTA's shared memory; generic if the instruction names no state space.

    The window of `shared::cta` is part of that of `shared::cluster`; without a cluster both are equal (PTX
    ISA, "Shared State Space"). tcgen05.commit without a state space may also have a shared address extended
    to 64 bits, as Triton compiles it: the PTX ISA leaves that undefined, but the instruction that ptxas makes
    of it, UTCBAR, takes the low 32 bits alone.
    """
    if ins.has(*SHARED_SPACES) or (ins.op == "tcgen05.commit" and address < SHARED_BITS):
        return address
    space, offset = resolve(address)
    if space != "shared":
        raise KernelFault(
            FaultKind.OUT_OF_BOUNDS, f"{ins.name}: generic address {address:#x} is not shared memory"
        )
    return offset


def distinct_operands(lanes: Lanes, *arguments: Values) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Group the active lanes by equal operands: (lanes, their operands), in the order of the first lane."""
    same = equal_operands(lanes, *arguments)
    if same is not None:
        yield active_lanes(lanes), same
        return
    groups: dict[tuple[int, ...], list[int]] = {}
    columns = [argument[lanes].tolist() for argument in arguments]
    for lane, *values in zip(active_lanes(lanes), *columns, strict=True):
        groups.setdefault(tuple(values), []).append(lane)
    for values_of_group, members in groups.items():
        yield members, values_of_group


def equal_operands(lanes: Lanes, *arguments: Values) -> tuple[int, ...] | None:
    """The operands if they are equal in all active lanes, else None."""
    active = lanes.tobytes()  # one byte per lane; bytes are several times as fast as NumPy
    first, count = active.find(1), active.count(1)
    values = tuple([argument.item(first) for argument in arguments])
    if count == LANES:
        for argument in arguments:
            every = argument.tobytes()
            if every != every[: argument.itemsize] * LANES:
                return None
    elif count > 1:
        for argument, value in zip(arguments, values, strict=True):
            if ((argument != np.uint64(value)) & lanes).any():
                return None
    return values


def wants_result(ins: Instruction) -> bool:
    """True if a destination of `ins` is a register, not `_`."""
    return any(not isinstance(register, Sink) for register in ins.written())


def same_in_all_lanes(value: int) -> Values:
    """One value in all lanes, read-only."""
    values = np.full(LANES, value, np.uint64)
    values.flags.writeable = False
    return values
