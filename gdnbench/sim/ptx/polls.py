# SPDX-License-Identifier: Apache-2.0
"""What a kernel does with the answer of a poll (mbarrier.test_wait, try_wait): decided from its code.

Either poll may answer false although the phase will complete, at once or after a time limit (PTX ISA,
"mbarrier.test_wait, mbarrier.try_wait"). So what follows a poll comes after the phase only if a false answer
leads elsewhere: back to a poll, or past what the true answer leads to.

`answers` follows the answer false from the poll through moves, `selp`, `setp` and logic, over branches that
do not depend on it, to the branches and guards that do, and judges each by its immediate postdominator, where
both answers meet again:

    RETRIED   every path of the false answer passes a poll that is RETRIED, or traps, before the two meet:
              `again: try_wait p; @!p bra again`, or a token `try_wait p; ...; @p bra over; again: ...; over:`
    READ      it does not, but the true answer alone reaches an access to memory or to the machine
    IGNORED   no branch or guard depends on the answer, or both answers reach the same instructions

A poll is READ if one of its decisions is, else RETRIED if one is, else IGNORED. That the answer of a token is
thrown away on some other path is not told.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache

from gdnbench.sim.ptx.flow import postdominators, registers_of, successors, targets_of
from gdnbench.sim.ptx.forms import Access, Flow, Sync
from gdnbench.sim.ptx.ir import Immediate, Instruction, Kernel, Negated, Operand, Register

Known = dict[int, int | None]
"""By register, its value if the answer is false; None if it depends on the answer and is not known."""
STATES = 100_000
"""The most pairs of a pc and what is known there that are followed from a poll; READ if there are more."""


class Answer(Enum):
    RETRIED = auto()
    READ = auto()
    IGNORED = auto()


@lru_cache(maxsize=64)
def _answers(kernel: _Identity) -> dict[int, Answer]:
    return _Polls(kernel.kernel).all()


class _Identity:
    """A kernel as a key by identity: comparing kernels compares all instructions."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __hash__(self) -> int:
        return id(self.kernel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.kernel is self.kernel


def answers(kernel: Kernel) -> dict[int, Answer]:
    """By the pc of each poll, what the kernel does with its answer."""
    return _answers(_Identity(kernel))


def tells(kernel: Kernel, ins: Instruction) -> bool:
    """Whether what follows the poll `ins`, answered true, comes after the phase."""
    return answers(kernel)[ins.pc] is not Answer.IGNORED


class _Polls:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._code = kernel.instructions
        self._meets: list[int] | None = None
        self._found: dict[int, Answer] = {}

    def all(self) -> dict[int, Answer]:
        return {ins.pc: self._answer(ins.pc) for ins in self._code if ins.form.sync is Sync.POLL}

    def _answer(self, pc: int) -> Answer:
        if pc not in self._found:
            self._found[pc] = Answer.RETRIED  # what two polls that retry by one another are
            told = set(self._decisions(pc))
            best = (one for one in (Answer.READ, Answer.RETRIED) if one in told)
            self._found[pc] = next(best, Answer.IGNORED)
        return self._found[pc]

    def _decisions(self, poll: int) -> Iterator[Answer]:
        """What each branch and guard that depends on the answer makes of it."""
        answer = next(self._code[poll].written(), None)
        if not isinstance(answer, Register):
            return
        first: Known = {answer.index: 0}
        todo = [(pc, first) for pc in successors(self._kernel, self._code[poll])]
        seen = set[object]()
        while todo:
            pc, known = todo.pop()
            state = pc, frozenset(known.items())
            if not known or pc == poll or state in seen:
                continue
            seen.add(state)
            if len(seen) > STATES:
                yield Answer.READ
                return
            ins = self._code[pc]
            guard = _guard(ins, known)
            depends = ins.guard is not None and ins.guard.register.index in known
            if _branches(ins) and (depends or _names(ins, known)):
                yield self._branch(ins, known, guard)
                continue
            if depends and guard is not True and _touches(ins):
                yield Answer.READ
            todo += self._after(ins, known, guard)

    def _after(self, ins: Instruction, known: Known, guard: bool | None) -> list[tuple[int, Known]]:
        """The states behind an instruction of this guard, None for either."""
        following = successors(self._kernel, ins)
        if ins.form.flow is Flow.BRANCH:
            following = _sides(self._kernel, ins)[not guard] if guard is not None else following
            return [(pc, known) for pc in following]
        if ins.form.ends_thread and guard is True:
            return []
        changed = _changed(ins, known)
        states = [changed] if guard is True else [known] if guard is False else [known, changed]
        return [(pc, one) for pc in following for one in states]

    def _branch(self, ins: Instruction, known: Known, guard: bool | None) -> Answer:
        if ins.form.ends_thread:
            return Answer.RETRIED if ins.form.flow is Flow.TRAP and guard is True else Answer.READ
        taken, other = _sides(self._kernel, ins)
        meet = self._meet(ins.pc)
        sides = [(taken, other), (other, taken)]
        if guard is not None:  # where the false answer leads to
            sides = sides[:1] if guard else sides[1:]
        if any(self._retries(false, known, meet) for false, _ in sides):
            return Answer.RETRIED
        for false, true in sides:
            only = self._reach(true, meet) - self._reach(false, meet)
            if any(_touches(self._code[pc]) for pc in only):
                return Answer.READ
        return Answer.IGNORED

    def _meet(self, pc: int) -> int:
        if self._meets is None:
            self._meets = postdominators(self._kernel, trapped=False)
        end = len(self._code)
        return end if self._meets[pc] < 0 else self._meets[pc]

    def _retries(self, starts: list[int], known: Known, meet: int) -> bool:
        """Whether every path passes a poll that is retried, or traps, before `meet` and the end."""
        todo: list[tuple[int, Known]] = [(pc, known) for pc in starts]
        passed, seen = bool(starts), set[object]()
        while todo:
            pc, now = todo.pop()
            if pc == meet or len(seen) > STATES:
                return False
            state = pc, frozenset(now.items())
            if state in seen:
                continue
            seen.add(state)
            ins = self._code[pc]
            guard = _guard(ins, now)
            if ins.form.sync is Sync.POLL and guard is not False:
                if self._answer(pc) is not Answer.RETRIED:
                    return False
                continue
            if ins.form.flow is Flow.EXIT and guard is not False:
                return False
            following = self._after(ins, now, guard)
            if not following and ins.form.flow is not Flow.TRAP:
                return False
            todo += following
        return passed

    def _reach(self, starts: list[int], meet: int) -> set[int]:
        """The pcs before `meet`."""
        todo, seen = list(starts), set[int]()
        while todo:
            pc = todo.pop()
            if pc != meet and pc not in seen:
                seen.add(pc)
                todo += successors(self._kernel, self._code[pc])
        return seen


def _branches(ins: Instruction) -> bool:
    return ins.form.flow is Flow.BRANCH or ins.form.ends_thread


def _touches(ins: Instruction) -> bool:
    """Whether it accesses memory, or does anything else than compute."""
    return ins.form.by_machine or ins.form.access is not Access.NONE


def _sides(kernel: Kernel, ins: Instruction) -> tuple[list[int], list[int]]:
    """Where a branch leads to with its guard true and with it false."""
    end = len(kernel.instructions)
    taken = [target.pc for target in targets_of(ins) if target.pc < end]
    return taken, [ins.pc + 1] if ins.guard and ins.pc + 1 < end else []


def _names(ins: Instruction, known: Known) -> bool:
    return any(one.index in known for source in ins.sources for one in registers_of(source))


def _guard(ins: Instruction, known: Known) -> bool | None:
    """Whether it is executed; None if that is not known."""
    if ins.guard is None:
        return True
    value = known.get(ins.guard.register.index)
    return None if value is None else bool(value) != ins.guard.negated


def _changed(ins: Instruction, known: Known) -> Known:
    """What is known after `ins` has been executed."""
    written = [one.index for one in ins.written() if isinstance(one, Register)]
    if not written:
        return known
    rest = {index: value for index, value in known.items() if index not in written}
    if _names(ins, known) and ins.form.sync is not Sync.POLL:
        value = _value(ins, known) if len(written) == 1 else None
        rest |= dict.fromkeys(written, value)
    return rest


def _value(ins: Instruction, known: Known) -> int | None:
    """The result of a move, a choice, a comparison for equality or logic; None for another or unknown."""
    values = [_operand(source, known) for source in ins.sources]
    if ins.op in ("mov", "cvt") and len(values) == 1:
        return values[0]
    if ins.op == "selp" and values[2] is not None:
        return values[0] if values[2] else values[1]
    if ins.op == "setp" and len(values) == 2 and None not in values and ins.has("eq", "ne"):
        return int((values[0] == values[1]) == ins.has("eq"))
    if ins.op == "and" and 0 in values:
        return 0
    if ins.op in ("and", "or", "xor") and values[0] is not None and values[1] is not None:
        one, other = values[0], values[1]
        return one & other if ins.op == "and" else one | other if ins.op == "or" else one ^ other
    if ins.op == "not" and values[0] is not None and ins.types == ("pred",):
        return 1 - values[0]
    return None


def _operand(source: Operand, known: Known) -> int | None:
    if isinstance(source, Immediate):
        return source.bits
    if isinstance(source, Register):
        return known.get(source.index)
    if isinstance(source, Negated):
        value = known.get(source.register.index)
        return None if value is None else 1 - value
    return None
