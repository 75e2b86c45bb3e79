# SPDX-License-Identifier: Apache-2.0
"""Two value traces side by side: which execution of one is which of the other.

Executions of one PTX are matched by warp, instruction and occurrence. PTX lines and registers change with any
edit, so those of two are matched by warp, Python statement and opcode, and there in their order. Where a
compiler ordered independent executions differently, those with equal values are matched first; if asked, only
within one iteration of the loops around a statement, where both versions have as many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdnbench.diff.traces.rounding import is_float
from gdnbench.diff.traces.statements import DEFINITION, Pairing, Source, Statement, pair
from gdnbench.sim.ptx import BITS
from gdnbench.sim.value_trace import ARITHMETIC, MATRIX, STORE, Event, TracedInstruction
from gdnbench.trace.reader import TracedLaunch

Instructions = tuple[TracedInstruction, ...]
"""Of a kernel, by pc."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an execution: its bits in all lanes, the event that left them, None for a constant, and
    as what they are read."""

    bits: npt.NDArray[np.uint64]
    event: int | None
    format: str


@dataclass(slots=True)
class Run:
    """Events of a trace in memory. `producers[i][j]` is the event that last wrote operand j of event i in
    that warp, `bases[i][j]` the same of address j: None for a constant or where nothing was recorded.
    `formats` are of registers, by index."""

    instructions: Instructions
    events: list[Event]
    source: Source
    sites: list[Statement]
    producers: list[tuple[int | None, ...]]
    bases: list[tuple[int | None, ...]]
    formats: dict[int, str]
    whole: bool

    @classmethod
    def of_launch(cls, launch: TracedLaunch) -> Run:
        """All of a launch."""
        return cls.of_events(launch, launch.read(), Source.of_texts(launch.sources))

    @classmethod
    def of_events(cls, launch: TracedLaunch, given: Iterable[Event], source: Source) -> Run:
        """Some of its events, in their order."""
        events = list(given)
        instructions = launch.instructions
        sites = [source.statement_at(one.file or "", one.file_line or 0) for one in instructions]
        producers, bases = _producers(instructions, events)
        formats = {one.index: one.format for ins in instructions for one in ins.registers}
        return cls(instructions, events, source, sites, producers, bases, formats, launch.whole)

    def instruction(self, event: int) -> TracedInstruction:
        return self.instructions[self.events[event].pc]

    def site(self, event: int) -> Statement:
        return self.sites[self.events[event].pc]

    def rounds(self, event: int) -> list[str]:
        """The format that an event rounds to; none of a move or a load."""
        ins = self.instruction(event)
        formats = [one.format for one in ins.registers if is_float(one.format)]
        return formats[:1] if ins.kind in (ARITHMETIC, MATRIX) else []

    def operand(self, event: int, place: int) -> Operand | None:
        """None where it was not recorded."""
        ins = self.instruction(event)
        operand = ins.operands[place]
        if isinstance(operand, str):
            kind = ins.registers[0].format if ins.registers else BITS
            return Operand(np.full(32, int(operand, 16) & _MASK, np.uint64), None, kind)
        return self._left(self.producers[event][place], operand)

    def base(self, event: int, place: int) -> Operand | None:
        """The register that an address begins with; None where it was not recorded."""
        return self._left(self.bases[event][place], self.instruction(event).addresses[place])

    def _left(self, producer: int | None, register: int) -> Operand | None:
        """What an event left in a register."""
        if producer is None:
            return None
        rows = [one.index for one in self.instruction(producer).registers]
        bits = self.events[producer].values[rows.index(register)]
        return Operand(bits, producer, self.formats.get(register, BITS))


_MASK = (1 << 64) - 1

Producers = list[tuple[int | None, ...]]


def _producers(
    instructions: Sequence[TracedInstruction], events: Sequence[Event]
) -> tuple[Producers, Producers]:
    """Of operands, and of addresses."""
    writers: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    found: Producers = []
    bases: Producers = []
    for number, event in enumerate(events):
        ins = instructions[event.pc]
        last = writers[event.cta, event.warp]
        found.append(tuple(last.get(one) if isinstance(one, int) else None for one in ins.operands))
        bases.append(tuple(last.get(one) for one in ins.addresses))
        if ins.kind != STORE:
            last.update((register.index, number) for register in ins.registers)
    return found, bases


@dataclass(frozen=True, slots=True)
class Unequal:
    """A statement that a warp ran more often in one version. `event` is the first that has no counterpart:
    of the version that has more. `order`: it came at, or after, this event of the good one."""

    warp: int
    site: Statement
    good: int
    bad: int
    event: int
    order: int


@dataclass(slots=True)
class Alignment:
    """`partner` of an event of the good version, and the other way round; None where there is none."""

    good: Run
    bad: Run
    pairing: Pairing
    partner: list[int | None]
    back: list[int | None]
    unequal: list[Unequal] = field(default_factory=list)

    def edited(self, event: int) -> bool:
        """Whether the statement of an event of the bad version is not the good version's."""
        site = self.bad.site(event)
        return site in self.pairing.edited or site not in self.pairing.of

    def edited_makers(self, event: int) -> tuple[int, ...]:
        """What made a value of the bad version in such statements: `event` itself, and events without
        counterpart before it, the nearest first."""
        made = [event, *made_by(event, self.bad, self.back)]
        return tuple(one for one in dict.fromkeys(made) if self.edited(one))


