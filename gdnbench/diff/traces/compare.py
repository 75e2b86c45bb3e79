# SPDX-License-Identifier: Apache-2.0
"""Compares two value traces: the first execution whose values differ, and how many differ after it.

Launches are paired by the record that they are of and their order, the executions of each as `alignment`
says. One CTA of both is in memory at a time. A trace that was cut is compared as far as it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gdnbench.diff.traces.alignment import Alignment, Run, align, lanes_of, same_code
from gdnbench.diff.traces.first import Difference, first_json
from gdnbench.diff.traces.judging import Addresses, Bound, Mask, Row
from gdnbench.diff.traces.statements import Pairing, Source, pair
from gdnbench.errors import BadInputError
from gdnbench.sim.value_trace import Event, TracedRegister
from gdnbench.trace.reader import Trace, TracedLaunch

Line = tuple[str | None, int | None]
"""File and line of A's Python."""
OPAQUE = "mbarrier.arrive"
"""Its result is an opaque state (PTX ISA, "mbarrier.arrive"): who arrived before is in it."""
Ranges = list[tuple[int, int]]
"""Of event numbers, [start, stop) each."""


@dataclass(slots=True)
class LaunchComparison:
    """A pair of launches. `aligned` events have a counterpart, `only` have none: of A, of B. `differing` of
    the aligned ones are other values; `lines` counts them by Python line. `first`: see `first_json`.
    `missing` says which CTAs only one of them ran."""

    a: TracedLaunch
    b: TracedLaunch
    bound: Bound
    aligned: int = 0
    only: tuple[int, int] = (0, 0)
    differing: int = 0
    lines: Counter[Line] = field(default_factory=Counter)
    first: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: Source = field(default_factory=Source)  # A's Python

    @property
    def equal(self) -> bool:
        return self.first is None and not self.missing

    def text(self, file: str | None, line: int | None) -> str:
        """A Python line as it is written."""
        return self.source.line_text(file or "", line or 0)


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """`launches` that both traces have, and what says that the traces are not of the same launches."""

    a: Trace
    b: Trace
    bound: Bound
    launches: tuple[LaunchComparison, ...]
    unpaired: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.unpaired and all(one.equal for one in self.launches)


Progress = Callable[[int, int], None]


def compare(a: Trace, b: Trace, bound: Bound, progress: Progress | None = None) -> TraceComparison:
    """BadInputError if the traces have no launch, no Python line or no event in common; StoreError for
    damage."""
    paired, unpaired = _pairs(a, b)
    if not paired:
        why = "; ".join(unpaired) or "they have none"
        raise BadInputError(f"{a.path} and {b.path} have no launch in common: {why}")
    total = sum(one.events for one, _ in paired)
    found, done = [], 0
    for one, other in paired:
        before = done

        def report_progress(events: int, before: int = before) -> None:
            if progress is not None:
                progress(before + events, total)

        found.append(_Launches(one, other, bound).compare(report_progress))
        done += one.events
    comparison = TraceComparison(a, b, bound, tuple(found), tuple(unpaired))
    if comparison.equal and not any(one.aligned for one in found):
        empty = [str(trace.path) for trace in (a, b) if not any(one.events for one in trace.launches)]
        why = f": no events in {' and '.join(empty)}, select others with --select" if empty else ""
        raise BadInputError(f"{a.path} and {b.path} have nothing in common{why}")
    return comparison


def _pairs(a: Trace, b: Trace) -> tuple[list[tuple[TracedLaunch, TracedLaunch]], list[str]]:
    sides = [dict(_labelled(trace)) for trace in (a, b)]
    paired = [(one, sides[1][key]) for key, one in sides[0].items() if key in sides[1]]
    unpaired = [
        f"only {name} has launch {one.number}, {one.entry}"
        for name, mine, there in (("A", sides[0], sides[1]), ("B", sides[1], sides[0]))
        for key, one in mine.items()
        if key not in there
    ]
    return paired, unpaired


def _labelled(trace: Trace) -> Iterator[tuple[tuple[str, int], TracedLaunch]]:
    seen: Counter[str] = Counter()
    for launch in trace.launches:
        record = str(launch.attributes.get("record", ""))
        yield (record, seen[record]), launch
        seen[record] += 1


