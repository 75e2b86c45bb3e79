# SPDX-License-Identifier: Apache-2.0
"""Matches the records of two stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gdnbench.store.ranks import Rank
from gdnbench.store.reader import Store, StoredRecord

RUN = "run"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Numbers of the records that match, and of those without a counterpart."""

    matched: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]


def source_of(record: StoredRecord) -> str:
    """The key of the captured record: of a replayed one, the key of what was replayed."""
    return str(record.info.run.get("source", record.key))


def pair(a: Store, b: Store, op: str | None = None) -> Pairs:
    """Match the records of two stores, those of operation `op` only if given.

    Where one is a run store, by the captured record they come from; what that leaves, and two captures, by
    operation, layer, step and process: by rank where the processes of both stores have ranks, else by their
    order. Several records of one such name match in order.
    """
    left, right = _selected(a, op), _selected(b, op)
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    # Of a run the captured process counts, which the other store may hold.
    ranks_a, ranks_b = {**ranks_b, **ranks_a}, {**ranks_a, **ranks_b}
    if not (_ranked(left, ranks_a) and _ranked(right, ranks_b)):
        ranks_a, ranks_b = {}, {}
    matched: list[tuple[int, int]] = []
    if RUN in (a.kind, b.kind):
        _match(matched, _by_source(left), _by_source(right))
    taken_a, taken_b = {i for i, _ in matched}, {j for _, j in matched}
    _match(
        matched,
        _by_place([r for r in left if r.number not in taken_a], ranks_a),
        _by_place([r for r in right if r.number not in taken_b], ranks_b),
    )
    taken_a, taken_b = {i for i, _ in matched}, {j for _, j in matched}
    return Pairs(
        tuple(sorted(matched)),
        tuple(r.number for r in left if r.number not in taken_a),
        tuple(r.number for r in right if r.number not in taken_b),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """What matching needs of a record, so that no record is held."""

    number: int
    source: str
    place: tuple[Hashable, ...]


def _selected(store: Store, op: str | None) -> list[_Entry]:
    return [
        _Entry(r.number, source_of(r), (r.info.op, r.info.layer, r.info.layer_index, r.info.step))
        for r in store.records
        if op is None or r.info.op == op
    ]


def _segment(entry: _Entry) -> str:
    return entry.source.partition("/")[0]


def _ranks(store: Store) -> dict[str, Rank]:
    return {segment.name: Rank.from_process(segment.process) for segment in store.segments}


def _ranked(entries: Iterable[_Entry], ranks: Mapping[str, Rank]) -> bool:
    """Whether a process that recorded some of `entries` says its rank."""
    return any(
        segment in ranks and ranks[segment].is_known for segment in {_segment(entry) for entry in entries}
    )


def _by_source(entries: Iterable[_Entry]) -> dict[Hashable, int]:
    return _numbered((entry.source, entry) for entry in entries)


def _by_place(entries: Sequence[_Entry], ranks: Mapping[str, Rank]) -> dict[Hashable, int]:
    """By layer, step and process. Processes of one rank, or of none, are told apart by their order."""
    process: dict[str, Hashable] = {}
    seen: Counter[Rank | None] = Counter()
    for segment in sorted({_segment(entry) for entry in entries}):
        rank = ranks.get(segment)
        process[segment] = (rank, seen[rank])
        seen[rank] += 1
    return _numbered(((*entry.place, process[_segment(entry)]), entry) for entry in entries)


def _numbered(named: Iterable[tuple[Hashable, _Entry]]) -> dict[Hashable, int]:
    """Record numbers by a name that is unique within the store: equal ones are counted."""
    seen: Counter[Hashable] = Counter()
    found: dict[Hashable, int] = {}
    for name, entry in named:
        found[name, seen[name]] = entry.number
        seen[name] += 1
    return found


def _match(matched: list[tuple[int, int]], left: dict[Hashable, int], right: dict[Hashable, int]) -> None:
    matched += [(number, right[name]) for name, number in left.items() if name in right]
