"""Copies of calls that wait for a trigger: of each layer the last few, within a bound of bytes.

When a trigger holds for a call of any layer, what waits of every layer is let out in the order of the calls,
then the call, and after it as many of each layer as may wait.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from gdnbench.capture.inflight import PendingRecord
from gdnbench.capture.layers import Layer


class Ring:
    """`around` calls of each layer, and no more than `limit_bytes`. Thread safe."""

    def __init__(self, around: int, limit_bytes: int) -> None:
        self._around = around
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[PendingRecord, int]] = {}  # by serial, ascending; with their bytes
        self._of_layer: dict[int, deque[int]] = {}  # serials; a layer lives as long as it has records here
        self._serial = 0
        self._bytes = 0
        self._after: dict[int, tuple[Layer, int]] = {}  # records that a layer has had since the last trigger
        self._last: str | None = None  # the call that it held for
        self.short = 0  # records that went before their time, for want of bytes

    @property
    def nbytes(self) -> int:
        return self._bytes

    def offer(self, record: PendingRecord, reason: str | None) -> list[PendingRecord]:
        """What is to be written now that a trigger has decided about `record`: `reason` is why it is kept."""
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
