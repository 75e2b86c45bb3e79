# SPDX-License-Identifier: Apache-2.0
"""Runs the events of a protocol in any order, one at a time, and says which phase each act meets.

An address that is initialised anew after mbarrier.inval is another barrier: `Machine.barriers` numbers them
by address and generation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from gdnbench.sim.protocol.barriers import BarrierState, Fault, apply, wait_passes
from gdnbench.sim.protocol.events import Act, Kind, Protocol

Phases = tuple[int, ...]
"""By act, the phase that it counts for or whose end it waited for; 0 for INIT, INVAL, RELEASE and ACQUIRE."""


class State(NamedTuple):
    """`positions`: by actor, how many of its events have been; `barriers`: by barrier; `joined`: by actor and
    named barrier (`Machine.joins`), the round that the actor joined last."""

    positions: tuple[int, ...]
    barriers: tuple[BarrierState | None, ...]
    joined: tuple[int, ...]


class Machine:
    """`phases[e]` are those that event e met in the run, whose order is that of the events. Raises ValueError
    if the events are no run of the machine. `last` are the barriers at its end, or before their inval."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.barriers: dict[tuple[Hashable, int], int] = {}
        self.previous: dict[int, int] = {}  # by barrier, that of the generation before
        self.joins: dict[tuple[int, int], int] = {}
        self._generations: dict[Hashable, int] = {}
        self.acts = [
            tuple(self._numbered(event.actor, act) for act in event.acts) for event in protocol.events
        ]
        self._place = {e: at for events in protocol.actors for at, e in enumerate(events)}
        self.last = [BarrierState()] * len(self.barriers)
        self.phases = self._recorded()

    def _numbered(self, actor: int, act: Act) -> tuple[Act, int]:
        generation = self._generations.get(act.barrier, 0)
        if act.kind is Kind.INIT and (act.barrier, generation) in self.barriers:
            generation += 1
        self._generations[act.barrier] = generation
        number = self.barriers.setdefault((act.barrier, generation), len(self.barriers))
        if act.kind is Kind.INIT and generation:
            self.previous[number] = self.barriers[act.barrier, generation - 1]
        if act.kind is Kind.JOIN:
            self.joins.setdefault((actor, number), len(self.joins))
        return act, number

    def _recorded(self) -> list[Phases]:
        state, found = self.start(), list[Phases]()
        for number, event in enumerate(self.protocol.events):
            try:
                stepped = self.step(state, number)
            except Fault as fault:
                raise ValueError(f"event {number} ({event.text}) of the run {fault}") from None
            if stepped is None:
                raise ValueError(f"event {number} ({event.text}) of the run waits for an event behind it")
            state, phases = stepped
            found.append(phases)
            for _, at in self.acts[number]:
                self.last[at] = state.barriers[at] or self.last[at]
        return found

    def start(self) -> State:
        """Before all events."""
        return State((0,) * len(self.protocol.actors), (None,) * len(self.barriers), (-1,) * len(self.joins))

    def has(self, state: State, event: int) -> bool:
        """Whether `event` has been."""
        return state.positions[self.protocol.events[event].actor] > self._place[event]

    def ready(self, state: State) -> list[int]:
        """The events that can be next, but for the barriers."""
        following = (
            events[position]
            for events, position in zip(self.protocol.actors, state.positions, strict=True)
            if position < len(events)
        )
        return [e for e in following if all(self.has(state, one) for one in self.protocol.events[e].after)]

    def step(self, state: State, event: int) -> tuple[State, Phases] | None:
        """Do `event`, which is ready. None if a barrier makes its actor wait. Raises Fault."""
        actor = self.protocol.events[event].actor
        barriers, joined, phases = list(state.barriers), list(state.joined), list[int]()
        for act, at in self.acts[event]:
            barrier = barriers[at]
            if act.kind is Kind.WAIT:
                if not wait_passes(barrier, act.amount):
                    return None
                assert barrier is not None
                phases.append(barrier.phase - 1)
            elif act.kind in (Kind.RELEASE, Kind.ACQUIRE):
                barrier = barrier or BarrierState(pending=act.size)
                left = barrier.pending + (act.amount if act.kind is Kind.RELEASE else -act.amount)
                if left < 0:
                    return None
                barriers[at] = barrier._replace(pending=left)
                phases.append(0)
            elif act.kind is Kind.LEAVE:
                round_ = joined[self.joins[actor, at]]
                if barrier is None or barrier.phase <= round_:
                    return None
                phases.append(round_)
            else:
                if act.kind is Kind.INIT and at in self.previous and barriers[self.previous[at]] is not None:
                    raise Fault("initialises an mbarrier that is in use")
                phases.append(barrier.phase if act.kind.counts and barrier is not None else 0)
                if act.kind is Kind.JOIN:
                    joined[self.joins[actor, at]] = phases[-1]
                barriers[at] = apply(barrier, act)
        positions = list(state.positions)
        positions[actor] += 1
        return State(tuple(positions), tuple(barriers), tuple(joined)), tuple(phases)
