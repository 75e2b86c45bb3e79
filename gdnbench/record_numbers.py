# SPDX-License-Identifier: Apache-2.0
"""Record numbers as they are written: `0,3-5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gdnbench.errors import BadInputError


def record_ranges(text: str) -> tuple[range, ...]:
    """ "0,3-5" -> (range(0, 1), range(3, 6)), of whichever store; BadInputError for anything else."""
    ranges: list[range] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        if match is None:
            raise BadInputError(f"records {text!r}: {part!r} is no number or range; write them like 0,3-5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInputError(f"records {text!r}: {part.strip()} runs backwards")
        ranges.append(range(first, last + 1))
    return tuple(ranges)


def numbers_text(numbers: Iterable[int]) -> str:
    """[0, 3, 4, 5] -> "0,3-5": what `record_ranges` reads. `numbers` ascend."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def record_numbers(text: str, count: int) -> list[int]:
    """ "0,3-5" -> [0, 3, 4, 5]; BadInputError for anything else, or past the `count` records there are."""
    ranges = record_ranges(text)
    for one in ranges:
        if one.stop > count:
            held = f"records 0 to {count - 1}" if count else "no records"
            raise BadInputError(f"there is no record {one.stop - 1}; the store has {held}")
    return [number for one in ranges for number in one]
