# SPDX-License-Identifier: Apache-2.0
"""A background thread waits for the device-to-host copies of records, so that the program does not."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from gdnbench.capture.digest_buffer import Chunk
from gdnbench.capture.graph_digests import DigestBatch, EagerBatch, joined
from gdnbench.capture.inflight import PendingRecord

Transferred = PendingRecord | DigestBatch | EagerBatch
"""A record, or the digests of all calls of a replay."""
Queued = PendingRecord | Chunk
"""A record, or a chunk of records whose digests arrive at once."""

_RUN_SECONDS, _PAUSE_SECONDS = 2e-4, 5e-5
"""The thread lets go of the interpreter after so long: the program would wait for it for 5 ms."""

# Of device memory, which the program needs too, and of pinned host memory, which the whole machine shares.
LIMIT_BYTES = 1 << 30


def arrive_alone(record: Queued) -> Sequence[Transferred]:
    record.arrive()
    return joined(record.records) if isinstance(record, Chunk) else (record,)


class Transfers:
    """Passes records to `write` in order, each after the copies of its tensors have arrived.

    `arrive` waits for a record and returns the records to write, which may be none or include earlier ones.
    `written` gets it when these are written.
    At most `LIMIT_BYTES` are in flight; outputs of calls that have begun come on top. Beyond the limit
    `reserve` waits ("block") or refuses ("drop"). A single larger record is transferred alone.
    """

    def __init__(
        self,
        write: Callable[[Transferred], None],
        failed: Callable[[BaseException], None],
        *,
        arrive: Callable[[Queued], Sequence[Transferred]] = arrive_alone,
        written: Callable[[Queued], None] = lambda _: None,
        when_full: Literal["block", "drop"],
    ) -> None:
        self._arrive = arrive
        self._written = written
        self._write = write
        self._failed = failed
        self._blocks = when_full == "block"
        self._queue: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        self._bytes = 0
        self._waiting = 0  # queued records whose copies have not been waited for
        self._pending = 0  # queued records that have not been written
        self._captures = 0  # graphs that are being captured
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def reserve(self, nbytes: int) -> bool:
        """Reserve room for the inputs of a call. False if there is none and `when_full` is "drop"."""
        with self._changed:
            if self._bytes and self._bytes + nbytes > LIMIT_BYTES:
                if not self._blocks:
                    return False
                self._changed.wait_for(lambda: not self._bytes or self._bytes + nbytes <= LIMIT_BYTES)
            self._bytes += nbytes
        return True

    def reserve_more(self, nbytes: int) -> None:
        """Reserve room for the outputs of a call that has room for its inputs.

        Never refuses, because the call would be lost, and never waits, because two calls that each hold what
        the other needs would deadlock.
        """
        with self._changed:
            self._bytes += nbytes

    def release(self, nbytes: int) -> None:
        with self._changed:
            self._bytes -= nbytes
            self._changed.notify_all()

    def enqueue(self, record: Queued) -> None:
        """Write `record` once it has arrived, and release what is reserved for it."""
        with self._changed:
            self._waiting += 1
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gdnbench-capture", daemon=True)
                self._thread.start()
        self._queue.put(record)

    def begin_quiet(self) -> None:
        """Stop waiting for events until `end_quiet`; first wait for all queued records.

        While a graph is being captured, a CUDA call from another thread may end that capture with an error.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._captures += 1

    def end_quiet(self) -> None:
        with self._changed:
            self._captures -= 1
            self._changed.notify_all()

    def wait_until_written(self) -> None:
        """Wait until all records queued so far have been written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def close(self) -> None:
        """Wait until all queued records have been written, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                begun = time.monotonic()
                for arrived in self._await(record):
                    self._write(arrived)
                    if time.monotonic() - begun > _RUN_SECONDS:
                        time.sleep(_PAUSE_SECONDS)
                        begun = time.monotonic()
                self._written(record)
            except Exception as error:
                self._failed(error)
            with self._changed:
                self._pending -= 1
            self.release(_reserved(record))

    def _await(self, record: Queued) -> Sequence[Transferred]:
        with self._changed:
            self._changed.wait_for(lambda: not self._captures or self._closing)
        try:
            return self._arrive(record)
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()


def _reserved(record: Queued) -> int:
    if isinstance(record, Chunk):
        return len(record.memory)
    return record.device.reserved if record.device is not None else 0
