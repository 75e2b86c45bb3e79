"""Records that ended alike, such as by the same exception, as one message of several lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gdnbench.record_numbers import numbers_text
from gdnbench.report.report import RecordResult


def grouped(records: Iterable[RecordResult]) -> list[list[RecordResult]]:
    """Records with the same outcome and reason, numbers aside, in the order of the first of each. A record
    with judged tensors or faults is alone."""
    groups: dict[object, list[RecordResult]] = {}
    for record in records:
        frame = None if record.error is None else record.error.frame
        said = record.reason if record.error is None else record.error.text
        key: object = (record.outcome, re.sub(r"\d+", "#", said), frame, record.imported)
        if record.tensors or record.faults or record.findings:
            key = record.number
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def headline(group: Sequence[RecordResult]) -> str:
    """`crash: record 3 gdn_prefill model.layers.0 step 0`, or `crash: records 0-53 (54): gdn_prefill`."""
    first = group[0]
    if len(group) == 1:
        return f"{first.outcome}: record {first.label}"
    numbers = numbers_text(sorted(record.number for record in group))
    operations = ", ".join(dict.fromkeys(record.op for record in group))
    return f"{first.outcome}: records {numbers} ({len(group)}): {operations}"


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
