"""Runs the paged loop, and says which of its calls read a row that a checker can know to be stale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gdnbench.lineage.table import AccessTable
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind
from tests.lineage.serving.access_table import digests
from tests.lineage.serving.paged import PagedLoop, PagedRequest, RowRead


@dataclass(frozen=True, slots=True)
class WindowRun:
    """`stale`: calls and sequences with a wrong row that differs from what its request read before, or that
    its slot had as the row of another position. `wrong`: all with a wrong row."""

    table: AccessTable
    stale: list[tuple[int, int]]
    wrong: set[tuple[int, int]]


def serve_pages(seed: int, loop: type[PagedLoop] = PagedLoop, **options: int) -> WindowRun:
    served = loop(seed, **options)
    served.run()
    return WindowRun(window_table(served.calls), _stale(served.calls), _wrong(served.calls))


def _wrong(calls: list[list[RowRead]]) -> set[tuple[int, int]]:
    return {(read.call, read.sequence) for reads in calls for read in reads if read.wrong}


def _stale(calls: list[list[RowRead]]) -> list[tuple[int, int]]:
    found = []
    own: dict[tuple[PagedRequest, int], bytes] = {}
    left: dict[int, set[tuple[bytes, int]]] = {}  # rows and positions that were read at a slot
    for reads in calls:
        broken = set()
        for read in reads:
            bits = row_bits(read)
            before = own.get((read.request, read.position))
            elsewhere = any(
                bits == one and position != read.position for one, position in left.get(read.slot, ())
            )
            if read.wrong and ((before is not None and before != bits) or (before is None and elsewhere)):
                broken.add((read.call, read.sequence))
        for read in reads:
            own[read.request, read.position] = row_bits(read)
            left.setdefault(read.slot, set()).add((row_bits(read), read.position))
        found += sorted(broken)
    return found


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