MAX_CHAIN = 256
"""Operations without counterpart that are followed back from a value."""


def made_by(event: int | None, run: Run, partner: list[int | None]) -> Iterator[int]:
    """The events without counterpart that made what `event` left, the nearest first."""
    waiting, seen = [event], set[int]()
    while waiting and len(seen) < MAX_CHAIN:
        one = waiting.pop(0)
        if one is None or one in seen or partner[one] is not None:
            continue
        seen.add(one)
        yield one
        waiting += run.producers[one]


def align(good: Run, bad: Run, iterations: bool = False, pairing: Pairing | None = None) -> Alignment:
    """`iterations`: a value counts for the iteration that it was computed in; without, one that another
    iteration computed is its counterpart if it is equal. `pairing`: of their sources, if it is known."""
    pairing = pair(good.source, bad.source) if pairing is None else pairing
    found = Alignment(good, bad, pairing, [None] * len(good.events), [None] * len(bad.events))
    same = same_code(good.instructions, bad.instructions)
    pairs = _by_instruction(good, bad) if same else _by_statement(found, iterations)
    for one, other in pairs:
        found.partner[one], found.back[other] = other, one
    found.unequal = _unequal(found)
    return found


def same_code(good: Instructions, bad: Instructions) -> bool:
    """Whether these are of one PTX, wherever its Python lines are."""
    return good is bad or list(map(_code, good)) == list(map(_code, bad))


def _code(ins: TracedInstruction) -> object:
    return ins.name, ins.text, [one.index for one in ins.registers]


def _by_instruction(good: Run, bad: Run) -> Iterator[tuple[int, int]]:
    def key(event: Event) -> tuple[int, int, int, int]:
        return event.cta, event.warp, event.pc, event.occurrence

    places = {key(event): number for number, event in enumerate(bad.events)}
    for number, event in enumerate(good.events):
        other = places.get(key(event))
        if other is not None:
            yield number, other


Group = tuple[int, int, Statement]
Operations = Counter[tuple[str, int]]
"""By opcode and number of registers."""


