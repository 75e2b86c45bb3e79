"""What a warp knows of other CTAs: up to where their accesses to global memory are ordered before its own.

Clocks and tokens are each CTA's own, so that this is one `Known` for each CTA of which anything is known. In
a launch whose CTAs do not talk there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gdnbench.sim.checker.events import Event, Proxy

Clocks = tuple[int, ...]


class Known(NamedTuple):
    """Of one CTA, as in `views.View`: its warps' clocks and its tokens. `proxied` are the clocks up to which
    a fence.proxy.async has handed its generic writes to the async proxy."""

    clocks: Clocks
    tokens: int
    proxied: Clocks

    def join(self, other: Known) -> Known:
        """Either of the two itself if it knows all of the other: most often that is so."""
        found = Known(
            tuple(map(max, self.clocks, other.clocks)),
            self.tokens | other.tokens,
            tuple(map(max, self.proxied, other.proxied)),
        )
        return self if found == self else other if found == other else found

    def ran(self, event: Event) -> bool:
        """Whether what `event`'s warp did until then is ordered before; not what it has set going."""
        return self.clocks[event.warp] >= event.clock

    def has(self, event: Event) -> bool:
        """Whether the event is ordered before, through the generic proxy."""
        return self.ran(event) if event.token is None else bool(self.tokens >> event.token & 1)

    def reaches(self, event: Event, proxy: Proxy) -> bool:
        """Whether an access through `proxy` then sees what `event`, which is known, wrote. The end of an
        asynchronous operation has a proxy fence of its own (PTX ISA, "Async Proxy")."""
        if proxy is Proxy.GENERIC or event.proxy is not Proxy.GENERIC or not event.access.writes:
            return True
        return self.proxied[event.warp] >= event.clock


@dataclass(slots=True)
class Abroad:
    """By CTA."""

    ctas: dict[int, Known] = field(default_factory=dict)

    def join(self, other: Abroad) -> None:
        """All that the other has."""
        for cta, known in other.ctas.items():
            self.learn(cta, known)

    def joined(self, other: Abroad) -> Abroad:
        """Both; neither changes."""
        if not other.ctas:
            return self
        found = Abroad(self.ctas.copy())
        found.join(other)
        return found

    def learn(self, cta: int, known: Known) -> None:
        """More of one CTA."""
        mine = self.ctas.get(cta)
        if mine is not known:
            self.ctas[cta] = known if mine is None else mine.join(known)

    def fence_proxy(self) -> None:
        """fence.proxy.async: the async proxy sees what is known."""
        for cta, known in self.ctas.items():
            self.ctas[cta] = known._replace(proxied=known.clocks)
