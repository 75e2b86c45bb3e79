# SPDX-License-Identifier: Apache-2.0
"""A kernel as the interpreter runs it: one entry per instruction, made once.

Instructions that always continue with the next one are steps. The other entries say what the warp has to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.interpreter import (
    approx,
    atomics,
    carry,
    collectives,
    compare,
    convert,
    float,
    integer,
    logic,
    matrix,
    memory,
    move,
    wmma,
)
from gdnbench.sim.interpreter.operation import (
    Fetch,
    Operation,
    Step,
    Thread,
    bind,
    fetch,
    fetch_address,
    read_registers,
    refuse,
)
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Values
from gdnbench.sim.ptx.forms import Flow
from gdnbench.sim.ptx.ir import (
    Address,
    Guard,
    Instruction,
    Kernel,
    Register,
    Sink,
    Target,
    Targets,
    TensorAddress,
    Vector,
)

Arguments = Callable[[Thread], "tuple[Argument, ...]"]


@dataclass(frozen=True, slots=True)
class Plain:
    """Computes and goes on."""

    ins: Instruction
    step: Step


@dataclass(frozen=True, slots=True)
class Collective:
    """Waits for the lanes that it names, then computes and goes on. `members` None: all lanes of the warp."""

    ins: Instruction
    step: Step
    members: Fetch | None
    mask_registers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    ins: Instruction
    target: int


@dataclass(frozen=True, slots=True)
class Switch:
    """A branch to one of `targets` by each lane's index."""

    ins: Instruction
    index: Fetch
    used: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """`ret` and `exit` of a kernel, and its end: no instruction, so that it does not count as one."""

    ins: Instruction
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """Handed to the machine, which may make it wait. `aligned`: all lanes of the warp issue it together."""

    ins: Instruction
    arguments: Arguments
    used: tuple[int, ...]
    dests: tuple[Register | Sink, ...]
    aligned: bool


Entry = Plain | Collective | Branch | Switch | Exit | Machine


def trap(ins: Instruction) -> Step:
    def step(thread: Thread, lanes: Lanes) -> None:
        raise KernelFault(FaultKind.TRAP, f"the kernel executed {ins.op}")

    return step


# Instructions that integers and floating-point numbers share are told apart by type.
_SHARED = ("add", "sub", "mul", "mad", "div", "abs", "neg", "min", "max")
_CARRY = ("addc", "subc", "madc")
_OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    **integer.OPERATIONS,
    **logic.OPERATIONS,
    **convert.OPERATIONS,
    **approx.OPERATIONS,
    **compare.OPERATIONS,
    **move.OPERATIONS,
    **{op: define for op, define in float.OPERATIONS.items() if op not in _SHARED},
}
_STEPS: dict[str, Callable[[Instruction], Step]] = {
    "mov": move.mov,
    "selp": compare.selp,
    "isspacep": move.isspacep,
    "prmt": logic.prmt,
    "and": logic.conjunction,
    "or": logic.conjunction,
    "ld": memory.ld,
    "ldu": memory.ld,
    "st": memory.st,
    "atom": atomics.step,
    "red": atomics.step,
    "activemask": collectives.activemask,
    "trap": trap,
    "brkpt": trap,
}
# These need the whole warp (`.aligned`), whatever they name.
_ALIGNED: dict[str, Callable[[Instruction], Step]] = {
    "ldmatrix": matrix.ldmatrix,
    "stmatrix": matrix.stmatrix,
    "movmatrix": matrix.movmatrix,
    "mma": matrix.mma,
    "wmma.load": wmma.load,
    "wmma.store": wmma.store,
    "wmma.mma": wmma.mma,
}


def _plain_step(ins: Instruction) -> Step:
    if ins.op in _CARRY or (ins.op in ("add", "sub", "mad") and ins.has("cc")):
        return carry.step(ins)
    if ins.op in _STEPS:
        return _STEPS[ins.op](ins)
    if ins.op in _SHARED and float.is_float(ins):
        define = approx.divide if ins.op == "div" else float.OPERATIONS[ins.op]
        return bind(ins, define(ins))
    return bind(ins, _OPERATIONS[ins.op](ins))


