"""Cuts a kernel into blocks, the units that are compiled and dispatched, and computes which registers live
across blocks.

A warp's lanes can diverge, reconverge, wait and continue only between blocks. So a block begins at every
branch target, after every branch, at every collective, and before and after every runtime call: an
instruction that Python executes, because it belongs to the machine or to the tensor core. Long blocks are
cut, which keeps compile time linear.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.ptx.flow import registers_of, successors
from gdnbench.sim.ptx.forms import Flow, Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register, Target

MAX_BLOCK = 96


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions [start, stop). `live_out`: registers that later blocks may read, as a bit set by index."""

    index: int
    start: int
    stop: int
    service: bool
    live_in: int
    live_out: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a kernel in order of pc; `at[pc]` is the index of the block that starts there."""

    blocks: tuple[Block, ...]
    at: dict[int, int]


def read_set(ins: Instruction) -> int:
    """Registers that the instruction reads. A guarded one keeps its destination's old value in some lanes."""
    found = 0
    for source in ins.sources:
        for register in registers_of(source):
            found |= 1 << register.index
    if ins.guard is not None:
        found |= 1 << ins.guard.register.index
        found |= written_set(ins)
    if ins.form.until is Until.WGMMA_GROUP:  # D is added to
        found |= written_set(ins)
    return found


def written_set(ins: Instruction) -> int:
    """Registers that the instruction writes."""
    found = 0
    for register in ins.written():
        if isinstance(register, Register):
            found |= 1 << register.index
    return found


def is_service(ins: Instruction) -> bool:
    """True if Python executes the instruction."""
    return ins.form.by_machine or ins.form.cls == "mma.sync"


def _leaders(kernel: Kernel) -> list[int]:
    leaders = {0}
    for ins in kernel.instructions:
        if ins.form.flow is Flow.BRANCH:
            target = ins.sources[0]
            assert isinstance(target, Target)
            leaders.add(target.pc)
        if (
            is_service(ins) or ins.form.sync is Sync.WARP_BARRIER
        ):  # lanes may meet there without compiled code
            leaders |= {ins.pc, ins.pc + 1}
        if ins.form.lanes_meet or (ins.form.aligned and not ins.form.by_machine):
            leaders.add(ins.pc)
        if ins.form.flow is not Flow.NEXT:
            leaders.add(ins.pc + 1)
    leaders.discard(len(kernel.instructions))
    ordered: list[int] = []
    for pc in range(len(kernel.instructions)):
        if pc in leaders or pc - ordered[-1] >= MAX_BLOCK:
            ordered.append(pc)
    return ordered


def find_blocks(kernel: Kernel) -> Blocks:
    """Cut the kernel and solve liveness over its control flow graph, backward until nothing changes."""
    leaders = _leaders(kernel)
    at = {pc: index for index, pc in enumerate(leaders)}
    stops = [*leaders[1:], len(kernel.instructions)]
    count = len(leaders)
    reads, kills, follow = [0] * count, [0] * count, [[0]] * count
    for index in range(count):
        body = kernel.instructions[leaders[index] : stops[index]]
        for ins in body:
            reads[index] |= read_set(ins) & ~kills[index]
            if ins.guard is None:
                kills[index] |= written_set(ins)
        follow[index] = [at[pc] for pc in successors(kernel, body[-1])]
    live_in, live_out = list(reads), [0] * count
    changed = True
    while changed:
        changed = False
        for index in reversed(range(count)):
            out = 0
            for successor in follow[index]:
                out |= live_in[successor]
            into = reads[index] | (out & ~kills[index])
            if out != live_out[index] or into != live_in[index]:
                live_out[index], live_in[index], changed = out, into, True
    blocks = tuple(
        Block(i, leaders[i], stops[i], is_service(kernel.instructions[leaders[i]]), live_in[i], live_out[i])
        for i in range(count)
    )
    return Blocks(blocks, at)
