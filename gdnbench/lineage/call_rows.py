# SPDX-License-Identifier: Apache-2.0
"""Makes the rows of one call from what the call accesses and what the engine claims about its sequences.

`from_records` makes rows of stored calls this way, and capture makes those of an access log. For example, a
decode call whose sequence 0 is claimed as request "r6" at position 24 and uses slot 6 has two rows: r6 reads
slot 6 at 24, and r6 writes slot 6 at 25. Layer, chain and digests are filled in by the caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gdnbench.lineage.claims import StoredClaims
from gdnbench.lineage.table import Numbers, Rows
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind
from gdnbench_kernels.contract import Accesses, Operation

T = TypeVar("T", bound=Hashable)


class RowForm(NamedTuple):
    """What a digest depends on besides the values: rows of equal values and forms have equal digests."""

    dtype: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]


class Names(Generic[T]):
    """Numbers things from 0 in the order of their first use; iterating gives them in that order."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def number(self, thing: T) -> int:
        """The number of the thing, a new one if it has none yet."""
        return self._numbers.setdefault(thing, len(self._numbers))

    def __iter__(self) -> Iterator[T]:
        return iter(self._numbers)


def call_rows(
    accesses: Accesses,
    kind: AccessKind,
    claims: StoredClaims,
    accepted: Sequence[int] | Numbers,
    operation: Operation,
    requests: Names[str],
) -> Rows:
    """The rows of a call's reads or writes of one pool: dtype ROW [n], without call, step, layer, chain and
    digest.

    `accepted`: num_accepted by sequence, int64 [sequences]; empty if the call has none. `operation`: of the
    call; if it decodes, tokens after the first may be drafts. `requests` numbers the claimed names.
    """
    is_read = kind is AccessKind.READ
    found = (accesses.reads if is_read else accesses.writes).numpy()
    rows = np.zeros(len(found), dtype=ROW)
    if not len(found):
        return rows
    sequence, row, offset = found.T
    rows["kind"], rows["sequence"] = kind, sequence
    names = [UNKNOWN if name is None else requests.number(name) for name in claims.requests]
    rows["request"] = by_sequence(names, sequence, UNKNOWN)
    rows["position"] = positions_at(claims.positions, sequence, offset)
    # The rows of a pool are its slots, unless the engine names the slots of states that it gathered.
    is_slot = accesses.pooled and not claims.slots
    rows["slot"] = row if is_slot else by_sequence(claims.slots, sequence, UNKNOWN)
    rows["accepted"] = by_sequence(accepted, sequence, UNKNOWN)
    rows["tokens"] = by_sequence(accesses.tokens.numpy(), sequence, 0)
    if is_read and not accesses.window:
        rows["prefix"] = prefixes_at(claims.prefixes, sequence)
    flags = np.full(len(found), _flags_of_call(operation), dtype=np.uint8)
    flags[np.isin(sequence, list(claims.padding))] |= np.uint8(AccessFlag.PADDING)
    if accesses.window:
        flags |= np.uint8(AccessFlag.WINDOW)
    if accesses.compressed:
        flags |= np.uint8(AccessFlag.COMPRESSED)
        flags[_entries_of_query(sequence, offset) < accesses.compressed] |= np.uint8(AccessFlag.ALL)
    if accesses.recent:
        flags |= np.uint8(AccessFlag.RECENT)
    if not is_read and operation.decodes:
        flags[offset > 1] |= np.uint8(AccessFlag.DRAFT)
    rows["flags"] = flags
    return rows


def _entries_of_query(sequence: Numbers, query: Numbers) -> Numbers:
    """Of each read, how many reads its query has: int64 [n]."""
    _, number, count = np.unique(
        np.stack([sequence, query], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    found: Numbers = count[number.reshape(-1)]
    return found


def _flags_of_call(operation: Operation) -> AccessFlag:
    return AccessFlag.APART if operation.counted_apart else AccessFlag(0)


def row_without_access(operation: Operation) -> Rows:
    """The one row, of kind NONE, of a call that reads and writes nothing: its step is then not missing."""
    row = np.zeros(1, dtype=ROW)
    row["kind"], row["flags"] = AccessKind.NONE, _flags_of_call(operation)
    for name in ("request", "position", "slot", "accepted"):
        row[name] = UNKNOWN
    return row


def positions_at(positions: Sequence[int], sequence: Numbers, offset: Numbers) -> Numbers:
    """The position of each access: `offset` [n] tokens after the first token of its `sequence` [n].

    `positions`: claimed, by sequence. UNKNOWN where none is claimed, and before a request's first token.
    """
    first = by_sequence(positions, sequence, UNKNOWN)
    return np.where(first < 0, UNKNOWN, np.maximum(first + offset, UNKNOWN))


def prefixes_at(prefixes: Sequence[int], sequence: Numbers) -> NDArray[np.uint64]:
    """The prefix hash of each access's `sequence` [n]; 0 where none is claimed."""
    return _chosen(np.asarray(prefixes, dtype=np.uint64), sequence, np.uint64(0))


def by_sequence(values: Sequence[int] | Numbers, sequence: Numbers, missing: int) -> Numbers:
    """values[sequence] for `sequence` [n]; `missing` past the end of `values`."""
    return _chosen(np.asarray(values, dtype=np.int64), sequence, np.int64(missing))


V = TypeVar("V", np.int64, np.uint64)


def _chosen(values: NDArray[V], sequence: Numbers, missing: V) -> NDArray[V]:
    found = np.full(len(sequence), missing, dtype=values.dtype)
    there = (sequence >= 0) & (sequence < len(values))
    found[there] = values[sequence[there]]
    return found


def places_among(row: Numbers, stored: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
    """Where each `row` [n] of a pool is among its `stored` rows [m], and whether it is there.

    The place of a row that is not stored is 0 or of another row. A negative row is nowhere.
    """
    if not len(stored):
        return np.zeros_like(row), np.zeros(len(row), dtype=np.bool_)
    order = np.argsort(stored, kind="stable")
    found = np.searchsorted(stored, row, sorter=order)
    place = order[np.minimum(found, len(stored) - 1)]
    return place, (row >= 0) & (stored[place] == row)
