# SPDX-License-Identifier: Apache-2.0
"""Drains: the waits of a warp after which it only waits, and ends.

A producer of a pipeline ends with waits for the slots that it filled last, so that its CTA does not end while
others still arrive. Such a wait can pass early, by the parity of an earlier phase, and nothing of the kernel
differs: no event of the warp follows, and it accesses no memory. What can differ is the CTA's end. It comes
after the ends of all its warps, so that an early pass is harmless if every landing and every arrival of
another CTA at the CTA's mbarriers is, even without the wait, before the end of one of its warps.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from gdnbench.sim.protocol.events import Kind, Protocol


def drains_of(protocol: Protocol) -> frozenset[int]:
    """The drains of all warps."""
    found = set[int]()
    for actor in protocol.ranks:
        for number in reversed(protocol.actors[actor]):
            event = protocol.events[number]
            if not event.quiet or [act.kind for act in event.acts] != [Kind.WAIT]:
                break
            found.add(number)
    return frozenset(found)


def without(protocol: Protocol, waits: Set[int]) -> Protocol:
    """The protocol in which these events do nothing."""
    events = [
        replace(event, acts=()) if number in waits else event for number, event in enumerate(protocol.events)
    ]
    return replace(protocol, events=events)
