# SPDX-License-Identifier: Apache-2.0
"""Runs the paged loop, and says which of its calls read a row that a checker can know to be stale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gdnbench.lineage.check import check_chain
from gdnbench.lineage.finding import Break
from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind
from tests.lineage.serving.access_table import digests
from tests.lineage.serving.paged import PagedLoop, PagedRequest, RowRead


@dataclass(frozen=True, slots=True)
class WindowRun:
    """`stale`: calls and sequences with a wrong row that a checker can know to be wrong. `wrong`: all with a
    wrong row. What must be found is the first: later it may be unknown whose a row was at first."""

    table: AccessTable
    stale: set[tuple[int, int]]
    wrong: set[tuple[int, int]]

    @property
    def first(self) -> set[tuple[int, int]]:
        """Those of `stale` that are in the first call with a wrong row."""
        return {one for one in self.stale if one[0] == min(self.wrong)[0]}


def serve_pages(seed: int, loop: type[PagedLoop] = PagedLoop, **options: int) -> WindowRun:
    served = loop(seed, **options)
    served.run()
    stale, wrong = _stale_and_wrong(served.calls)
    return WindowRun(window_table(served.calls), stale, wrong)


def _stale_and_wrong(calls: list[list[RowRead]]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """A row is wrong if it is of other tokens, or has changed since its request read it in the call before:
    another request with these tokens may have written its own row to a page that was freed too early.

    It is known to be wrong if it has changed and a row beside it has not; or if its request reads it for the
    first time, and it is what was last read at the slot for another position."""
    found, all_wrong = set(), set()
    last: dict[int, RowRead] = {}  # by slot
    before: dict[tuple[PagedRequest, int, int], RowRead] = {}  # by request, position and slot
    for number, reads in enumerate(calls):
        steady = set()
        for read in reads:
            own = before.get((read.request, read.position, read.slot))
            if own is not None and own.call == number - 1 and row_bits(own) == row_bits(read):
                steady.add(read.request)
        for read in reads:
            own = before.get((read.request, read.position, read.slot))
            left = last.get(read.slot)
            changed = own is not None and own.call == number - 1 and row_bits(own) != row_bits(read)
            same = left is not None and row_bits(left) == row_bits(read) and left.position != read.position
            if read.wrong or changed:
                all_wrong.add((read.call, read.sequence))
            if (changed and read.request in steady) or (read.wrong and own is None and same):
                found.add((read.call, read.sequence))
        for read in reads:
            last[read.slot] = read
            before[read.request, read.position, read.slot] = read
    return found, all_wrong


def row_bits(read: RowRead) -> bytes:
    return read.row.view(torch.int16).numpy().tobytes()


def window_table(calls: list[list[RowRead]]) -> AccessTable:
    reads = [read for one in calls for read in one]
    requests = list(dict.fromkeys(read.request.id for read in reads))
    rows = np.zeros(len(reads), dtype=ROW)
    for row, read in zip(rows, reads, strict=True):
        row["call"] = row["step"] = read.call
        row["kind"], row["flags"] = AccessKind.READ, AccessFlag.WINDOW
        row["sequence"], row["request"] = read.sequence, requests.index(read.request.id)
        row["position"], row["slot"] = read.position, read.slot
        row["accepted"], row["tokens"] = UNKNOWN, 1
    bits = b"".join(row_bits(read) for read in reads)
    rows["digest"] = digests(np.frombuffer(bits, np.uint8).reshape(len(reads), -1))
    return AccessTable("pages", rows, ("layer0",), ("window",), requests, whole=True)


def windows_found(table: AccessTable) -> set[tuple[int, int]]:
    """Calls and sequences in which the checker finds a stale row."""
    findings = [one for chain in table.by_chain() for one in check_chain(chain).findings]
    assert all(one.kind is Break.STALE_PAGE for one in findings)
    return {(one.found.call, one.found.sequence) for one in findings}


def window_differences(run: WindowRun, found: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rows of the first wrong call that were not found, and what was found before it."""
    first = min((call for call, _ in run.wrong), default=None)
    early = {one for one in found if first is None or one[0] < first}
    return sorted((run.first - found) | early)
