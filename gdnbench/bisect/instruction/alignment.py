"""Two value traces side by side: which execution of one is which of the other.

PTX lines and registers change with any edit, so executions are matched by warp, Python statement and opcode,
and there in their order. Where a compiler ordered independent executions differently, those with equal values
are matched first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdnbench.bisect.instruction.rounding import is_float
from gdnbench.bisect.instruction.statements import DEFINITION, Pairing, Source, Statement, pair
from gdnbench.sim.value_trace import ARITHMETIC, MATRIX, STORE, Event, Trace, TracedInstruction


@dataclass(slots=True)
class Run:
    """A trace in memory. `producers[i][j]` is the event that last wrote operand j of event i in that warp,
    None for a constant or where nothing was recorded."""

    instructions: tuple[TracedInstruction, ...]
    events: list[Event]
    source: Source
    sites: list[Statement]
    producers: list[tuple[int | None, ...]]
    dropped: int

    @classmethod
    def of(cls, trace: Trace) -> Run:
        events = list(trace.events())
        instructions = trace.instructions
        source = Source.of(one.file for one in instructions if one.file is not None)
        sites = [source.at(one.file or "", one.file_line or 0) for one in instructions]
        return cls(instructions, events, source, sites, _producers(instructions, events), trace.dropped)

    def instruction(self, event: int) -> TracedInstruction:
        return self.instructions[self.events[event].pc]

    def site(self, event: int) -> Statement:
        return self.sites[self.events[event].pc]

    def rounds(self, event: int) -> list[str]:
        """The format that an event rounds to; none of a move or a load."""
        ins = self.instruction(event)
        formats = [one.format for one in ins.registers if is_float(one.format)]
        return formats[:1] if ins.kind in (ARITHMETIC, MATRIX) else []


def _producers(
    instructions: Sequence[TracedInstruction], events: Sequence[Event]
) -> list[tuple[int | None, ...]]:
    writers: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    found = []
    for number, event in enumerate(events):
        ins = instructions[event.pc]
        last = writers[event.cta, event.warp]
        found.append(tuple(last.get(one) if isinstance(one, int) else None for one in ins.operands))
        if ins.kind != STORE:
            last.update((register.index, number) for register in ins.registers)
    return found


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


def align(good: Run, bad: Run) -> Alignment:
    pairing = pair(good.source, bad.source)
    edited = {pairing.of[one] for one in pairing.edited}
    groups: dict[tuple[object, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, run in enumerate((good, bad)):
        for number, event in enumerate(run.events):
            site = run.site(number)
            where = site if side == 0 else pairing.of.get(site, site)
            ins = run.instruction(number)
            # What an edited statement computes on its way is its own affair; what it stores is not.
            if where not in edited or ins.kind == STORE:
                groups[event.cta, event.warp, where, ins.name, len(ins.registers)][side].append(number)
    found = Alignment(good, bad, pairing, [None] * len(good.events), [None] * len(bad.events))
    for before, after in groups.values():
        for one, other in _matched(good, bad, before, after):
            found.partner[one], found.back[other] = other, one
    found.unequal = _unequal(found)
    return found


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
