# SPDX-License-Identifier: Apache-2.0
"""The chain of one request, access by access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.table import Access, AccessTable, Chain, access_of
from gdnbench.lineage.text import request_name, short_digest
from gdnbench.store.access_log import AccessKind

HEADERS = ("call", "step", "by", "access", "position", "tokens", "accepted", "slot", "content", "verdict")
RIGHT = ("call", "step", "position", "tokens", "accepted", "slot")


@dataclass(frozen=True, slots=True)
class ExplainedChain:
    """The accesses of a request in one chain of one process, in order, each with its verdict: "right", the
    name of a break, or why nothing is known; empty for a write. Accesses of other requests that broke the
    chain are among them."""

    table: AccessTable
    layer: str
    chain: str
    accesses: list[tuple[Access, str]]

    def rows(self) -> list[tuple[str, ...]]:
        """The cells under HEADERS."""
        return [self._row(access, verdict) for access, verdict in self.accesses]

    def _row(self, access: Access, verdict: str) -> tuple[str, ...]:
        numbers = (access.position, access.tokens, access.accepted, access.slot)
        position, tokens, accepted, slot = ("" if number < 0 else str(number) for number in numbers)
        kind = "write" if access.kind == AccessKind.WRITE else "read"
        content = short_digest(access.digest) if access.digest_known else "unknown"
        who = request_name(self.table, access)
        return (
            str(access.call), str(access.step), who, kind, position, tokens, accepted, slot, content, verdict,
        )  # fmt: skip


def explain(table: AccessTable, request: str, layer: str | None = None) -> Iterator[ExplainedChain]:
    """The chains of `request` in layers that the pattern `layer` matches."""
    if request not in table.requests:
        return
    number = table.requests.index(request)
    for chain in table.by_chain():
        if layer is None or fnmatchcase(chain.layer, layer):
            found = _explained(chain, number)
            if found:
                yield ExplainedChain(table, chain.layer, chain.name, found)


def _explained(chain: Chain, request: int) -> list[tuple[Access, str]]:
    own = np.flatnonzero(chain.rows["request"] == request).tolist()
    if not own:
        return []
    result = check_chain(chain, explain=True)
    found = [(access_of(chain.rows[place]), result.verdicts.get(place, "")) for place in own]
    seen = {access for access, _ in found}
    for finding in result.findings:
        if finding.found.request == request and finding.damage not in seen:
            seen.add(finding.damage)
            found.append((finding.damage, f"did the damage: {finding.kind.value}"))
    return sorted(found, key=lambda one: (one[0].step, one[0].kind, one[0].sequence))
