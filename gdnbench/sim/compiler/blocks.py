# SPDX-License-Identifier: Apache-2.0
"""Cuts a kernel into blocks, the units that are compiled and dispatched, and computes which registers live
across blocks.

A warp's lanes can diverge, reconverge, wait and continue only between blocks. So a block begins at every
branch target, after every branch, at every collective, and before and after every runtime call: an
instruction that Python executes, because it belongs to the machine or to the tensor core. Long blocks are
cut, which keeps compile time linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ref

from gdnbench.sim.deadline import check_time
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.flow import postorder, registers_of, successors, targets_of
from gdnbench.sim.ptx.forms import Flow, Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register

MAX_BLOCK = 96

# LLVM is not interrupted at the time limit of a launch: these bound the time that it takes. For 5,000 blocks
# of one branch it took 6 s, for 20,000 of them 56 s, which is more than linear; for instructions in long
# blocks 0.04 to 0.7 ms each. The largest kernel that is served has 6,299 instructions in 1,417 blocks. With
# the parser's limit on registers the first also bounds a set of registers for each block, of which there are
# seven, to 256 MB.
MAX_BLOCKS = 1 << 14
MAX_INSTRUCTIONS = 1 << 17


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
    """True if Python executes the instruction: a machine instruction, or mma of another type than f64."""
    return ins.form.by_machine or (ins.form.cls == "mma.sync" and ins.types[0] != "f64")


def _leaders(kernel: Kernel) -> list[int]:
    leaders = {0}
    for ins in kernel.instructions:
        leaders |= {target.pc for target in targets_of(ins)}
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


_kept: dict[int, tuple[ref[Kernel], Blocks]] = {}  # by the kernel's id


def blocks_of(kernel: Kernel) -> Blocks:
    """`find_blocks`, kept as long as the kernel: a program launches it many times."""
    number = id(kernel)
    kept = _kept.get(number)
    if kept is None:
        kept = ref(kernel, lambda _: _kept.pop(number, None)), find_blocks(kernel)
        _kept[number] = kept
    return kept[1]


def find_blocks(kernel: Kernel) -> Blocks:
    """Cut the kernel and solve liveness over its control flow graph, backward until nothing changes."""
    leaders = _leaders(kernel)
    for found, most, what in (
        (len(kernel.instructions), MAX_INSTRUCTIONS, "instructions"),
        (len(leaders), MAX_BLOCKS, "blocks between branches"),
    ):
        if found > most:
            raise UnsupportedError(
                f"{found:,} {what} in {kernel.name}; the compiled engine takes {most:,},"
                " engine='interpreter' any number"
            )
    at = {pc: index for index, pc in enumerate(leaders)}
    stops = [*leaders[1:], len(kernel.instructions)]
    count = len(leaders)
    reads, kills, follow = [0] * count, [0] * count, [[0]] * count
    for index in range(count):
        check_time()
        body = kernel.instructions[leaders[index] : stops[index]]
        for ins in body:
            reads[index] |= read_set(ins) & ~kills[index]
            if ins.guard is None:
                kills[index] |= written_set(ins)
        follow[index] = [at[pc] for pc in successors(kernel, body[-1])]
    live_in, live_out = list(reads), [0] * count
    # Successors first: then a round is enough for code without loops, in whatever order its text is.
    order = postorder(0, lambda index: follow[index])
    order += sorted(set(range(count)) - set(order))
    changed = True
    while changed:
        changed = False
        for index in order:
            check_time()
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
