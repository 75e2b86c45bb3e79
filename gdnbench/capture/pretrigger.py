# SPDX-License-Identifier: Apache-2.0
"""The pre-trigger buffer: holds copies of the last few calls of each layer until a trigger decides about
them.

When a trigger holds for a call of any layer, the buffer releases the waiting calls of all layers in call
order, then the call itself, and after it the next `around` calls of each layer.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from gdnbench.capture.inflight import PendingRecord
from gdnbench.capture.layers import Layer


class Ring:
    """Holds up to `around` calls of each layer, at most `limit_bytes` in total. Thread safe."""

    def __init__(self, around: int, limit_bytes: int) -> None:
        self._around = around
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[PendingRecord, int]] = {}  # by serial, ascending; with its bytes
        self._of_layer: dict[int, deque[int]] = {}  # serials; a layer lives as long as it has records here
        self._serial = 0
        self._bytes = 0
        self._after: dict[int, tuple[Layer, int]] = {}  # records released by layer since the last trigger
        self._last: str | None = None  # the dispatch text that names the call of the last trigger
        self.short = 0  # records dropped early because `limit_bytes` was reached

    @property
    def nbytes(self) -> int:
        return self._bytes

    def offer(self, record: PendingRecord, reason: str | None) -> list[PendingRecord]:
        """Add `record`; return the records to write now.

        `reason` is why a trigger keeps the record; None if no trigger held for it.
        """
        with self._lock:
            if reason is not None:
                found = [one for one, _ in self._waiting.values()]
                self._waiting.clear()
                self._of_layer.clear()
                self._after.clear()
                self._bytes = 0
                self._last = f"around:call {record.info.call}"
                return [*(_because(one, self._last) for one in found), _because(record, reason)]
            if self._last is not None and self._around:
                layer, had = self._after.get(id(record.layer), (record.layer, 0))
                if had < self._around:
                    self._after[id(layer)] = (layer, had + 1)
                    return [_because(record, self._last)]
            self._keep(record)
            return []

    def _keep(self, record: PendingRecord) -> None:
        nbytes = record.held_bytes
        if not self._around:
            return
        if nbytes > self._limit:
            self.short += 1
            return
        of_layer = self._of_layer.setdefault(id(record.layer), deque())
        if len(of_layer) == self._around:
            self._drop(of_layer.popleft())
        while self._bytes + nbytes > self._limit:
            oldest = next(iter(self._waiting))
            self._of_layer[id(self._waiting[oldest][0].layer)].remove(oldest)
            self._drop(oldest)
            self.short += 1
        self._waiting[self._serial] = (record, nbytes)
        of_layer.append(self._serial)
        self._serial += 1
        self._bytes += nbytes

    def _drop(self, serial: int) -> None:
        _, nbytes = self._waiting.pop(serial)
        self._bytes -= nbytes


def _because(record: PendingRecord, reason: str) -> PendingRecord:
    record.info = replace(record.info, dispatch={**record.info.dispatch, "trigger": reason})
    return record
