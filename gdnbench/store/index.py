# SPDX-License-Identifier: Apache-2.0
"""The index of a batch: what a listing shows of each record, so that a listing need not parse the records.

The index is an attribute of the batch's group, written and committed with the batch:

    {"version": 1,
     "sizes": [{"T": 1, "H": 16, ...}, ...],                          distinct ones, numbered in order
     "kinds": [[op, layer, layer_index, status, sizes, bytes, trigger], ...]    distinct ones
     "kind": "0 1 2 0 1 2", "step": "0 0 0 1 1 1", "call": "0 1 2 3 4 5"}       one number per record

The index is derived from the records and optional. Records are always read from their own lines. Readers
ignore an inconsistent index; `verify` reports an index that differs from the records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gdnbench.record import RecordInfo, Status
from gdnbench.store.record_json import Placed

INDEX: Final = "index"  # attribute of a batch's group
_VERSION: Final = 1
_NUMBERS: Final = re.compile(r"[0-9]{1,18}(?: [0-9]{1,18})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """The part of a listing that records of one layer have in common."""

    op: str
    layer: str
    layer_index: int | None
    status: str
    sizes: Mapping[str, int]  # symbolic axes of the inputs
    nbytes: int  # of the record's distinct tensors
    trigger: str | None = None  # why a trigger kept it; None without a trigger

    @classmethod
    def from_record(cls, info: RecordInfo, before: Mapping[str, Placed], after: Mapping[str, Placed]) -> Kind:
        trigger = info.dispatch.get("trigger")
        return cls(
            info.op,
            info.layer,
            info.layer_index,
            info.status.value,
            sizes_of(before),
            _nbytes(before, after),
            trigger if isinstance(trigger, str) else None,
        )


IndexEntry = tuple[Kind, int, int]
"""A record's entry in the index: kind, step and call."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A record as a listing shows it. `number` counts over the store; `key` identifies it permanently."""

    number: int
    key: str
    segment: str
    kind: Kind
    step: int
    call: int


def sizes_of(tensors: Mapping[str, Placed]) -> dict[str, int]:
    """The symbolic axes of a record's inputs with their sizes, in order of appearance."""
    return dict(_sizes(tuple((tensor.meta.axes, tensor.meta.shape) for tensor in tensors.values())))


@lru_cache  # calls of one layer repeat their shapes
def _sizes(tensors: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for axes, shape in tensors:
        for axis, extent in zip(axes, shape, strict=True):
            if axis.isidentifier():
                found.setdefault(axis, extent)
            elif axis.endswith("+1"):
                found.setdefault(axis.removesuffix("+1"), extent - 1)
    return found


def _nbytes(before: Mapping[str, Placed], after: Mapping[str, Placed]) -> int:
    from gdnbench.bits import logical

    distinct = {tensor.digest: tensor.meta for tensor in (*before.values(), *after.values())}
    return sum(math.prod(meta.shape) * logical(meta.dtype).storage.itemsize for meta in distinct.values())


@dataclass(slots=True)
class IndexDraft:
    """The index of a batch in the making."""

    _sizes: dict[str, int] = field(default_factory=dict)  # as text -> number
    _size_list: list[Mapping[str, int]] = field(default_factory=list)
    _kinds: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _columns: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))

    def add(self, info: RecordInfo, before: Mapping[str, Placed], after: Mapping[str, Placed]) -> None:
        kind = Kind.from_record(info, before, after)
        size = self._sizes.setdefault(repr(kind.sizes), len(self._size_list))
        if size == len(self._size_list):
            self._size_list.append(kind.sizes)
        row = (kind.op, kind.layer, kind.layer_index, kind.status, size, kind.nbytes, kind.trigger)
        numbers = (self._kinds.setdefault(row, len(self._kinds)), info.step, info.call)
        for column, number in zip(self._columns, numbers, strict=True):
            column.append(number)

    def attributes(self) -> dict[str, Any]:
        kind, step, call = (" ".join(map(str, column)) for column in self._columns)
        return {
            "version": _VERSION,
            "sizes": self._size_list,
            "kinds": [list(row) for row in self._kinds],
            "kind": kind,
            "step": step,
            "call": call,
        }


def parse_index(index: Any, count: int) -> list[IndexEntry] | None:
    """Kind, step and call of each of a batch's `count` records; None if `index` is inconsistent or
    incomplete."""
    try:
        if index["version"] != _VERSION:
            return None
        sizes = [_checked_sizes(size) for size in index["sizes"]]
        kinds = [_checked_kind(row, sizes) for row in index["kinds"]]
        of, steps, calls = (_numbers(index[name], count) for name in ("kind", "step", "call"))
        return [(kinds[kind], step, call) for kind, step, call in zip(of, steps, calls, strict=True)]
    # Untrusted JSON may have any shape.
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


def _numbers(text: Any, count: int) -> Sequence[int]:
    if count == 0 and text == "":
        return ()
    found = tuple(map(int, text.split(" "))) if _NUMBERS.fullmatch(text) else ()
    if len(found) != count:
        raise ValueError(f"not {count} numbers with one blank between them")
    return found


def _checked_sizes(size: Any) -> dict[str, int]:
    return {str(axis): _count(extent) for axis, extent in size.items()}


def _checked_kind(row: Any, sizes: Sequence[Mapping[str, int]]) -> Kind:
    op, layer, layer_index, status, size, nbytes, trigger = row
    return _kind(op, layer, layer_index, status, tuple(sizes[_count(size)].items()), nbytes, trigger)


# Cached: every batch has the same layers. Typed: True equals 1 but is no count.
@lru_cache(maxsize=4096, typed=True)
def _kind(op: Any, layer: Any, layer_index: Any, status: Any, sizes: Any, nbytes: Any, trigger: Any) -> Kind:
    if not all(isinstance(text, str) for text in (op, layer, "" if trigger is None else trigger)):
        raise ValueError("not text")
    index = None if layer_index is None else _count(layer_index)
    return Kind(op, layer, index, Status(status).value, dict(sizes), _count(nbytes), trigger)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a count")
    return value
