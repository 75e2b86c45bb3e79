# SPDX-License-Identifier: Apache-2.0
"""Finds where a kernel may use a register without a value: never written, computed from such a register, or
still in flight from a tcgen05.ld or a wgmma.

This is a forward data-flow analysis over the kernel's paths. It lists every possible use; checks at run time
decide which occur. Moves are not uses, as in the interpreter: `mov`, `selp` and `prmt` copy a missing value,
and `shfl` and stores to shared memory copy one that was never written. Arithmetic on a register that was
never written is no use either, as in Valgrind's Memcheck (Seward and Nethercote, "Using Valgrind to detect
undefined value errors with bit-precision", USENIX 2005): its result is undefined, and a use of the result
counts. Compilers compute in all lanes of a warp what only some lanes need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from gdnbench.sim.compiler.blocks import Blocks, written_set
from gdnbench.sim.deadline import check_time
from gdnbench.sim.ptx.flow import registers_of, successors
from gdnbench.sim.ptx.forms import Access, Flow, Until
from gdnbench.sim.ptx.ir import Immediate, Instruction, Kernel, Register


class Lack(Enum):
    """Why a register may have no value: never written; computed from a register that was never written; in
    flight."""

    UNWRITTEN = auto()
    COMPUTED = auto()
    FLYING = auto()


_SHARED = ("shared", "shared::cta", "shared::cluster")


def moved_sources(ins: Instruction, lack: Lack) -> tuple[int, ...]:
    """The places of the sources that may lack their value without a fault. The first destination gets it,
    of `mov` all do."""
    return () if lack is Lack.FLYING and ins.form.lanes_meet else ins.form.moves


def computed_sources(ins: Instruction) -> tuple[int, ...]:
    """The places of the sources that make the results undefined if they are. Loads, stores, matrix
    instructions, branches and the machine use all their sources instead."""
    form = ins.form
    if form.by_machine or form.aligned or form.access is not Access.NONE or form.flow is not Flow.NEXT:
        return ()
    if form.lanes_meet:  # the member mask is used, and so are the lanes of shfl
        return (0,) if not form.moves and len(ins.sources) > 1 else ()
    return tuple(place for place in range(len(ins.sources)) if place not in form.moves)


def used_registers(ins: Instruction, lack: Lack) -> Iterator[Register]:
    """The registers that have to be there when `ins` executes, its guard apart; for FLYING also those among
    which it chooses."""
    spared = () if lack is Lack.FLYING and ins.form.chooses else moved_sources(ins, lack)
    if lack is not Lack.FLYING:
        spared += computed_sources(ins)
    if lack is Lack.UNWRITTEN and ins.op == "st" and ins.has(*_SHARED):
        spared = (1,)
    for place, source in enumerate(ins.sources):
        if place not in spared:
            yield from registers_of(source)


@dataclass(slots=True)
class Maybe:
    """Registers that may have no value, as bit sets by index: never written, `computed` from such registers,
    `loading` by a tcgen05.ld, `multiplying` by a wgmma."""

    unwritten: int = 0
    computed: int = 0
    loading: int = 0
    multiplying: int = 0

    def lacking(self, lack: Lack) -> int:
        if lack is Lack.FLYING:
            return self.loading | self.multiplying
        return self.unwritten if lack is Lack.UNWRITTEN else self.computed

    def copy(self) -> Maybe:
        return replace(self)

    def join(self, other: Maybe) -> bool:
        """Merge `other`; returns whether that adds a register."""
        before = (self.unwritten, self.computed, self.loading, self.multiplying)
        self.unwritten |= other.unwritten
        self.computed |= other.computed
        self.loading |= other.loading
        self.multiplying |= other.multiplying
        return before != (self.unwritten, self.computed, self.loading, self.multiplying)

    def pass_by(self, ins: Instruction) -> None:
        """Update the sets for the execution of `ins`."""
        if ins.form.ends is Until.TENSOR_LOAD:
            self.loading = 0
        elif ins.form.ends is Until.WGMMA_GROUP:
            count = ins.sources[0]
            if isinstance(count, Immediate) and not count.bits:
                self.multiplying = 0
        written = written_set(ins)
        if not written:
            return
        kept = 0 if ins.guard is None else written
        carried = (
            _sources(ins, moved_sources(ins, Lack.UNWRITTEN)),
            _sources(ins, moved_sources(ins, Lack.FLYING)),
        )
        first = written if ins.form.copies else _first(ins)
        lacks = self.unwritten & carried[0], self.loading & carried[1], self.multiplying & carried[1]
        computed = first if self.computed & carried[0] else 0
        if (self.unwritten | self.computed) & _sources(ins, computed_sources(ins)):
            computed |= written
        self.unwritten = self.unwritten & ~(written & ~kept) | (first if lacks[0] else 0)
        self.computed = self.computed & ~(written & ~kept) | computed
        self.loading = self.loading & ~(written & ~kept) | (first if lacks[1] else 0)
        self.multiplying = self.multiplying & ~(written & ~kept) | (first if lacks[2] else 0)
        if ins.form.until is Until.TENSOR_LOAD:
            self.loading |= written
        elif ins.form.until is Until.WGMMA_GROUP:
            self.multiplying |= written


def _sources(ins: Instruction, places: tuple[int, ...]) -> int:
    found = 0
    for place in places:
        for register in registers_of(ins.sources[place]):
            found |= 1 << register.index
    return found


def _first(ins: Instruction) -> int:
    first = next(ins.written())
    return 1 << first.index if isinstance(first, Register) else 0


@dataclass(slots=True)
class Readiness:
    """`uses` by pc: the registers that may have no value when that instruction uses them. `carried` by pc and
    reason: the registers from which a move copies such a value. `computed` by pc: the registers without a
    value, by reason, from which an instruction computes. `tracked`: all registers that need a shadow."""

    uses: dict[int, list[tuple[Register, Lack]]] = field(default_factory=dict)
    carried: dict[tuple[int, Lack], int] = field(default_factory=dict)
    computed: dict[int, dict[Lack, int]] = field(default_factory=dict)
    tracked: dict[Lack, int] = field(default_factory=lambda: dict.fromkeys(Lack, 0))


def find_unready_registers(kernel: Kernel, blocks: Blocks) -> Readiness:
    """Solve the data-flow equations forward over the blocks, to a fixed point."""
    ins = kernel.instructions
    entering: list[Maybe | None] = [None] * len(blocks.blocks)
    entering[0] = Maybe(unwritten=(1 << len(kernel.registers)) - 1)
    waiting = [0]
    while waiting:
        check_time()
        index = waiting.pop()
        block, at = blocks.blocks[index], entering[index]
        assert at is not None
        here = at.copy()
        for pc in range(block.start, block.stop):
            here.pass_by(ins[pc])
        for pc in successors(kernel, ins[block.stop - 1]):
            following = blocks.at[pc]
            there = entering[following]
            if there is None:
                entering[following] = here.copy()
            elif not there.join(here):
                continue
            waiting.append(following)
    found = Readiness()
    for block, at in zip(blocks.blocks, entering, strict=True):
        check_time()
        if at is not None:
            for pc in range(block.start, block.stop):
                _look(ins[pc], at, found)
                at.pass_by(ins[pc])
    _close(kernel, found)
    return found


def _look(ins: Instruction, at: Maybe, found: Readiness) -> None:
    for lack in Lack:
        maybe = at.lacking(lack)
        if not maybe:
            continue
        names = list(used_registers(ins, lack))
        if ins.guard is not None:
            names.append(ins.guard.register)
        if ins.form.until is Until.WGMMA_GROUP and lack is not Lack.FLYING:  # D is added to
            names += [register for register in ins.written() if isinstance(register, Register)]
        for register in dict.fromkeys(names):
            if maybe >> register.index & 1:
                found.uses.setdefault(ins.pc, []).append((register, lack))
                found.tracked[lack] |= 1 << register.index
        carried = _sources(ins, moved_sources(ins, lack)) & maybe
        if carried:
            found.carried[ins.pc, lack] = carried
    used = _sources(ins, computed_sources(ins))
    computed = {lack: used & at.lacking(lack) for lack in (Lack.UNWRITTEN, Lack.COMPUTED)}
    if any(computed.values()):
        found.computed[ins.pc] = computed


def _close(kernel: Kernel, found: Readiness) -> None:
    """Follow tracked registers backward over moves, and over what they are computed from."""
    steps = [(pc, lack, lack, carried) for (pc, lack), carried in found.carried.items()]
    steps += [
        (pc, Lack.COMPUTED, lack, sources)
        for pc, computed in found.computed.items()
        for lack, sources in computed.items()
    ]
    steps.sort(key=lambda step: -step[0])
    changed = True
    while changed:
        changed = False
        for pc, result, lack, sources in steps:
            check_time()
            if sources & ~found.tracked[lack] and (
                written_set(kernel.instructions[pc]) & found.tracked[result]
            ):
                found.tracked[lack] |= sources
                changed = True
