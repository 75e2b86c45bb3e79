"""Where a wait, fence or barrier goes when it is moved behind the next access.

Register arithmetic, collectives of a warp, parameters and constants are passed over; so are waits, which
end in any order, and what hints (prefetches, sleeping). A fence of proxies, which matters where its thread
releases or sets an asynchronous operation going, passes plain loads and stores too. What a branch may skip is
passed as a whole if something in it counts. Nothing is moved to where other paths come in, or over a change
of its operands.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.ptx import isa
from gdnbench.sim.ptx.flow import dominators, postdominators, registers_of, successors
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register, Sink, Target

_WAITS = ("mbarrier.test_wait", "mbarrier.try_wait")
_PASSED = (
    *_WAITS,
    "mbarrier.pending_count",
    "cp.async.wait_group",
    "cp.async.wait_all",
    "cp.async.bulk.wait_group",
    "wgmma.wait_group",
    "tcgen05.wait::ld",
    "tcgen05.wait::st",
    "prefetch",
    "prefetchu",
    "applypriority",
    "cp.async.bulk.prefetch",
    "cp.async.bulk.prefetch.tensor",
    "nanosleep",
    "setmaxnreg.inc",
    "setmaxnreg.dec",
    "griddepcontrol.wait",
    "griddepcontrol.launch_dependents",
    "tcgen05.relinquish_alloc_permit",
    "wgmma.fence",  # of registers
)
_PLAIN = ("ld", "ldu", "st", "ldmatrix", "stmatrix")
_ACCESSES = (*_PLAIN, "atom", "red")
_APART = ("param", "param::entry", "const", "local")
_PROXY_FENCES = ("fence.proxy.async", "fence.mbarrier_init")


@dataclass(frozen=True, slots=True)
class Where:
    """Behind the instruction at `pc`, or before it."""

    pc: int
    behind: bool


class Later:
    """The places of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._before = dominators(kernel)
        self._behind = postdominators(kernel)

    def place(self, moved: Instruction) -> Where | None:
        """None if `moved` cannot go further."""
        start = self._after_wait(moved) if moved.op in _WAITS else moved.pc + 1
        where = None if start is None else self._next(moved, start)
        if where is None or not self._dominates(moved.pc, where.pc) or self._changes(moved, where):
            return None
        return where

    def _next(self, moved: Instruction, pc: int) -> Where | None:
        seen: set[int] = set()
        while 0 <= pc < len(self.kernel.instructions) and pc not in seen:
            seen.add(pc)
            ins = self.kernel.instructions[pc]
            if ins.op in ("ret", "exit", "trap"):
                return None
            if ins.op == "bra" and ins.guard is not None:
                behind = self._behind[pc]
                if self._any(moved, pc, behind):
                    return Where(behind, False) if 0 <= behind < len(self.kernel.instructions) else None
                pc = behind
            elif ins.op == "bra":
                pc = _target(ins)
            elif counts(ins, moved):
                return Where(pc, True)
            else:
                pc += 1
        return None

    def _any(self, moved: Instruction, branch: int, end: int) -> bool:
        """Whether anything that counts lies on a path from a branch to where its paths meet."""
        return any(counts(self.kernel.instructions[pc], moved) for pc in self._between(branch, end))

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
            if ins.op == "bra" and (ins.guard is None or ins.guard.register == predicate):
                taken = ins.guard is None or ins.guard.negated is not value
                pc = _target(ins) if taken else pc + 1
            elif ins.op == "bra" or stop is None or counts(ins, ins) or predicate in ins.written():
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


def counts(ins: Instruction, moved: Instruction) -> bool:
    """Whether to go behind `ins` is one later for `moved`."""
    if ins.op in _PASSED:
        return False
    if moved.op in _PROXY_FENCES and ins.op in _PLAIN and not ins.has("acquire", "release", "acq_rel"):
        return False
    if ins.op in _ACCESSES:
        return not ins.has(*_APART)
    return isa.owner(ins.op) is isa.Owner.MACHINE


def _target(ins: Instruction) -> int:
    target = ins.sources[0]
    assert isinstance(target, Target)
    return target.pc
