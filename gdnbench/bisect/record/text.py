# SPDX-License-Identifier: Apache-2.0
"""Prints the answer of the record axis."""

from __future__ import annotations

from collections.abc import Sequence

from gdnbench.bisect.record.find import Carry, Found, One


def notes(found: Found) -> list[str]:
    out = [f"skipped {text}" for text in found.skipped]
    if found.by_schedule:
        out.append(f"depends on the schedule: {found.by_schedule}")
    if found.first is not None and not found.in_order:
        out.append("the cheapest calls were looked at first: an earlier one may be bad, too")
    if not found.bad and found.carry is None and found.linked:
        out.append(
            f"{found.linked} calls get a state that an earlier one left: --carry looks at what they add up to"
        )
    if found.before and found.unchosen:
        out.append(f"states of {_records(found.unchosen)}, not chosen, are taken as recorded")
    if found.stateless and found.carry is not None:
        out.append(
            f"calls of {', '.join(found.stateless)} leave no state: each was looked at by itself alone"
        )
    return out


def answer(found: Found) -> str:
    """One line."""
    first = found.first
    if first is None:
        return _together(found)
    if found.flaky:
        return f"{found.kernel}, {first} is flaky and was not looked into: {found.flaky}"
    what = "the first bad call" if found.in_order else "a bad call"
    return f"{what} of {found.kernel} is {first}: {found.reason}; {_origin(found, first)}"


def _origin(found: Found, first: One) -> str:
    carry = found.carry
    if first.op in found.stateless:
        return f"{first.op} leaves no state, and reads a cache as recorded: it starts there"
    if not found.before and found.unchosen:
        left = _records(found.unchosen)
        return f"its state is that of {left}, not chosen: choose those, too, to see where it starts"
    if not found.before:
        return "no earlier call left the state it gets: it starts there"
    if carry is None:
        return "it starts there, from the state that was recorded"
    if carry.failed:
        return f"following its states failed ({carry.failed})"
    count = f"{len(found.before)} earlier call{'s' if len(found.before) != 1 else ''}"
    if carry.starts is not None:
        text = f"from the exact state, carried over {count}, it is bad too: it starts there"
        if carry.over is None:
            return text
        return f"{text}, though its state had been over its bound since {_named(found, carry.over.number)}"
    if carry.over is not None:
        where = _named(found, carry.over.number)
        return f"from the exact state it passes: it arrives from {where} ({carry.over})"
    return f"from the exact state, carried over {count}, it passes: only the recorded state makes it bad"


def _together(found: Found) -> str:
    passed = found.looked - len(found.skipped)
    alone = f"{found.kernel} passes each of {passed} call{'s' if passed != 1 else ''} by itself"
    if found.skipped:
        alone += f" and {len(found.skipped)} could not be replayed"
    carry = found.carry
    if carry is None:
        return alone
    if carry.failed:
        return f"{alone}; on its own states it fails: {carry.failed}"
    if carry.over is not None:
        return f"{alone}; on its own states it is over its bound first at {_over(found, carry)}"
    if carry.grows is not None:
        return f"{alone}; on its own states it keeps its bound, but {carry.grows}: many calls add it up"
    lanes = f"{carry.lanes} lane{'s' if carry.lanes != 1 else ''}"
    return f"{alone}, and {carry.calls} calls on its own states, in {lanes}"


def _over(found: Found, carry: Carry) -> str:
    over = carry.over
    assert over is not None
    where = f"{_named(found, over.number)}: {over}"
    if carry.starts is None:
        return f"{where}; from the exact state each call up to it passes: {over.step + 1} calls add it up"
    return (
        f"{where}; from the exact state {_named(found, carry.starts)} is bad: it starts there ({carry.alone})"
    )


def _records(numbers: Sequence[int]) -> str:
    return f"record{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"


def _named(found: Found, number: int) -> str:
    return str((found.ones or {}).get(number, f"record {number}"))
