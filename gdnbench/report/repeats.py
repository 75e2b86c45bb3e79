# SPDX-License-Identifier: Apache-2.0
"""Records that ended alike, such as by the same exception, as one message of several lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from gdnbench.record_numbers import numbers_text
from gdnbench.report.report import RecordResult

T = TypeVar("T")


def grouped(records: Iterable[RecordResult]) -> list[list[RecordResult]]:
    """Records with the same outcome and reason, numbers aside, in the order of the first of each. A record
    with judged tensors or faults is alone."""

    def key(record: RecordResult) -> object:
        if record.tensors or record.faults or record.findings:
            return record.number
        frame = None if record.error is None else record.error.frame
        said = record.reason if record.error is None else record.error.text
        return record.outcome, but_for_numbers(said), frame, record.imported

    return groups_by(records, key)


def groups_by(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Items of the same key, in the order of the first of each."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def but_for_numbers(text: str) -> str:
    """`text` without its numbers, which are sizes and addresses of one record."""
    return re.sub(r"\d+", "#", text)


def records_text(numbers: Iterable[int]) -> str:
    """[0, 1, 2] -> "records 0-2 (3)"."""
    ordered = sorted(numbers)
    return f"records {numbers_text(ordered)} ({len(ordered)})"


def headline(group: Sequence[RecordResult]) -> str:
    """`crash: record 3 gdn_prefill model.layers.0 step 0`, or `crash: records 0-53 (54): gdn_prefill`."""
    first = group[0]
    if len(group) == 1:
        return f"{first.outcome}: record {first.label}"
    operations = ", ".join(dict.fromkeys(record.op for record in group))
    return f"{first.outcome}: {records_text(record.number for record in group)}: {operations}"


def reason_lines(group: Sequence[RecordResult], tb: str = "short") -> Iterator[str]:
    """Why the records of a group ended so: the exception, its line in the kernel's code (`tb` short) or the
    whole traceback (long), of the first one."""
    first, error = group[0], group[0].error
    if error is None:
        yield f"  {first.reason}"
    elif tb == "long" and error.traceback:
        yield from (f"  {line}" for line in error.traceback.split("\n"))
    else:
        yield f"  {error.text}"
        if tb != "none" and error.frame is not None:
            yield f"  {error.frame.place}"
            yield from [f"    {error.frame.source}"] if error.frame.source else []
    if any(record.reason != first.reason for record in group):
        yield f"  of record {first.number}; the other messages differ in numbers, see --json"
