# SPDX-License-Identifier: Apache-2.0
"""The outcome of a replayed record, and the exit code of a command over many records."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from gdnbench.errors import Exit


class Outcome(StrEnum):
    PASS = "pass"
    MISMATCH = "numeric mismatch"  # also: an input was written, or a slot that the call must not touch
    CHECK = "check error"  # the simulator's checker reported an error, whatever the numbers
    CRASH = "crash"  # an exception, a signal, a device error
    HANG = "hang"  # killed after the timeout
    COMPILE_FAILURE = "compile failure"  # a compiler refused the kernel; one that is not there is MISSING
    UNSUPPORTED = "unsupported"  # the kernel does not support this call
    MISSING = "missing device or package"
    NOT_COMPARABLE = "cannot compare"  # the other side has no output, e.g. the recorded call never finished
    REFUSED = "refused"  # the record breaks its operation's contract, or cannot be read

    @property
    def exit_code(self) -> Exit:
        return _EXITS[self]


_EXITS = {
    Outcome.PASS: Exit.PASS,
    Outcome.MISMATCH: Exit.MISMATCH,
    Outcome.CHECK: Exit.MISMATCH,
    Outcome.CRASH: Exit.MISMATCH,
    Outcome.HANG: Exit.MISMATCH,
    Outcome.COMPILE_FAILURE: Exit.MISMATCH,
    Outcome.UNSUPPORTED: Exit.CANNOT_RUN,
    Outcome.MISSING: Exit.CANNOT_RUN,
    Outcome.NOT_COMPARABLE: Exit.CANNOT_RUN,
    Outcome.REFUSED: Exit.BAD_INPUT,
}

# Worst first: a kernel that is wrong, then one that did not run, then a record that was not judged.
_WORST_FIRST = (Exit.MISMATCH, Exit.CANNOT_RUN, Exit.BAD_INPUT, Exit.PASS)


def exit_code(outcomes: Iterable[Outcome]) -> Exit:
    """The exit code of a command over many records: 1 beats 3 beats 2 beats 0."""
    return worst_exit_code(outcome.exit_code for outcome in outcomes)


def worst_exit_code(codes: Iterable[Exit]) -> Exit:
    """The exit code of a command with several exit codes: 1 beats 3 beats 2 beats 0."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), Exit.PASS)
