# SPDX-License-Identifier: Apache-2.0
"""Collects the rows of calls that are kept as digests, and writes them to the journal in pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gdnbench.capture.access_rows import AccessRows, Chain, Rows
from gdnbench.capture.claims import LINEAGE
from gdnbench.capture.digest_record import DigestRecord
from gdnbench.capture.graph_digests import DigestBatch, EagerBatch
from gdnbench.store.access_log import ROW
from gdnbench.store.access_pieces import Piece, draft_of_piece
from gdnbench.store.journal import JournalWriter

PIECE_ROWS = 1 << 16
PIECE_SECONDS = 1.0  # what a process that is killed loses at most


class AccessCollector:
    """Takes calls from any thread. A thread of its own writes a piece each second, or when one is full.

    `max_bytes`: of a rolling capture, so that a piece is a small part of it. `lost`: the number of calls of
    the process so far that are not logged. `failed` is called with an error of writing.
    """

    def __init__(
        self,
        journal: JournalWriter,
        *,
        sample: int,
        max_bytes: int | None,
        lost: Callable[[], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._sample = sample
        self._lost = lost
        self._failed = failed
        self._most = PIECE_ROWS
        if max_bytes is not None:
            self._most = max(64, min(PIECE_ROWS, max_bytes // (32 * 88)))
        self._rows = AccessRows()
        self._parts: list[Rows] = []
        self._count = 0
        self._first = 0  # number of the next piece's first row
        self._pieces = 0
        self._begins_whole: bool | None = None
        self._elsewhere = False
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, record: DigestRecord | DigestBatch | EagerBatch) -> None:
        """Log a call, or the calls of a replay, whose digests have arrived.

        Raises what the adapter's `Finish` raises.
        """
        with self._changed:
            if isinstance(record, DigestBatch | EagerBatch):
                parts = self._rows.rows_of_batch(record)
            else:
                parts = [self._rows.rows(record)]
            if self._begins_whole is None:
                self._begins_whole = min(int(rows["call"].min()) for rows in parts) == 0
            self._elsewhere |= writes_elsewhere(record)
            self._parts += parts
            self._count += sum(map(len, parts))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gdnbench-access-log", daemon=True)
                self._thread.start()
            if self._count >= self._most:
                self._changed.notify_all()

    def flush(self) -> None:
        """Write the rows collected so far."""
        with self._writing:
            with self._changed:
                parts, self._parts = self._parts, []
                self._count = 0
                names = self._rows.renew()
            if not parts:
                return
            lost = self._lost()
            for rows in _grouped(parts, self._most):
                piece = Piece(
                    rows,
                    layers=list(names.layers),
                    chains=[_described(chain) for chain in names.chains],
                    requests=list(names.requests),
                    sample=self._sample,
                    whole=bool(self._begins_whole) and lost == 0,
                    lost=lost,
                    elsewhere=self._elsewhere,
                )
                self._journal.append(draft_of_piece(piece, self._first, self._pieces))
                self._first += len(piece.rows)
                self._pieces += 1

    def close(self) -> None:
        """Write what is left, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._count >= self._most, PIECE_SECONDS)
                if self._closing:
                    return
            try:
                self.flush()
            except Exception as error:
                self._failed(error)


def _grouped(parts: list[Rows], most: int) -> Iterator[Rows]:
    """The rows of whole calls, about `most` at a time."""
    group: list[Rows] = []
    count = 0
    for part in parts:
        group.append(part)
        count += len(part)
        if count >= most:
            yield _joined(group)
            group, count = [], 0
    if group:
        yield _joined(group)


def _joined(parts: list[Rows]) -> Rows:
    """The rows one after another, moved as bytes: NumPy takes 20 times as long if it knows their fields."""
    octets = np.dtype(f"V{ROW.itemsize}")
    joined: Rows = np.concatenate([part.view(octets) for part in parts]).view(ROW)
    return joined


def writes_elsewhere(record: DigestRecord | DigestBatch | EagerBatch) -> bool:
    """Whether the engine says that it also writes states in ways that are not recorded."""
    if isinstance(record, DigestBatch | EagerBatch):
        return any(one is not None and one.elsewhere for one in record.all_claims())
    return bool((record.info.dispatch.get(LINEAGE) or {}).get("elsewhere"))


def _described(chain: Chain) -> dict[str, Any]:
    form = chain.form
    return {
        "name": chain.name,
        "pooled": chain.pooled,
        "dtype": None if form is None else form.dtype,
        "axes": None if form is None else list(form.axes),
        "shape": None if form is None else list(form.shape),
    }
