# SPDX-License-Identifier: Apache-2.0
"""Which earlier call left the state that a call gets: by slot where it lies in a pool, by content elsewhere.

A link stands only where the bits are those that were left. A state that something else wrote meanwhile, a
copy or a reset, begins a new lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.store.reader import StoredRecord

Row = tuple[int, int]
"""Number of a record, and which row of its states."""


@dataclass(slots=True)
class Links:
    """`before`: by a row that a call gets, the row of an earlier call that left it. `lanes`: of every row
    that a call leaves or gets, the name of what is followed from call to call."""

    before: dict[Row, Row] = field(default_factory=dict)
    lanes: dict[Row, str] = field(default_factory=dict)

    def ancestors(self, number: int) -> list[int]:
        """Calls that a call's states come from, in order."""
        found: set[int] = set()
        waiting = [number]
        while waiting:
            one = waiting.pop()
            for (at, _), (earlier, _) in self.before.items():
                if at == one and earlier not in found:
                    found.add(earlier)
                    waiting.append(earlier)
        return sorted(found)

    def to_json(self, numbers: Sequence[int]) -> dict[str, Any]:
        """What calls of these numbers need, as plain JSON."""
        chosen = set(numbers)
        return {
            "before": [[*at, *earlier] for at, earlier in self.before.items() if at[0] in chosen],
            "lanes": [[*at, lane] for at, lane in self.lanes.items() if at[0] in chosen],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Links:
        return cls(
            {(a, b): (c, d) for a, b, c, d in data["before"]}, {(a, b): lane for a, b, lane in data["lanes"]}
        )


def links_of(records: Sequence[StoredRecord]) -> Links:
    """The links between calls in order. Calls of different layers or processes are never linked."""
    found = Links()
    by_content: dict[tuple[str, str, str], Row] = {}
    by_slot: dict[tuple[str, str, int], tuple[Row, str]] = {}  # layer, pool, slot
    for record in records:
        op = operation(record.info.op)
        if op.carries is None:
            continue
        first, last = op.carries
        layer = f"{record.segment.name}/{record.info.layer}"
        form = calls.conventions_of(record, op).get("state_layout", "")
        pooled = op.spec(first).pool_index is not None
        if first in record.before:
            slots = _slots(record, first)
            for row, digest in enumerate(_digests(record.before[first].read())):
                at = (record.number, row)
                earlier = None
                if pooled and (layer, first, slots[row]) in by_slot:
                    there, left = by_slot[layer, first, slots[row]]
                    earlier = there if left == digest else None
                elif digest is not None:
                    earlier = by_content.get((layer, form, digest))
                if earlier is not None:
                    found.before[at] = earlier
                found.lanes[at] = _lane(found, at, slots[row] if pooled else None)
        if last in record.after:
            slots = _slots(record, last)
            for row, digest in enumerate(_digests(record.after[last].read())):
                at = (record.number, row)
                found.lanes.setdefault(at, _lane(found, at, slots[row] if pooled else None))
                if pooled:
                    by_slot[layer, last, slots[row]] = (at, digest or "")
                if digest is not None:
                    by_content[layer, form, digest] = at
    return found


def _lane(found: Links, at: Row, slot: int | None) -> str:
    if at in found.before:
        return found.lanes[found.before[at]]
    return f"slot {slot} from record {at[0]}" if slot is not None else f"state {at[1]} from record {at[0]}"


def _slots(record: StoredRecord, name: str) -> Sequence[int]:
    pool = record.info.pools.get(name)
    handle = record.before.get(name) or record.after[name]
    return range(handle.meta.shape[0]) if pool is None else pool.rows


def _digests(states: Tensor) -> list[str | None]:
    """Of each row's bits; None for a row of zeros, which anybody may have left."""
    bits = as_integers(states.contiguous()).flatten(1)
    return [None if not bool(row.any()) else blake3(row.numpy().tobytes()).hexdigest() for row in bits]