def _argument(ins: Instruction, operand: object) -> Callable[[Thread], Argument]:
    """How a source operand crosses to the machine (engine_interface.py)."""
    if isinstance(operand, TensorAddress):
        gets = [_argument_address(ins, operand.descriptor)]
        gets += [fetch(ins, coordinate, "u64") for coordinate in operand.coordinates]
        return lambda thread: tuple(np.array(get(thread)) for get in gets)
    if isinstance(operand, Address):
        locate = _argument_address(ins, operand)
        return lambda thread: locate(thread)
    if isinstance(operand, Vector):
        parts = [fetch(ins, element, "u64") for element in operand.elements]
        return lambda thread: tuple(np.array(get(thread)) for get in parts)
    kind = "pred" if _is_predicate(operand) else "u64"
    get = fetch(ins, operand, kind)
    return lambda thread: get(thread).astype(np.uint64)


def _argument_address(ins: Instruction, address: Address) -> Fetch:
    return fetch_address(ins, address)


def _is_predicate(operand: object) -> bool:
    register = getattr(operand, "register", operand)
    return isinstance(register, Register) and register.type == "pred"


def _tensor_registers(ins: Instruction) -> tuple[int, ...]:
    """Registers read, those inside tensor addresses included."""
    flat: list[object] = []
    for source in ins.sources:
        if isinstance(source, TensorAddress):
            flat += [source.descriptor, *source.coordinates]
        else:
            flat.append(source)
    return read_registers(flat)


def _machine(ins: Instruction) -> Machine:
    gets = tuple(_argument(ins, source) for source in ins.sources)

    def arguments(thread: Thread) -> tuple[Argument, ...]:
        return tuple(get(thread) for get in gets)

    return Machine(ins, arguments, _tensor_registers(ins), tuple(ins.written()), ins.form.aligned)


def entry(ins: Instruction) -> Entry:
    """The instruction as a warp runs it."""
    if not ins.form.executed:
        refuse(ins)
    if ins.form.by_machine:
        return _machine(ins)
    if ins.form.flow is Flow.BRANCH:
        target = ins.sources[-1]
        if isinstance(target, Targets):
            index, pcs = ins.sources[0], tuple(each.pc for each in target.targets)
            return Switch(ins, fetch(ins, index, "u32"), read_registers([index]), pcs)
        if not isinstance(target, Target):
            refuse(ins)
        return Branch(ins, target.pc)
    if ins.form.flow is Flow.EXIT:
        return Exit(ins)
    if ins.form.aligned:
        return Collective(ins, _ALIGNED[ins.op](ins), None, ())
    if ins.form.lanes_meet:
        step = collectives.STEPS[ins.op](ins)
        return Collective(ins, step, collectives.members(ins), read_registers(ins.sources[-1:]))
    return Plain(ins, _plain_step(ins))


def guard(ins: Instruction) -> Callable[[Thread, Lanes], Lanes] | None:
    """Which of the lanes execute the instruction; None for all."""
    if ins.guard is None:
        return None
    rule: Guard = ins.guard
    index, negated = rule.register.index, rule.negated

    def active(thread: Thread, lanes: Lanes) -> Lanes:
        registers = thread.registers
        if not registers.clean[index]:
            registers.require(index, lanes)
        value = registers.views["pred"][index]
        chosen: Lanes = lanes & (~value if negated else value)
        return chosen

    return active


@dataclass(frozen=True, slots=True)
class Program:
    """All entries by pc, and their guards; one more entry stands for the end of the kernel."""

    kernel: Kernel
    entries: tuple[Entry, ...]
    guards: tuple[Callable[[Thread, Lanes], Lanes] | None, ...]


def prepare(kernel: Kernel) -> Program:
    """Every instruction of the kernel, or UnsupportedError for the first that is not defined here."""
    if not kernel.instructions:
        raise UnsupportedError(f"kernel {kernel.name} without instructions")
    entries = []
    for ins in kernel.instructions:
        check_time()
        entries.append(entry(ins))
    guards = [guard(ins) for ins in kernel.instructions]
    return Program(kernel, (*entries, Exit(kernel.instructions[-1], counts=False)), (*guards, None))


def result_bits(value: Values, dest: Register) -> Values:
    """A result of the machine as its register holds it."""
    width = dest.bits
    return value if width == 64 else value & np.uint64((1 << width) - 1)
