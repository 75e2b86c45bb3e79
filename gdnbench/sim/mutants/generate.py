# SPDX-License-Identifier: Apache-2.0
"""Generates mutants of every synchronising instruction of a kernel, from its PTX alone.

    removed        the instruction; for a wait by predicate, the predicate is set to true
    count more     mbarrier.init, arrive: one; expect_tx: a byte; bar: a warp; wait_group: a group
    count less     the same; left out for wait_group, where fewer groups only wait longer. In a kernel for
                   pairs of CTAs also half of an expect_tx, the bytes of one of the two
    parity flipped of a wait
    weakened       fence.proxy.async of one memory instead of both, or of the other; scope .cta; release and
                   acquire relaxed; .read of a wait for bulk groups; a tcgen05.commit that arrives in its own
                   CTA alone instead of all that its mask names
    one later      a wait, fence or barrier, moved behind the next access, see `reorder.py`

`griddepcontrol`, which orders launches, and `tcgen05.relinquish_alloc_permit`, which orders allocations of an
SM's CTAs, have no effect within one CTA of one launch and are left out. An mbarrier.init is not removed,
because each use of an uninitialised mbarrier is a fault. A `.red` of a barrier is not either, because it has
a result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from gdnbench.sim.mutants.mutant import Kind, Mutant
from gdnbench.sim.mutants.reorder import MoveTargets
from gdnbench.sim.mutants.text import Edit, Statement, statements
from gdnbench.sim.ptx.forms import Access, Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Kernel, Module

_WAITS_FOR_THREADS = {Sync.BARRIER_WAIT, Sync.WARP_BARRIER, Sync.CLUSTER_WAIT}
_MOVED = {Sync.POLL, Sync.FENCE, Sync.WAIT, Sync.WAIT_GROUP, *_WAITS_FOR_THREADS}
_ARRIVALS = {Sync.ARRIVE, Sync.ARRIVE_EXPECT}
_KEPT = {Sync.NONE, Sync.INIT, Sync.POLL, Sync.BARRIER_REDUCE}  # without them the kernel is no program
_BARRIERS = {Sync.BARRIER_WAIT, Sync.BARRIER_ARRIVE, Sync.BARRIER_REDUCE}
_ORDERED = ("acquire", "release", "acq_rel")
_COMPUTED: dict[str, Callable[[int, int], int]] = {
    "add.s32": operator.add,
    "xor.b32": operator.xor,
    "shr.u32": operator.rshift,
}
_SIGNS = {"xor.b32": "^", "shr.u32": ">>"}
WARP = 32
REGISTER = "%mutant"


def synchronises(ins: Instruction) -> bool:
    """Whether the instruction has mutants."""
    return ins.form.sync is not Sync.NONE or (not ins.form.by_machine and ins.has(*_ORDERED))


def mutants(module: Module, entry: str) -> Iterator[Mutant]:
    """All mutants of the kernel, by pc."""
    kernel = module.kernels[entry]
    yield from _Generator(module.text, kernel).all()


class _Generator:
    def __init__(self, text: str, kernel: Kernel) -> None:
        self.text = text
        self.kernel = kernel
        self.statements = statements(text, kernel)
        self.targets = MoveTargets(kernel)
        self.pairs = any(ins.has("cta_group::2") for ins in kernel.instructions)

    def all(self) -> Iterator[Mutant]:
        for ins in self.kernel.instructions:
            if synchronises(ins):
                yield from self._removed(ins)
                yield from self._counts(ins)
                yield from self._parity(ins)
                yield from self._weakened(ins)
                yield from self._one_later(ins)

    def _mutant(self, kind: Kind, ins: Instruction, change: str, *edits: Edit) -> Mutant:
        return Mutant(kind, ins.op, ins.pc, ins.place, change, edits)

    def _part(self, span: tuple[int, int]) -> str:
        return self.text[span[0] : span[1]]

    def _nothing(self, statement: Statement) -> Edit:
        """Takes a statement out, with its semicolon."""
        return Edit(statement.start, statement.stop + 1, "")

    def _passed(self, ins: Instruction) -> Edit:
        """Instead of a wait: its predicate is true."""
        statement = self.statements[ins.pc]
        guard = self.text[statement.start : statement.opcode[0]]
        predicate = self._part(statement.operands[0])
        return Edit(statement.start, statement.stop, f"{guard}setp.eq.u32 {predicate}, 0, 0")

    def _removed(self, ins: Instruction) -> Iterator[Mutant]:
        if ins.form.sync is Sync.POLL:
            yield self._mutant(Kind.REMOVED, ins, "never waits", self._passed(ins))
        elif ins.form.sync not in _KEPT:
            yield self._mutant(Kind.REMOVED, ins, "removed", self._nothing(self.statements[ins.pc]))

    def _counts(self, ins: Instruction) -> Iterator[Mutant]:
        step = WARP if ins.form.sync in _BARRIERS else 1
        at = _count_of(ins)
        statement = self.statements[ins.pc]
        if at is None:
            return
        if at < len(statement.operands):
            yield self._changed(Kind.MORE, ins, at, "add.s32", step)
            if ins.form.sync is not Sync.WAIT_GROUP:
                yield self._changed(Kind.LESS, ins, at, "add.s32", -step)
            if self.pairs and ins.form.sync in (Sync.EXPECT, Sync.ARRIVE_EXPECT):
                yield self._changed(Kind.LESS, ins, at, "shr.u32", 1)
        elif step == 1:  # one arrival if nothing is said; a bar without a count is for all threads
            more = Edit(statement.stop, statement.stop, ", 2")
            yield self._mutant(Kind.MORE, ins, "2 instead of 1", more)

    def _parity(self, ins: Instruction) -> Iterator[Mutant]:
        if ins.form.sync is Sync.POLL and ins.has("parity"):
            yield self._changed(Kind.PARITY, ins, 2, "xor.b32", 1)

    def _changed(self, kind: Kind, ins: Instruction, at: int, operation: str, amount: int) -> Mutant:
        """Operand `at` with `amount` added, or its bits turned or shifted."""
        statement = self.statements[ins.pc]
        start, stop = statement.operands[at]
        operand = self._part((start, stop))
        if operand.isdigit():
            value = _COMPUTED[operation](int(operand), amount)
            return self._mutant(kind, ins, f"{value} instead of {operand}", Edit(start, stop, str(value)))
        change = (
            f"{operand} {amount:+}" if operation == "add.s32" else f"{operand} {_SIGNS[operation]} {amount}"
        )
        before = f"{{ .reg .b32 {REGISTER}; {operation} {REGISTER}, {operand}, {amount}; "
        return self._mutant(
            kind,
            ins,
            change,
            Edit(statement.start, statement.start, before),
            Edit(start, stop, REGISTER),
            Edit(statement.stop, statement.stop + 1, "; }"),
        )

    def _weakened(self, ins: Instruction) -> Iterator[Mutant]:
        start, stop = self.statements[ins.pc].opcode
        spelled = self._part((start, stop))
        for weaker in _weaker(ins, spelled):
            yield self._mutant(Kind.WEAKENED, ins, weaker, Edit(start, stop, weaker))
        if ins.op == "tcgen05.commit" and ins.has("multicast::cluster"):
            (_, after), (_, end) = self.statements[ins.pc].operands[:2]
            alone = spelled.replace(".multicast::cluster", "")
            yield self._mutant(
                Kind.WEAKENED, ins, "in its own CTA alone", Edit(start, stop, alone), Edit(after, end, "")
            )

    def _one_later(self, ins: Instruction) -> Iterator[Mutant]:
        where = self.targets.find(ins) if ins.form.sync in _MOVED else None
        if where is None:
            return
        statement, target = self.statements[ins.pc], self.statements[where.pc]
        moved = self.text[statement.start : statement.stop]
        if ins.form.sync is Sync.POLL:
            moved = self._loop(ins)
            gone = self._passed(ins)
        else:
            moved = f"{moved};"
            gone = self._nothing(statement)
        at = target.stop + 1 if where.behind else target.start
        side = "behind" if where.behind else "before"
        passed = self.kernel.instructions[where.pc]
        change = f"{side} {passed.name} at PTX line {passed.place.line}"
        yield self._mutant(Kind.LATER, ins, change, gone, Edit(at, at, f" {moved} "))

    def _loop(self, ins: Instruction) -> str:
        """The wait, until it succeeds."""
        statement = self.statements[ins.pc]
        first = statement.operands[0]
        wait = self.text[statement.opcode[0] : first[0]] + REGISTER + self.text[first[1] : statement.stop]
        guard = self.text[statement.start : statement.opcode[0]]
        if not guard:
            return f"{{ .reg .pred {REGISTER}; MUTANT: {wait}; @!{REGISTER} bra MUTANT; }}"
        guard = guard.strip().removeprefix("@").strip()
        other = guard[1:].strip() if guard.startswith("!") else f"!{guard}"
        return (
            f"{{ .reg .pred {REGISTER}; @{other} bra DONE; MUTANT: {wait}; @!{REGISTER} bra MUTANT; DONE: }}"
        )


def _count_of(ins: Instruction) -> int | None:
    """Which operand of the text is a count, though it may be left out; None if the instruction has none."""
    match ins.form.sync:
        case Sync.WAIT_GROUP:
            return 0
        case Sync.INIT | Sync.EXPECT | Sync.COMPLETE | Sync.BARRIER_WAIT | Sync.BARRIER_ARRIVE:
            return 1
        case Sync.ARRIVE | Sync.ARRIVE_EXPECT:
            return len(ins.dests) + 1
        case Sync.BARRIER_REDUCE:
            return 2 if len(ins.sources) == 3 else None
    return None


def _weaker(ins: Instruction, spelled: str) -> Iterator[str]:
    """Spellings of the opcode that order less."""
    if ins.op == "fence.proxy.async":
        spaces = ("global", "shared::cta")
        for space in spaces:
            if not ins.has(space):
                yield f"fence.proxy.async.{space}"
    elif ins.op == "membar":
        if not ins.has("cta"):
            yield "membar.cta"
    elif ins.op == "fence":
        for wider in ("cluster", "gpu", "sys"):
            if ins.has(wider):
                yield spelled.replace(f".{wider}", ".cta")
    elif ins.form.sync is Sync.CLUSTER_ARRIVE:
        if not ins.has("relaxed"):
            yield ".".join((ins.op, "relaxed", *(mod for mod in ins.mods if mod == "aligned")))
    elif ins.form.sync is Sync.POLL or ins.form.sync in _ARRIVALS:
        if not ins.has("relaxed"):
            rest = [part for part in spelled.removeprefix(ins.op).split(".")[1:] if part not in _ORDERED]
            scope = () if {"cta", "cluster"} & set(rest) else ("cta",)
            parity = [part for part in rest if part == "parity"]
            others = [part for part in rest if part != "parity"]
            yield ".".join((ins.op, *parity, "relaxed", *scope, *others))
    elif ins.form.ends is Until.BULK_GROUP:
        if not ins.has("read"):
            yield "cp.async.bulk.wait_group.read"
    elif ins.form.access is not Access.NONE:
        for order in _ORDERED:
            if ins.has(order):
                yield spelled.replace(f".{order}", ".relaxed")
