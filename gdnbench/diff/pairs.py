"""Which record of one store belongs to which of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from gdnbench.store.reader import Store, StoredRecord

RUN = "run"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Numbers of the records that belong together, and of those that have no counterpart."""

    matched: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]


def source_of(record: StoredRecord) -> str:
    """The key of the captured record: of a replayed one, the key of what was replayed."""
    return str(record.info.run.get("source", record.key))


def pair(a: Store, b: Store, op: str | None = None) -> Pairs:
    """Match the records of two stores, those of operation `op` only if given.

    Where one is a run store, by the captured record they come from; what that leaves, and two captures, by
    operation, layer, step and the order of the processes. Several records of one such name match in order.
    """
    left, right = _selected(a, op), _selected(b, op)
    matched: list[tuple[int, int]] = []
    if RUN in (a.kind, b.kind):
        _match(matched, _named(left, by_source=True), _named(right, by_source=True))
    taken_a, taken_b = {i for i, _ in matched}, {j for _, j in matched}
    _match(
        matched,
        _named([r for r in left if r.number not in taken_a], by_source=False),
        _named([r for r in right if r.number not in taken_b], by_source=False),
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


def _named(entries: list[_Entry], by_source: bool) -> dict[Hashable, int]:
    """Record numbers by a name that is unique within the store."""
    segments = sorted({entry.source.partition("/")[0] for entry in entries})
    process = {segment: order for order, segment in enumerate(segments)}
    seen: Counter[Hashable] = Counter()
    found: dict[Hashable, int] = {}
    for entry in entries:
        place = (*entry.place, process[entry.source.partition("/")[0]])
        name: Hashable = entry.source if by_source else place
        found[name, seen[name]] = entry.number
        seen[name] += 1
    return found


def _match(matched: list[tuple[int, int]], left: dict[Hashable, int], right: dict[Hashable, int]) -> None:
    matched += [(number, right[name]) for name, number in left.items() if name in right]
