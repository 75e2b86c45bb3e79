# SPDX-License-Identifier: Apache-2.0
"""What a program asked for and was refused: kept beside the exception, which the program may catch."""

from __future__ import annotations

from collections.abc import Callable

from gdnbench.sim.errors import SimError, UnsupportedError

_listeners: list[Callable[[SimError], None]] = []


def refusal(what: str) -> UnsupportedError:
    """The error to raise for `what`, a noun that names it. The active GPU notes it."""
    error = UnsupportedError(what)
    note_refusal(error)
    return error


def note_refusal(error: SimError) -> None:
    """Tell the active GPU of a refusal."""
    for listener in _listeners:
        listener(error)


def add_listener(listener: Callable[[SimError], None]) -> None:
    """Call `listener` with every refusal from now on."""
    _listeners.append(listener)


def remove_listener(listener: Callable[[SimError], None]) -> None:
    """Undo `add_listener`."""
    _listeners.remove(listener)
