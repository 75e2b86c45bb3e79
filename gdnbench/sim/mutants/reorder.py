# SPDX-License-Identifier: Apache-2.0
"""Finds the position to which a mutant moves a wait, fence or barrier: behind the next instruction it orders.

    moved                         behind the next
    wait for an mbarrier,         access of any proxy, signal of an mbarrier or arrival: it orders all later
      barrier, fence, membar        accesses of the thread ("Memory Consistency Model")
    fence.proxy.*                 asynchronous operation or arrival: accesses of one proxy keep their order;
                                    the fence orders them before accesses of another ("Proxies")
    fence.mbarrier_init           signal of an mbarrier by an asynchronous operation, or arrival: it orders
                                    only mbarrier.init
    tcgen05.fence::before_...     arrival: it orders tcgen05 operations before the arrival
    tcgen05.fence::after_...      tcgen05 operation on tensor memory: it orders them after the previous wait
    tcgen05.wait::ld              write of tensor memory, arrival, use of a register that tcgen05.ld writes:
                                    the load in flight reads tensor memory and writes registers
    tcgen05.wait::st              access to tensor memory, tcgen05.commit or arrival
    cp.async.wait_*               access to shared memory, write of global memory, or arrival: copies in
                                    flight write shared and read global memory
    cp.async.bulk.wait_group      write of shared memory, or arrival; without .read also access to global
                                    memory: copies in flight read shared and write global memory
    wgmma.wait_group              write of shared memory, arrival, use of a register of a product: products
                                    in flight read shared memory and write registers
    wgmma.fence                   wgmma.mma_async, whose registers it orders

An arrival is any instruction that lets other threads continue: mbarrier.arrive, a barrier, a release, or a
fence after which another access may release. `bar.warp.sync` is no arrival for instructions of whole warps
(tensor-memory loads and stores, wgmma). Moves and packings of registers are no uses: compilers put them
before the wait. Accesses are not distinguished by address, which PTX does not show. If the moved instruction
does not order the access behind which it moves, the mutant is equivalent.

A wait or barrier moves past later fences. Stopping before a fence would only undo the effect of that fence,
like its removal, which is a separate mutant.

A conditional section is passed as a whole if it contains an instruction that stops the move. Nothing moves
past a join of control flow, out of its loop, past a change of its operands, or behind an equal instruction,
which would be the same program. Such an instruction has no mutant of this kind; its removal is a mutant too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench.sim.ptx.flow import dominators, postdominators, registers_of, successors, targets_of
from gdnbench.sim.ptx.forms import Flow, Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register, Sink, Vector

_WHOLE_WARPS = ("tcgen05.", "wgmma.")


@dataclass(frozen=True, slots=True)
class Where:
    """A position: behind the instruction at `pc`, or before it."""

    pc: int
    behind: bool


class MoveTargets:
    """Finds the positions in one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._before = dominators(kernel)
        self._behind = postdominators(kernel)
        self._loaded = _held(kernel, Until.TENSOR_LOAD)
        self._products = _held(kernel, Until.WGMMA_GROUP)

    def find(self, moved: Instruction) -> Where | None:
        """The position to which `moved` moves; None if it cannot."""
        start = self._after_wait(moved) if moved.form.sync is Sync.POLL else moved.pc + 1
        where = None if start is None else self._next(moved, start)
        if where is None or not self._dominates(moved.pc, where.pc) or self._changes(moved, where):
            return None
        if where.behind and _alike(self.kernel.instructions[where.pc], moved):
            return None
        return where

    def _next(self, moved: Instruction, pc: int) -> Where | None:
        seen: set[int] = set()
        while 0 <= pc < len(self.kernel.instructions) and pc not in seen:
            seen.add(pc)
            ins = self.kernel.instructions[pc]
            if ins.form.ends_thread:
                return None
            if ins.form.flow is Flow.BRANCH and (ins.guard is not None or len(targets_of(ins)) > 1):
                behind = self._behind[pc]
                if self._any(moved, pc, behind):
                    return Where(behind, False) if 0 <= behind < len(self.kernel.instructions) else None
                pc = behind
            elif ins.form.flow is Flow.BRANCH:
                pc = _target(ins)
            elif self._counts(ins, moved):
                return Where(pc, True)
            else:
                pc += 1
        return None

    def _counts(self, ins: Instruction, moved: Instruction) -> bool:
        """Whether a move of `moved` behind `ins` is one step later."""
        if ins.form.sync is Sync.WARP_BARRIER and moved.op.startswith(_WHOLE_WARPS):
            return False
        if moved.form.ends is Until.TENSOR_LOAD and _uses(ins, self._loaded):
            return True
        product = ins.form.until is Until.WGMMA_GROUP
        if moved.form.ends is Until.WGMMA_GROUP and not product and _uses(ins, self._products):
            return True
        return bool(ins.form.effects & moved.form.orders)

    def _any(self, moved: Instruction, branch: int, end: int) -> bool:
        """Whether an instruction that stops the move is on a path from a branch to the join of its paths."""
        return any(self._counts(self.kernel.instructions[pc], moved) for pc in self._between(branch, end))

    def _between(self, start: int, end: int) -> set[int]:
        """All instructions that may execute after `start` and before `end`."""
        seen: set[int] = set()
        left = successors(self.kernel, self.kernel.instructions[start])
        while left:
            pc = left.pop()
            if pc != end and pc not in seen:
                seen.add(pc)
                left += successors(self.kernel, self.kernel.instructions[pc])
        return seen

    def _after_wait(self, wait: Instruction) -> int | None:
        """The instruction after a wait that succeeds, if a failed wait repeats at once; else None."""
        (predicate,) = wait.written()
        again = self._follow(wait.pc + 1, predicate, False, wait.pc)
        return self._follow(wait.pc + 1, predicate, True, None) if again == wait.pc else None

    def _follow(self, pc: int, predicate: Register | Sink, value: bool, stop: int | None) -> int | None:
        """The instruction to which branches on `predicate` lead, past register arithmetic before `stop`."""
        for _ in range(len(self.kernel.instructions)):
            if pc == stop or pc >= len(self.kernel.instructions):
                return pc
            ins = self.kernel.instructions[pc]
            branches = ins.form.flow is Flow.BRANCH
            if ins.op == "brx.idx":
                return None
            if branches and (ins.guard is None or ins.guard.register == predicate):
                taken = ins.guard is None or ins.guard.negated is not value
                pc = _target(ins) if taken else pc + 1
            elif branches or stop is None or ins.form.effects or predicate in ins.written():
                return pc
            else:
                pc += 1
        return None

    def _dominates(self, first: int, pc: int) -> bool:
        while pc > 0 and pc != first and self._before[pc] >= 0:
            pc = self._before[pc]
        return pc == first

    def _changes(self, moved: Instruction, where: Where) -> bool:
        """Whether an operand of `moved` has another value at that position."""
        reads = {register for source in moved.sources for register in registers_of(source)}
        if moved.guard is not None:
            reads.add(moved.guard.register)
        passed = self._between(moved.pc, where.pc) | ({where.pc} if where.behind else set())
        return any(reads & set(self.kernel.instructions[pc].written()) for pc in passed - {moved.pc})