def _by_statement(found: Alignment, iterations: bool) -> Iterator[tuple[int, int]]:
    good, bad, pairing = found.good, found.bad, found.pairing
    edited = {pairing.of[one] for one in pairing.edited}
    groups: dict[tuple[object, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    aside: dict[Group, tuple[Operations, Operations]] = defaultdict(lambda: (Counter(), Counter()))
    for side, run in enumerate((good, bad)):
        for number, event in enumerate(run.events):
            site = run.site(number)
            where = site if side == 0 else pairing.of.get(site, site)
            ins = run.instruction(number)
            groups[event.cta, event.warp, where, ins.name, len(ins.registers)][side].append(number)
            if where in edited and ins.kind != STORE:
                aside[event.cta, event.warp, where][side][ins.name, len(ins.registers)] += 1
    # What an edited statement computes on its way is its own affair; what it stores is not, nor what it does
    # by the same operations, if iterations are told apart: then a constant or an operand was edited.
    for (cta, warp, where), (mine, there) in aside.items():
        if not iterations or mine != there:
            for name, registers in (*mine, *there):
                groups.pop((cta, warp, where, name, registers), None)
    for before, after in groups.values():
        for one, other in _iterations(good, bad, before, after) if iterations else [(before, after)]:
            yield from _matched(good, bad, one, other)


def _iterations(
    good: Run, bad: Run, before: list[int], after: list[int]
) -> list[tuple[list[int], list[int]]]:
    """Parted by occurrence, where both have as many of each: the iterations of one loop, or of loops that are
    unrolled alike."""
    sides: tuple[dict[int, list[int]], dict[int, list[int]]] = (defaultdict(list), defaultdict(list))
    for side, run, numbers in ((0, good, before), (1, bad, after)):
        for number in numbers:
            sides[side][run.events[number].occurrence].append(number)
    one, other = ({key: len(numbers) for key, numbers in side.items()} for side in sides)
    if one != other:
        return [(before, after)]
    return [(sides[0][key], sides[1][key]) for key in sides[0]]


def _matched(good: Run, bad: Run, before: list[int], after: list[int]) -> list[tuple[int, int]]:
    """Pairs, equal values first, then in their order."""
    if len(before) == len(after) and all(
        _bits(good, one) == _bits(bad, other) for one, other in zip(before, after, strict=True)
    ):
        return list(zip(before, after, strict=True))
    places: dict[bytes, list[int]] = defaultdict(list)
    for other in reversed(after):
        places[_bits(bad, other)].append(other)
    pairs = []
    rest = []
    for one in before:
        there = places.get(_bits(good, one))
        if there:
            pairs.append((one, there.pop()))
        else:
            rest.append(one)
    taken = {other for _, other in pairs}
    return pairs + list(zip(rest, [other for other in after if other not in taken], strict=False))


def lanes_of(event: Event) -> npt.NDArray[np.bool_]:
    """The lanes that executed."""
    return (event.lanes >> np.arange(32) & 1).astype(np.bool_)


def _bits(run: Run, number: int) -> bytes:
    event = run.events[number]
    return event.lanes.to_bytes(4, "little") + event.values[:, lanes_of(event)].tobytes()


def _unequal(found: Alignment) -> list[Unequal]:
    """Statements that both versions have and of which every counted opcode ran more often in one of them:
    floating-point arithmetic, products, stores. All else comes and goes with the compiler."""
    counts: dict[tuple[int, int, Statement], tuple[Counter[str], Counter[str]]] = defaultdict(
        lambda: (Counter(), Counter())
    )
    moves: dict[tuple[int, int, Statement], list[int]] = defaultdict(lambda: [0, 0])
    loose: dict[tuple[int, int, Statement], list[tuple[int, int]]] = defaultdict(list)
    for side, run in enumerate((found.good, found.bad)):
        before: dict[tuple[int, int], int] = {}
        for number, event in enumerate(run.events):
            ins = run.instruction(number)
            site = run.site(number)
            key = (event.cta, event.warp, site if side == 0 else found.pairing.of.get(site, site))
            match = (found.partner if side == 0 else found.back)[number]
            if side == 0 or match is not None:
                before[event.cta, event.warp] = number if side == 0 else match or 0
            if ins.kind != STORE and not run.rounds(number):
                moves[key][side] += 1
                continue
            counts[key][side][ins.name] += 1
            if match is None:
                loose[key].append((before.get((event.cta, event.warp), -1), number))
    same = {good for bad, good in found.pairing.of.items() if bad not in found.pairing.edited}
    unequal = []
    elsewhere: dict[tuple[int, int], tuple[Counter[str], Counter[str]]] = defaultdict(
        lambda: (Counter(), Counter())
    )
    for (cta, warp, site), sides in counts.items():
        if site not in same:
            for side in (0, 1):
                elsewhere[cta, warp][side].update(sides[side])
    for key, (good, bad) in counts.items():
        more = {_sign(good[name] - bad[name]) for name in (*good, *bad)}
        if len(more) != 1 or more == {0} or key[2] not in same or key[2].text.startswith(DEFINITION):
            continue
        if _sign(moves[key][0] - moves[key][1]) == -more.pop():
            continue  # a move took the place of what the compiler does elsewhere now
        other = elsewhere[key[:2]]
        # What a compiler shares with an edited statement, it says to stand there.
        if all(
            (good[name] - bad[name]) * (good[name] + other[0][name] - bad[name] - other[1][name]) <= 0
            for name in (*good, *bad)
        ):
            continue
        name = max((*good, *bad), key=lambda one: good[one] + bad[one])
        place, first = min(loose[key])
        unequal.append(Unequal(key[1], key[2], good[name], bad[name], first, place))
    return sorted(unequal, key=lambda one: (one.order, one.event))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
