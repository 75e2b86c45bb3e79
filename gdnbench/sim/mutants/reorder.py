"""Where a wait, fence or barrier goes when it is moved behind the next instruction that it orders.

    moved                         behind the next
    wait for an mbarrier,         access of any proxy, signal of an mbarrier or arrival: all that the thread
      barrier, fence, membar        does after it is ordered ("Memory Consistency Model")
    fence.proxy.*                 asynchronous operation or arrival: each proxy keeps its own order, what
                                    another does has to come behind the fence ("Proxies")
    fence.mbarrier_init           signal of an mbarrier by an asynchronous operation, or arrival: it orders
                                    mbarrier.init alone
    tcgen05.fence::before_...     arrival: it orders tcgen05 operations with what comes behind that
    tcgen05.fence::after_...      tcgen05 operation on tensor memory: it orders those with the wait before it
    tcgen05.wait::ld              write of tensor memory, arrival, use of a register that tcgen05.ld fills:
                                    until the wait, the load reads the one and writes the other
    tcgen05.wait::st              access to tensor memory, tcgen05.commit or arrival
    cp.async.wait_*               access to shared memory, write of global memory, or arrival: the copies
                                    write the one and read the other
    cp.async.bulk.wait_group      write of shared memory, or arrival; without .read, access to global memory
                                    too: the copies read the one and write the other
    wgmma.wait_group              write of shared memory, arrival, use of a register of a product: products
                                    read and write those
    wgmma.fence                   wgmma.mma_async, whose registers it orders

An arrival is whatever lets other threads go on: mbarrier.arrive, a barrier, a release, a fence that another
kind of access may release behind. Whole warps load and store tensor memory and multiply by wgmma: for those
`bar.warp.sync`, among lanes, is none. Moves and packings of registers are no uses: compilers put them before
the wait. Accesses are not told apart by address, which PTX does not show: some are not those that the moved
instruction orders, and such a mutant is equivalent.

A wait or barrier passes the fences behind it. To stop there would undo what such a fence does for the wait,
and no more than the removal of the fence undoes, which is a mutant too.

What a branch may skip is passed as a whole if something in it counts. Nothing is moved to where other paths
come in, out of its loop, over a change of its operands, or behind another like it, which would be the same
program: such an instruction has no mutant of this kind. Whatever would be unordered further on, its removal
leaves unordered too, and that is a mutant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdnbench.sim.ptx.flow import dominators, postdominators, registers_of, successors
from gdnbench.sim.ptx.forms import Flow, Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register, Sink, Target, Vector

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
        """The position to move to; None if `moved` cannot go further."""
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
            if ins.form.flow is Flow.BRANCH and ins.guard is not None:
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
        """Whether to go behind `ins` is one later for `moved`."""
        if ins.form.sync is Sync.WARP_BARRIER and moved.op.startswith(_WHOLE_WARPS):
            return False
        if moved.form.ends is Until.TENSOR_LOAD and _uses(ins, self._loaded):
            return True
        product = ins.form.until is Until.WGMMA_GROUP
        if moved.form.ends is Until.WGMMA_GROUP and not product and _uses(ins, self._products):
            return True
        return bool(ins.form.effects & moved.form.orders)

    def _any(self, moved: Instruction, branch: int, end: int) -> bool:
        """Whether anything that counts lies on a path from a branch to where its paths meet."""
        return any(self._counts(self.kernel.instructions[pc], moved) for pc in self._between(branch, end))

    def _between(self, start: int, end: int) -> set[int]:
        """All that may be executed behind `start` and before `end`."""
        seen: set[int] = set()
        left = successors(self.kernel, self.kernel.instructions[start])
        while left:
            pc = left.pop()
            if pc != end and pc not in seen:
                seen.add(pc)
                left += successors(self.kernel, self.kernel.instructions[pc])
        return seen

    def _after_wait(self, wait: Instruction) -> int | None:
        """What follows a wait that succeeds, if one that does not is repeated at once; else None."""
        (predicate,) = wait.written()
        again = self._follow(wait.pc + 1, predicate, False, wait.pc)
        return self._follow(wait.pc + 1, predicate, True, None) if again == wait.pc else None

    def _follow(self, pc: int, predicate: Register | Sink, value: bool, stop: int | None) -> int | None:
        """Where branches by `predicate` lead; register arithmetic on the way to `stop` is passed."""
        for _ in range(len(self.kernel.instructions)):
            if pc == stop or pc >= len(self.kernel.instructions):
                return pc
            ins = self.kernel.instructions[pc]
            branches = ins.form.flow is Flow.BRANCH
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
        """Whether an operand of `moved` has another value there."""
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
    """Whether it makes no difference which of them comes first."""
    return (one.name, one.sources, one.guard) == (other.name, other.sources, other.guard)


def _uses(ins: Instruction, held: frozenset[Register]) -> bool:
    """Whether `ins` computes with one of the registers, or gives it another value."""
    return not ins.form.copies and not held.isdisjoint((*_read(ins), *_written(ins)))


def _read(ins: Instruction) -> Iterator[Register]:
    for source in ins.sources:
        yield from registers_of(source)


def _written(ins: Instruction) -> Iterator[Register]:
    return (register for register in ins.written() if isinstance(register, Register))


def _target(ins: Instruction) -> int:
    target = ins.sources[0]
    assert isinstance(target, Target)
    return target.pc