def _held(kernel: Kernel, until: Until) -> frozenset[Register]:
    """What operations that are over `until` then write, what moves make of it, and the vectors that they
    read."""
    found: set[Register] = set()
    for ins in kernel.instructions:
        if ins.form.until is until:
            found.update(_written(ins))
            found.update(*(registers_of(source) for source in ins.sources if isinstance(source, Vector)))
    size = -1
    while size < len(found):
        size = len(found)
        for ins in kernel.instructions:
            if ins.form.copies and not found.isdisjoint(_read(ins)):
                found.update(_written(ins))
    return frozenset(found)


def _alike(one: Instruction, other: Instruction) -> bool:
    """Whether the order of the two instructions makes no difference."""
    return (one.name, one.sources, one.guard) == (other.name, other.sources, other.guard)


def _uses(ins: Instruction, held: frozenset[Register]) -> bool:
    """Whether `ins` computes with one of the registers, or overwrites it."""
    return not ins.form.copies and not held.isdisjoint((*_read(ins), *_written(ins)))


def _read(ins: Instruction) -> Iterator[Register]:
    for source in ins.sources:
        yield from registers_of(source)


def _written(ins: Instruction) -> Iterator[Register]:
    return (register for register in ins.written() if isinstance(register, Register))


def _target(ins: Instruction) -> int:
    (target,) = targets_of(ins)
    return target.pc
