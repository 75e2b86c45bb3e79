"""Records whose tensors are still being copied from a GPU: a thread waits for the copies, not the program."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from gdnbench.capture.inflight import PendingRecord

# On the device, which the program may need to the last, and pinned, which is taken from the whole machine.
LIMIT_BYTES = 1 << 30


def arrive_alone(record: PendingRecord) -> Sequence[PendingRecord]:
    record.arrive()
    return (record,)


class Transfers:
    """Hands records to `write` in order, each once the copies of its tensors have arrived.

    `arrive` waits for a record, and says which are to be written: others that waited for it perhaps, or none.

    At most `LIMIT_BYTES` are on their way, with outputs of calls that have begun on top; beyond that
    `reserve` waits ("block") or refuses ("drop"). A single record that is larger goes alone.
    """

    def __init__(
        self,
        write: Callable[[PendingRecord], None],
        failed: Callable[[BaseException], None],
        *,
        arrive: Callable[[PendingRecord], Sequence[PendingRecord]] = arrive_alone,
        when_full: Literal["block", "drop"],
    ) -> None:
        self._arrive = arrive
        self._write = write
        self._failed = failed
        self._blocks = when_full == "block"
        self._queue: queue.SimpleQueue[PendingRecord | None] = queue.SimpleQueue()
        self._bytes = 0
        self._waiting = 0  # records put whose copies have not been waited for
        self._pending = 0  # records put that have not been written
        self._captures = 0  # graphs that are being captured
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def reserve(self, nbytes: int) -> bool:
        """Room for the inputs of a call. False: there is none, and `when_full` is "drop"."""
        with self._changed:
            if self._bytes and self._bytes + nbytes > LIMIT_BYTES:
                if not self._blocks:
                    return False
                self._changed.wait_for(lambda: not self._bytes or self._bytes + nbytes <= LIMIT_BYTES)
            self._bytes += nbytes
        return True

    def reserve_more(self, nbytes: int) -> None:
        """Room for the outputs of a call that has room for its inputs: never refused, for it would be lost,
        nor waited for, as two calls that hold what the other needs would wait for ever."""
        with self._changed:
            self._bytes += nbytes

    def release(self, nbytes: int) -> None:
        with self._changed:
            self._bytes -= nbytes
            self._changed.notify_all()

    def put(self, record: PendingRecord) -> None:
        """Write `record` once it has arrived, and release what is reserved for it."""
        with self._changed:
            self._waiting += 1
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gdnbench-capture", daemon=True)
                self._thread.start()
        self._queue.put(record)

    def begin_quiet(self) -> None:
        """No event is waited for from here on: while a graph is captured, a call into CUDA from another
        thread may end the capture with an error. What was put is waited for first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._captures += 1

    def end_quiet(self) -> None:
        with self._changed:
            self._captures -= 1
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until everything that was put so far has been written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def close(self) -> None:
        """Wait until everything that was put has been written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                for arrived in self._await(record):
                    self._write(arrived)
            except Exception as error:
                self._failed(error)
            with self._changed:
                self._pending -= 1
            self.release(record.device.reserved if record.device is not None else 0)

    def _await(self, record: PendingRecord) -> Sequence[PendingRecord]:
        with self._changed:
            self._changed.wait_for(lambda: not self._captures or self._closing)
        try:
            return self._arrive(record)
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()
