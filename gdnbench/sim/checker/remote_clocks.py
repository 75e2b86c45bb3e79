# SPDX-License-Identifier: Apache-2.0
"""Vector clocks of other CTAs, for global memory and for earlier launches.

Each CTA has clocks of its own, so a warp keeps one `RemoteClock` for each CTA that it has synchronised with.
The CTAs of a cluster share their clocks (`vector_clocks`) and need none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gdnbench.sim.checker.events import Event, Proxy


class RemoteClock(NamedTuple):
    """A vector clock of another CTA, for global memory: components of its warps, and its completed tokens.
    `async_proxy` are the components up to which a fence.proxy.async has handed its generic writes to the
    async proxy."""

    by_warp: tuple[int, ...]
    tokens: int
    async_proxy: tuple[int, ...]

    def join(self, other: RemoteClock) -> RemoteClock:
        """The componentwise maximum. Returns one of the two itself where that one is the maximum, which is
        the common case."""
        found = RemoteClock(
            tuple(map(max, self.by_warp, other.by_warp)),
            self.tokens | other.tokens,
            tuple(map(max, self.async_proxy, other.async_proxy)),
        )
        return self if found == self else other if found == other else found

    def contains_issue(self, event: Event) -> bool:
        """Whether it is ordered after the instruction of `event`. An asynchronous operation that the
        instruction issued may still be in flight."""
        return self.by_warp[event.warp] >= event.clock

    def contains(self, event: Event) -> bool:
        """Whether it is ordered after the access, for an access through the generic proxy."""
        return self.contains_issue(event) if event.token is None else bool(self.tokens >> event.token & 1)

    def visible_through(self, event: Event, proxy: Proxy) -> bool:
        """Whether an access through `proxy` sees what `event` wrote, given `contains(event)`. Completion of
        an asynchronous operation includes a proxy fence (PTX ISA, "Async Proxy")."""
        if proxy is Proxy.GENERIC or event.proxy is not Proxy.GENERIC or not event.access.writes:
            return True
        return self.async_proxy[event.warp] >= event.clock


@dataclass(slots=True)
class RemoteClocks:
    """What a warp, or a synchronisation variable, knows of other CTAs: a `RemoteClock` for each CTA that has
    been synchronised with. Empty in a launch whose CTAs never synchronise."""

    by_cta: dict[int, RemoteClock] = field(default_factory=dict)

    def join(self, other: RemoteClocks) -> None:
        """The componentwise maximum, in place."""
        for cta, clock in other.by_cta.items():
            self.join_cta(cta, clock)

    def joined(self, other: RemoteClocks) -> RemoteClocks:
        """The componentwise maximum; changes neither."""
        if not other.by_cta:
            return self
        found = RemoteClocks(self.by_cta.copy())
        found.join(other)
        return found

    def join_cta(self, cta: int, clock: RemoteClock) -> None:
        """Join the clock of one CTA."""
        mine = self.by_cta.get(cta)
        if mine is not clock:
            self.by_cta[cta] = clock if mine is None else mine.join(clock)

    def fence_proxy(self) -> None:
        """fence.proxy.async: hand all writes that these clocks are ordered after to the async proxy."""
        for cta, clock in self.by_cta.items():
            self.by_cta[cta] = clock._replace(async_proxy=clock.by_warp)
