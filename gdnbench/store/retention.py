# SPDX-License-Identifier: Apache-2.0
"""Decides which records a pruning drops: filters select records, limits bound how many of them go, oldest
first."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gdnbench.errors import BadInputError
from gdnbench.record import Status
from gdnbench.record_numbers import record_ranges

if TYPE_CHECKING:
    from gdnbench.store.reader import StoredRecord

_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Since 2001: names in anonymised copies start with zeros instead of a time.
_MILLISECONDS = re.compile(r"([1-9][0-9]{12})-")


@dataclass(frozen=True, slots=True)
class Retention:
    """Which records to drop: those for which all given filters hold; without a filter, all.

    `keep` holds numbers, ranges or keys of records that are never dropped.
    """

    op: str | None = None
    layer: str | None = None  # globs allowed
    steps: str | None = None  # as 0,3-5
    status: str | None = None
    older_than: float | None = None  # seconds since the process began to record
    keep: tuple[str, ...] = ()
    max_records: int | None = None  # records to leave in the store
    max_bytes: int | None = None  # of tensors, as a listing counts them for each record

    def __post_init__(self) -> None:
        if all(getattr(self, one.name) == one.default for one in fields(self)):
            raise BadInputError("nothing says what to drop; give a filter, a limit or --keep")
        if self.status is not None and self.status not in list(Status):
            raise BadInputError(f"--status {self.status!r} is none of {', '.join(Status)}")

    def dropped(
        self, records: Iterable[StoredRecord], now: float, busy: Container[str] = ()
    ) -> list[StoredRecord]:
        """The records to drop, in order; none from the segments in `busy`.

        `records` are all records of a store; `now` is in seconds since 1970. BadInputError if `keep` names a
        record that does not exist.
        """
        every = list(records)
        steps = None if self.steps is None else record_ranges(self.steps)
        kept = _Kept.parse(self.keep, every)
        chosen = [
            record
            for record in every
            if self._chooses(record, steps, now) and not kept.has(record) and record.segment.name not in busy
        ]
        if self.max_records is None and self.max_bytes is None:
            return chosen
        left, nbytes = len(every), sum(record.index_entry[0].nbytes for record in every)
        for number, record in enumerate(chosen):
            if left <= _or_no_bound(self.max_records) and nbytes <= _or_no_bound(self.max_bytes):
                return chosen[:number]
            left -= 1
            nbytes -= record.index_entry[0].nbytes
        return chosen

    def _chooses(self, record: StoredRecord, steps: Sequence[range] | None, now: float) -> bool:
        info = record.info
        return (
            (self.op is None or info.op == self.op)
            and (self.layer is None or fnmatchcase(info.layer, self.layer))
            and (steps is None or any(info.step in one for one in steps))
            and (self.status is None or info.status.value == self.status)
            and (self.older_than is None or _is_older(record, now - self.older_than))
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    ranges: tuple[range, ...]
    keys: frozenset[str]

    @classmethod
    def parse(cls, texts: Iterable[str], records: Sequence[StoredRecord]) -> _Kept:
        """Parse `keep`. BadInputError for a missing number or key, so that a typing error does not cost a
        record."""
        texts = tuple(texts)
        keys = frozenset(text for text in texts if "/" in text)
        ranges = tuple(one for text in texts if "/" not in text for one in record_ranges(text))
        for one in ranges:
            if one.stop > len(records):
                raise BadInputError(
                    f"--keep: there is no record {one.stop - 1}, the store has {len(records)}"
                )
        for key in sorted(keys - {record.key for record in records}):
            raise BadInputError(f"--keep: there is no record {key}; gdnbench ls --json says the keys")
        return cls(ranges, keys)

    def has(self, record: StoredRecord) -> bool:
        return record.key in self.keys or any(record.number in one for one in self.ranges)


def _or_no_bound(limit: int | None) -> float:
    return float("inf") if limit is None else limit


def segment_start_seconds(segment: str) -> float | None:
    """When the segment's process began to record, in seconds since 1970; None if its name does not contain
    the time."""
    found = _MILLISECONDS.match(segment)
    return None if found is None else int(found[1]) / 1000


def _is_older(record: StoredRecord, then: float) -> bool:
    """Whether the record's process began before `then`; False if its segment's name does not contain the
    time."""
    time = segment_start_seconds(record.segment.name)
    return time is not None and time < then


def parse_age(text: str, option: str) -> float:
    """Convert "36h" or "7d" to seconds; BadInputError names the option."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise BadInputError(f"{option} {text!r} is no age; write a number with s, m, h, d or w, such as 7d")
    return float(match[1]) * _SECONDS[match[2]]
