# SPDX-License-Identifier: Apache-2.0
"""Writes the accesses of the serving loop as `gdnbench lineage` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind
from tests.lineage.serving.states import Touch, prefix_hash

CHAIN = 0


@dataclass
class TableWriter:
    """A watcher of `States`. Digests are computed here from the definition in docs/lineage.md."""

    claim_prefixes: bool
    rows: list[tuple[object, ...]] = field(default_factory=list)
    bits: list[bytes] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)

    def reads(self, touch: Touch) -> None:
        prefix = 0
        if self.claim_prefixes and touch.request is not None:
            prefix = int(prefix_hash(touch.request.known[: touch.position]), 16)
        self._add(AccessKind.READ, touch, prefix, 0)

    def writes(self, touch: Touch) -> None:
        if touch.slot >= 0 and touch.bits is not None:
            draft = AccessFlag.DRAFT if touch.decode and touch.token > 1 else 0
            self._add(AccessKind.WRITE, touch, 0, draft)

    def table(self, layers: int) -> AccessTable:
        rows = np.array(self.rows, dtype=ROW)
        if len(rows):
            rows["digest"] = digests(np.frombuffer(b"".join(self.bits), np.uint8).reshape(len(rows), -1))
        names = tuple(f"layer{number}" for number in range(layers))
        return AccessTable("loop", rows, names, ("state",), tuple(self.requests), whole=True)

    def _add(self, kind: AccessKind, touch: Touch, prefix: int, flags: int) -> None:
        request = UNKNOWN
        if touch.request is None:
            flags |= AccessFlag.PADDING
        else:
            request = self.requests.setdefault(touch.request.id, len(self.requests))
        assert touch.bits is not None
        self.bits.append(touch.bits)
        self.rows.append(
            (
                touch.call, touch.step, touch.layer, CHAIN, kind, flags, touch.sequence, request,
                touch.position, touch.slot, touch.accepted, touch.tokens, prefix, (0, 0),
            )
        )  # fmt: skip


def digests(rows: np.ndarray) -> np.ndarray:
    """uint64 [n, 2] of rows of bytes: h_a = sum_j w_j K(2 j + a) mod 2^64 over the row's little-endian 32-bit
    words, K(n) = splitmix64's finaliser of (n + 1) times the golden ratio."""
    words = rows.view("<u4").astype(np.uint64)
    n = np.arange(2 * words.shape[1], dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        factors = z.reshape(-1, 2)
        return (words[:, :, None] * factors).sum(1, dtype=np.uint64)
