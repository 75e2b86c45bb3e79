# SPDX-License-Identifier: Apache-2.0
"""Makes access tables of access logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdnbench.errors import StoreError
from gdnbench.lineage.call_rows import Names
from gdnbench.lineage.table import AccessTable, Progress, Rows
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind
from gdnbench.store.access_pieces import ACCESS_LOG, Piece, piece_of, rows_of_piece
from gdnbench.store.reader import Store, StoredRecord


def logged_processes(store: Store) -> dict[str, list[StoredRecord]]:
    """The pieces of each process that kept an access log, in order."""
    found: dict[str, list[StoredRecord]] = {}
    for listed in store.listed():
        if listed.kind.op == ACCESS_LOG:
            found.setdefault(listed.segment, []).append(store.records[listed.number])
    return found


def tables_of_logs(
    logged: Mapping[str, Sequence[StoredRecord]], advance: Progress | None = None
) -> Iterator[AccessTable]:
    """A table of each process's pieces. StoreError, with the record's key, for a damaged piece."""
    for process, records in logged.items():
        yield _table(process, records, advance)


def _table(process: str, records: Sequence[StoredRecord], advance: Progress | None) -> AccessTable:
    """The pieces in one array that is filled as they are read: two of them at a time would be twice as
    much."""
    rows = np.empty(sum(map(rows_of_piece, records)), dtype=ROW)
    layers, requests = Names[str](), Names[str]()
    forms = _Forms()
    stop, whole, elsewhere, sample = 0, False, False, 1
    for number, record in enumerate(records):
        piece = piece_of(record)
        part = rows[stop : stop + len(piece.rows)]
        part[:] = piece.rows
        part["layer"] = _renumbered(layers, piece.layers, part["layer"])
        part["request"] = _renumbered(requests, piece.requests, part["request"])
        forms.add(piece, part)
        stop += len(part)
        if number == 0:
            # The oldest pieces of a bounded log are gone; the first piece of a log has number 0.
            whole, sample = piece.whole and record.info.step == 0, piece.sample
        elsewhere |= piece.elsewhere
        if piece.sample != sample:
            raise StoreError(f"record {record.key}: its digests have sample {piece.sample}, others {sample}")
        if advance is not None:
            advance(number + 1, len(records))
    chains = forms.unify(rows)
    return AccessTable(
        process,
        rows,
        tuple(layers),
        chains,
        tuple(requests),
        whole=whole and not elsewhere,
        elsewhere=elsewhere,
        sample=sample,
    )


def _renumbered(numbers: Names[str], names: Sequence[str], column: NDArray[Any]) -> NDArray[Any]:
    """A column [n] of numbers of a piece's `names`, with the process's numbers instead."""
    known = [numbers.number(name) for name in names]
    found: NDArray[Any] = np.array([*known, UNKNOWN], dtype=np.int64)[column]  # UNKNOWN is the last one
    return found


class _Forms:
    """The pools of a log and the forms of their rows. Rows of one pool in another form than the pool's own,
    as a prefill's float32 states of a bfloat16 pool, cannot be compared with it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, bool], int] = {}
        self._counts: Counter[tuple[int, int]] = Counter()  # rows by (layer, number)

    def add(self, piece: Piece, part: Rows) -> None:
        """Note the pools of a piece, and number those of its rows `part` anew."""
        keys = [(str(one.get("name")), _form(one), one.get("pooled") is True) for one in piece.chains]
        known = [self._numbers.setdefault(key, len(self._numbers)) for key in keys]
        if len(self._numbers) > np.iinfo(np.int16).max:
            raise StoreError("an access log has more than 32767 pools")
        part["chain"] = np.array([*known, 0], dtype=np.int16)[part["chain"]]
        accesses = part[part["kind"] != AccessKind.NONE]
        pairs = accesses["layer"].astype(np.int64) << 16 | accesses["chain"]
        for pair, count in zip(*map(np.ndarray.tolist, np.unique(pairs, return_counts=True)), strict=True):
            self._counts[pair >> 16, pair & 0xFFFF] += count

    def unify(self, rows: Rows) -> tuple[str, ...]:
        """Number the chains of `rows` by name alone, and mark digests of other forms; returns the names."""
        keys = list(self._numbers)
        names = list(dict.fromkeys(key[0] for key in keys))
        chosen: dict[tuple[int, str], int] = {}
        for (layer, number), _ in sorted(self._counts.items(), key=lambda one: (keys[one[0][1]][2], one[1])):
            chosen[layer, keys[number][0]] = number  # pools last, the most frequent form last
        for layer, number in self._counts:
            if keys[number][1] != keys[chosen[layer, keys[number][0]]][1]:
                other = (rows["layer"] == layer) & (rows["chain"] == number)
                rows["flags"][other] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
        if keys:
            numbers = np.array([names.index(key[0]) for key in keys], dtype=np.int16)
            rows["chain"] = numbers[rows["chain"]]
        return tuple(names) or ("",)


def _form(chain: Mapping[str, Any]) -> str:
    return repr((chain.get("dtype"), chain.get("axes"), chain.get("shape")))
