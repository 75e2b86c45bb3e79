# SPDX-License-Identifier: Apache-2.0
"""Names and versions in the store of a value trace; docs/trace.md shows the layout."""

from __future__ import annotations

from typing import Final

TRACE_VERSION: Final = 1

LAUNCHES: Final = "launches"
TEXTS: Final = "texts"  # by BLAKE3 digest: tables of instructions, Python files
COLUMNS: Final = ("cta", "warp", "pc", "occurrence", "lanes")  # uint32[events] each
ROW: Final = "row"  # uint64[events]: of `values`, where an event's registers begin
VALUES: Final = "values"  # uint64[rows, 32]: a register in all lanes, zero-extended

EVENTS_CHUNK: Final = 16384
VALUES_CHUNK: Final = 4096  # rows: 1 MiB

EVENT_BYTES: Final = 4 * len(COLUMNS) + 8
ROW_BYTES: Final = 8 * 32

MOST_REGISTERS: Final = 256  # of one instruction: tcgen05.ld has 128


def launch_name(number: int) -> str:
    """The name of a launch's group; numbers count from 0."""
    return f"{number:06d}"
