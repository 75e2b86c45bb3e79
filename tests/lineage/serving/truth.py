# SPDX-License-Identifier: Apache-2.0
"""Which reads of a run of the loop are wrong, from what `States` knows of every slot, without digests."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdnbench.lineage.rules import MOST_SOURCES
from tests.lineage.serving.states import Content, Request, Touch


@dataclass(frozen=True, slots=True)
class WrongRead:
    """A read of a state that is not the request's.

    `own`: the request's last write at the position, None if it wrote none. `overwrote`: the first call in
    which another sequence wrote the slot since the request had its state there. `running`: the request had
    an access in that call or in the layer's call before; without such a call, in one of the two calls
    before the read. `passed`: the request wrote a state after the call that wrote what the slot holds.
    `drafted`: that call had drafts. `blank`: no call has written the slot. `goes_on`: the read is where the
    request's call before may have ended, or began; else the request starts anew. `certain`: the content
    tells the class. It does not if a state of this content was also written at the read's position and for
    another one, or for a prefix that no record has, so that it may be a hit in the prefix cache, if the
    request itself once had the content that another's write left, if more writes left it than the checker
    looks at, if the request's call before began with the same wrong state, or if a request that starts from a
    cached state finds a slot that nobody wrote.
    """

    touch: Touch
    own: Touch | None
    overwrote: int | None
    running: bool
    passed: bool
    drafted: bool
    blank: bool
    goes_on: bool
    certain: bool

    @property
    def content(self) -> Content | None:
        return self.touch.content

    @property
    def by_content(self) -> tuple[str, int]:
        """Class of the break and the first wrong call, if all that is known is whose state the slot holds."""
        if self.content is None:
            return "never-written" if self.blank else "unexplained", self.touch.call
        if self.content.request is not self.touch.request:
            damage = self.touch.call if self.overwrote is None else self.overwrote
            return "shared-slot" if self.running else "overwritten", damage
        if self.passed:
            return "older-version" if self.goes_on else "wrong-prefix", self.touch.call
        if self.content.position < self.touch.position:
            return "position-gap", self.touch.call
        return (
            ("rejected-draft", self.content.call) if self.drafted else ("position-overlap", self.touch.call)
        )


@dataclass
class Truth:
    """A watcher of `States`."""

    wrong: list[WrongRead] = field(default_factory=list)
    twice: list[tuple[Touch, Touch]] = field(default_factory=list)  # two sequences of a call write one slot
    slots: dict[tuple[int, int], list[Touch]] = field(default_factory=dict)  # writes by layer and slot
    own: dict[tuple[int, Request, int], Touch] = field(default_factory=dict)  # by layer, request and position
    last: dict[tuple[int, Request], int] = field(default_factory=dict)  # call of the last write, by layer
    steps: dict[tuple[int, Request], set[int]] = field(default_factory=dict)  # with accesses, by layer
    positions: dict[tuple[int, bytes | None], set[int]] = field(default_factory=dict)  # of writes, by content
    copies: dict[tuple[int, bytes], int] = field(default_factory=dict)  # number of writes, by content
    unread: dict[tuple[int, bytes | None, int], set[Request]] = field(default_factory=dict)
    """Who wrote a content at a position, in a layer, and has not read it: nobody knows its prefix."""
    own_bits: set[tuple[int, Request, bytes]] = field(default_factory=set)
    used: dict[tuple[int, Request], tuple[int, set[int]]] = field(default_factory=dict)
    """The call of a request's latest read, and the slots that it read and wrote since."""
    began: dict[tuple[int, Request], tuple[int, bytes | None]] = field(default_factory=dict)
    """Position and content of a request's latest read."""
    reach: dict[tuple[int, Request], set[int]] = field(default_factory=dict)
    """Positions at which the request's next call goes on or computes its tokens again."""
    drafts: set[int] = field(default_factory=set)  # calls with drafts
    step_of: dict[int, int] = field(default_factory=dict)  # step by call

    def reads(self, touch: Touch) -> None:
        request, content = touch.request, touch.content
        self.step_of[touch.call] = touch.step
        if request is None:
            return
        own = self.own.get((touch.layer, request, touch.position))
        if content is None:
            right = touch.position == 0
        else:
            consumed = tuple(request.known[: touch.position])
            right = content.position == touch.position and content.consumed == consumed
        # Another state of equal bits does no harm, and nobody can tell it from the right one.
        if not right and (own is None or own.bits != touch.bits):
            key = (touch.layer, request)
            goes_on = touch.position in self.reach.get(key, ())
            # A request that starts anew got its state in the slot at a moment that no call shows.
            first = self._overwrote(touch, own) if goes_on else None
            drafted = content is not None and content.call in self.drafts
            positions = self.positions.get((touch.layer, touch.bits), set())
            certain = not self.unread.get((touch.layer, touch.bits, touch.position))
            certain &= touch.position not in positions or len(positions) == 1
            certain &= self.copies.get((touch.layer, touch.bits), 0) <= MOST_SOURCES
            if content is not None and content.request is not request:
                certain &= (touch.layer, request, touch.bits) not in self.own_bits
            running, passed = self._running(touch, first), self._passed(touch)
            blank = (touch.layer, touch.slot) not in self.slots
            certain &= own is not None or content is not None or touch.position == 0
            certain &= self.began.get(key) != (touch.position, touch.bits)
            self.wrong.append(WrongRead(touch, own, first, running, passed, drafted, blank, goes_on, certain))
        self.steps.setdefault((touch.layer, request), set()).add(touch.step)
        self.unread.get((touch.layer, touch.bits, touch.position), set()).discard(request)
        self.used[touch.layer, request] = (touch.call, {touch.slot})
        self.began[touch.layer, request] = (touch.position, touch.bits)
        drafts = range(1, touch.tokens) if touch.decode else ()
        self.reach[touch.layer, request] = {touch.position + n for n in (0, touch.tokens, *drafts)}

    def writes(self, touch: Touch) -> None:
        if touch.slot < 0 or touch.bits is None:
            return
        history = self.slots.setdefault((touch.layer, touch.slot), [])
        of_call = [one for one in history if one.call == touch.call and one.sequence != touch.sequence]
        if of_call:
            self.twice.append((of_call[0], touch))
        history.append(touch)
        if touch.decode and touch.token > 1:
            self.drafts.add(touch.call)
        if touch.request is not None:
            self.own[touch.layer, touch.request, touch.position] = touch
            self.own_bits.add((touch.layer, touch.request, touch.bits))
            self.positions.setdefault((touch.layer, touch.bits), set()).add(touch.position)
            self.copies[touch.layer, touch.bits] = self.copies.get((touch.layer, touch.bits), 0) + 1
            self.unread.setdefault((touch.layer, touch.bits, touch.position), set()).add(touch.request)
            self.last[touch.layer, touch.request] = touch.call
            self.used.setdefault((touch.layer, touch.request), (touch.call, set()))[1].add(touch.slot)
            self.reach.setdefault((touch.layer, touch.request), set()).add(touch.position)

    def _overwrote(self, touch: Touch, own: Touch | None) -> int | None:
        assert touch.request is not None
        if touch.position == 0:
            return None  # the request starts anew, in a slot that is its own by chance
        call, slots = self.used.get((touch.layer, touch.request), (-1, set()))
        if own is not None and own.slot == touch.slot:
            first = own.call
        elif touch.slot in slots:
            first = call + 1  # the state was copied to the slot after that call
        else:
            return None
        later = self.slots.get((touch.layer, touch.slot), [])
        return next(
            (one.call for one in later if one.call >= first and one.request is not touch.request), None
        )

    def _passed(self, touch: Touch) -> bool:
        assert touch.request is not None
        last = self.last.get((touch.layer, touch.request), -1)
        return touch.content is not None and last > touch.content.call

    def _running(self, touch: Touch, overwrote: int | None) -> bool:
        assert touch.request is not None
        steps = self.steps.get((touch.layer, touch.request), set())
        if overwrote is None:
            return not steps.isdisjoint((touch.step - 1, touch.step - 2))
        left = self.step_of[overwrote]
        return not steps.isdisjoint((left, left - 1))
