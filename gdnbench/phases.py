# SPDX-License-Identifier: Apache-2.0
"""What a long command is doing now: compile, simulate or judge, and which record.

A command that shows its progress listens; everything that takes long says what begins:

    with listening(print_state):
        begin("record 3")                   # what is worked on
        enter("simulate", "12 of 148 CTAs")     # the phase, and how far it is

A worker process sends its phases to its parent, see `gdnbench.workers.process`. Without a listener `enter`
costs one call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

SENT_EVERY = 0.2
"""Seconds between two messages that say how far the same phase is."""


@dataclass(frozen=True, slots=True)
class State:
    """`subject`: a record, a launch. `phase`: what is done with it. `detail`: how far that is."""

    subject: str = ""
    phase: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.subject, " ".join(filter(None, (self.phase, self.detail))))))


Listener = Callable[[State], None]

_listener: Listener | None = None
_state = State()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Passes each new State to `listener`, from whichever thread, in place of an earlier listener."""
    global _listener, _state
    before = _listener, _state
    _listener, _state = listener, State()
    try:
        yield
    finally:
        _listener, _state = before


def sending(send: Listener) -> Listener:
    """A listener that passes states on to another process by `send`: each phase, and how far it is every
    SENT_EVERY seconds. It is silent in a process that a kernel forked."""
    owner, last, sent = os.getpid(), State(), 0.0

    def see(state: State) -> None:
        nonlocal last, sent
        now = time.monotonic()
        same = (state.subject, state.phase) == (last.subject, last.phase)
        if os.getpid() == owner and not (same and now < sent + SENT_EVERY):
            last, sent = state, now
            send(state)

    return see


def begin(subject: str) -> None:
    """Work on `subject` begins."""
    tell(State(subject))


def enter(phase: str, detail: str = "") -> None:
    """A phase of the work on the subject begins, or has come as far as `detail`."""
    tell(replace(_state, phase=phase, detail=detail))


def tell(state: State) -> None:
    """Passes `state` to who listens."""
    global _state
    if _listener is not None:
        _state = state
        _listener(state)