class _Launches:
    """A pair of launches, compared CTA by CTA."""

    def __init__(self, a: TracedLaunch, b: TracedLaunch, bound: Bound) -> None:
        self.a, self.b, self.bound = a, b, bound
        self.same = same_code(a.instructions, b.instructions)
        self.sources = Source.of_texts(a.sources), Source.of_texts(b.sources)
        self.pairing: Pairing = pair(*self.sources)
        self.addresses = Addresses(a.regions, b.regions)
        # What is left out is no difference.
        self.alike = a.attributes.get("selection") == b.attributes.get("selection")
        self.counts = self.alike and a.whole and b.whole
        self.found = LaunchComparison(a, b, bound, source=self.sources[0])
        self._order = 0  # the event of A at which the first difference is

    def compare(self, report_progress: Callable[[int], None]) -> LaunchComparison:
        places = _by_cta(self.a), _by_cta(self.b)
        self._note()
        done = 0
        for cta, numbers in places[0].items():
            if cta in places[1]:
                self._compare_cta(numbers, places[1][cta])
            done += sum(stop - start for start, stop in numbers)
            report_progress(done)
        if not self.found.aligned and self.a.events and self.b.events:
            raise BadInputError(
                f"{self.a.where} and {self.b.where} have nothing in common: neither CTAs, warps and Python"
                " lines nor PTX"
            )
        for name, mine, there in (("A", *places), ("B", *places[::-1])):
            lone = sorted(mine.keys() - there.keys())
            if lone:
                more = f" and {len(lone) - 1} more" if len(lone) > 1 else ""
                said = self.found.missing if self.counts else self.found.notes
                said.append(f"only {name} has events of CTA {lone[0]}{more}")
        return self.found

    def _note(self) -> None:
        notes = self.found.notes
        for name, launch in (("A", self.a), ("B", self.b)):
            if launch.dropped:
                notes.append(f"{name} was cut at its limit, {launch.dropped:,} events were left out")
            if not launch.events:
                notes.append(f"{name} has no events")
            if launch.end != "complete":
                notes.append(f"{name} ends early: {_ended(launch.end)}")
        if not self.alike:
            notes.append("the traces are of different selections: what both have is compared")
        if not self.same:
            notes.append("the PTX differs: aligned by Python line")

    def _compare_cta(self, ours: Ranges, theirs: Ranges) -> None:
        events = list(_events(self.a, ours)), list(_events(self.b, theirs))
        if self.same and _all_equal(*events):
            self.found.aligned += len(events[0])
            return
        runs = [
            Run.of_events(launch, given, source)
            for launch, given, source in zip((self.a, self.b), events, self.sources, strict=True)
        ]
        alignment = align(runs[0], runs[1], iterations=True, pairing=self.pairing)
        firsts = [found for found in (self._values(alignment), self._counts(alignment)) if found is not None]
        self.found.only = (
            self.found.only[0] + alignment.partner.count(None),
            self.found.only[1] + alignment.back.count(None),
        )
        for place, difference in firsts:
            order = _numbered(ours, place)
            if self.found.first is None or order < self._order:
                self.found.first, self._order = first_json(difference, self.a.grid, self.apart), order

    def _values(self, alignment: Alignment) -> tuple[int, Difference] | None:
        """Counts what differs; the first that does, and the event of A that it is."""
        found = None
        for one, other in enumerate(alignment.partner):
            if other is None:
                continue
            self.found.aligned += 1
            difference = self._apart(alignment, one, other)
            if difference is not None:
                ins = alignment.good.instruction(one)
                self.found.differing += 1
                self.found.lines[ins.file, ins.file_line] += 1
                found = found or (one, difference)
        return found

    def _apart(self, alignment: Alignment, one: int, other: int) -> Difference | None:
        x, y = alignment.good.events[one], alignment.bad.events[other]
        if x.lanes != y.lanes:
            return Difference(alignment, one, other)
        name = alignment.good.instruction(one).name
        if name.startswith(OPAQUE) or (x.values == y.values).all():
            return None
        lanes = lanes_of(x)
        registers = zip(
            alignment.good.instruction(one).registers, alignment.bad.instruction(other).registers, strict=True
        )
        for row, (mine, there) in enumerate(registers):
            apart = self.apart(x.values[row], y.values[row], mine, there) & lanes
            if apart.any():
                return Difference(alignment, one, other, row, int(apart.argmax()))
        return None

    def apart(self, x: Row, y: Row, mine: TracedRegister, there: TracedRegister) -> Mask:
        """Where two registers differ; what points to one place of one tensor is the same."""
        found = self.bound.apart(x, y, mine.format, there.format)
        return found & ~self.addresses.same(x, y) if mine.bits == there.bits == 64 and found.any() else found

    def _counts(self, alignment: Alignment) -> tuple[int, Difference] | None:
        """The first execution that only one of the traces has, and the event of A at which it is missed. What
        compilers add and leave out is none, nor what a trace that was cut does not hold."""
        if not self.counts:
            return None
        if not self.same:
            ran = next(iter(alignment.unequal), None)
            if ran is None:
                return None
            mine, there = (ran.event, None) if ran.good > ran.bad else (None, ran.event)
            return max(ran.order, 0), Difference(alignment, mine, there, counts=(ran.good, ran.bad))
        lone = [
            (one, Difference(alignment, one, None))
            for one in (next((i for i, other in enumerate(alignment.partner) if other is None), None),)
            if one is not None
        ]
        lone += _missed(alignment)
        return min(lone, key=lambda found: found[0], default=None)


def _missed(alignment: Alignment) -> Iterator[tuple[int, Difference]]:
    """The first execution that only B has, with the event of A after which its warp came to it."""
    last: dict[int, int] = {}
    for number, one in enumerate(alignment.back):
        warp = alignment.bad.events[number].warp
        if one is None:
            yield last.get(warp, 0), Difference(alignment, None, number)
            return
        last[warp] = one


def _by_cta(launch: TracedLaunch) -> dict[int, Ranges]:
    """Where the events of each CTA are, in the order of their first."""
    ctas = launch.column("cta")
    order = np.argsort(ctas, kind="stable")
    found: dict[int, Ranges] = {}
    for numbers in np.split(order, np.flatnonzero(np.diff(ctas[order])) + 1) if len(ctas) else ():
        parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        found[int(ctas[numbers[0]])] = [(int(part[0]), int(part[-1]) + 1) for part in parts]
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _events(launch: TracedLaunch, ranges: Ranges) -> Iterator[Event]:
    for start, stop in ranges:
        yield from launch.read(start, stop)


def _numbered(ranges: Ranges, place: int) -> int:
    """The number, in the launch, of an event of a CTA."""
    for start, stop in ranges:
        if place < stop - start:
            return start + place
        place -= stop - start
    raise IndexError(place)


def _all_equal(a: list[Event], b: list[Event]) -> bool:
    return len(a) == len(b) and all(
        (x.warp, x.pc, x.occurrence, x.lanes) == (y.warp, y.pc, y.occurrence, y.lanes)
        and np.array_equal(x.values, y.values)
        for x, y in zip(a, b, strict=True)
    )


def _ended(end: str | None) -> str:
    return "the process that wrote it did not end it" if end is None else f"{end}"
