# SPDX-License-Identifier: Apache-2.0
"""The plain search: every order of a small protocol, state by state, shortest orders first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from gdnbench.sim.protocol.barriers import Fault
from gdnbench.sim.protocol.events import Kind
from gdnbench.sim.protocol.machine import Machine, State


class Wrong(Enum):
    """What an order does that the run did not."""

    OTHER_PHASE = "counts for another phase than in the run"
    PREMATURE = "passes before the phase that it waits for is over"
    MISSED = "a phase that is still waited for is two phases behind"
    FAULT = "is undefined"
    STUCK = "nothing can continue"


@dataclass(frozen=True, slots=True)
class Broken:
    """The last event of `order` is the first that differs from the run. `waiter` is the wait that is missed;
    `text` says what is undefined."""

    wrong: Wrong
    order: tuple[int, ...]
    waiter: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Searched:
    """`broken` is a shortest order that is wrong. `complete`: there were no more states than the bound."""

    states: int
    broken: Broken | None
    complete: bool


def search(
    machine: Machine, bound: int, *, deviations: bool = True, prefix: tuple[int, ...] = ()
) -> Searched:
    """Search all orders that begin with `prefix`, in at most `bound` states. Without `deviations` only a
    state in which nothing can continue and an undefined act are wrong."""
    begin = machine.start()
    for event in prefix:
        stepped = machine.step(begin, event)
        assert stepped is not None
        begin = stepped[0]
    came: dict[State, tuple[State, int] | None] = {begin: None}
    waiting = deque([begin])
    while waiting:
        state = waiting.popleft()
        ready, moved = machine.ready(state), False
        for event in ready:
            try:
                stepped = machine.step(state, event)
            except Fault as fault:
                order = (*prefix, *_order(came, state), event)
                return Searched(len(came), Broken(Wrong.FAULT, order, text=str(fault)), True)
            if stepped is None:
                continue
            moved = True
            after, phases = stepped
            if deviations and (wrong := deviation(machine, state, event, after, phases)) is not None:
                order = (*prefix, *_order(came, state), event)
                return Searched(len(came), Broken(wrong[0], order, wrong[1]), True)
            if after not in came:
                if len(came) >= bound:
                    return Searched(len(came), None, False)
                came[after] = state, event
                waiting.append(after)
        if ready and not moved:
            return Searched(len(came), Broken(Wrong.STUCK, (*prefix, *_order(came, state))), True)
    return Searched(len(came), None, True)


def deviation(
    machine: Machine, state: State, event: int, after: State, phases: tuple[int, ...]
) -> tuple[Wrong, int | None] | None:
    """How the step differs from the run."""
    for (act, _), now, then in zip(machine.acts[event], phases, machine.phases[event], strict=True):
        if now != then:
            return (Wrong.PREMATURE if act.kind.waits else Wrong.OTHER_PHASE), None
    grown = {
        at: barrier.phase
        for at, (barrier, old) in enumerate(zip(after.barriers, state.barriers, strict=True))
        if barrier is not None and old is not None and barrier.phase > old.phase
    }
    for number, acts in enumerate(machine.acts if grown else ()):
        for (act, at), phase in zip(acts, machine.phases[number], strict=True):
            late = act.kind is Kind.WAIT and at in grown and grown[at] >= phase + 2
            if late and not machine.has(after, number):
                return Wrong.MISSED, number
    return None


def continued(machine: Machine, broken: Broken) -> Broken | None:
    """How one continuation of a wrong order ends: each step is the first event of the run that can be, those
    of the wait that is missed as late as possible. None if all events come to be."""
    if broken.wrong in (Wrong.FAULT, Wrong.STUCK):
        return None
    state, order = machine.start(), list(broken.order)
    for event in broken.order:
        stepped = machine.step(state, event)
        assert stepped is not None
        state = stepped[0]
    last = None if broken.waiter is None else machine.protocol.events[broken.waiter].actor
    while ready := machine.ready(state):
        for event in sorted(ready, key=lambda e: (machine.protocol.events[e].actor == last, e)):
            try:
                stepped = machine.step(state, event)
            except Fault as fault:
                return Broken(Wrong.FAULT, (*order, event), text=str(fault))
            if stepped is not None:
                state = stepped[0]
                order.append(event)
                break
        else:
            return Broken(Wrong.STUCK, tuple(order))
    return None


def _order(came: dict[State, tuple[State, int] | None], state: State) -> list[int]:
    found: list[int] = []
    while (step := came[state]) is not None:
        state, event = step
        found.append(event)
    return found[::-1]
