"""Records whose tensors are still being copied from a GPU: a thread waits for the copies, not the program."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from gdnbench.capture.pending import PendingRecord

# Pinned memory is taken from the whole machine.
_LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Transfer:
    record: PendingRecord
    copied: tuple[torch.cuda.Event, ...]
    nbytes: int


class Transfers:
    """Hands records to `write` in order, each once the streams have passed the copies of its tensors.

    At most `_LIMIT_BYTES` are on their way; beyond that `put` waits ("block") or refuses ("drop"). A single
    record that is larger goes alone.
    """

    def __init__(
        self,
        write: Callable[[PendingRecord], None],
        failed: Callable[[BaseException], None],
        *,
        when_full: Literal["block", "drop"],
    ) -> None:
        self._write = write
        self._failed = failed
        self._blocks = when_full == "block"
        self._queue: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        self._bytes = 0
        self._room = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, record: PendingRecord) -> bool:
        """False: there is no room, and `when_full` is "drop"."""
        nbytes = record.nbytes
        with self._room:
            if self._bytes and self._bytes + nbytes > _LIMIT_BYTES:
                if not self._blocks:
                    return False
                self._room.wait_for(lambda: not self._bytes or self._bytes + nbytes <= _LIMIT_BYTES)
            self._bytes += nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gdnbench-capture", daemon=True)
                self._thread.start()
        self._queue.put(_Transfer(record, _events(record), nbytes))
        return True

    def close(self) -> None:
        """Wait until everything that was put has been written."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (transfer := self._queue.get()) is not None:
            try:
                for event in transfer.copied:
                    event.synchronize()
                self._write(transfer.record)
            except Exception as error:
                self._failed(error)
            with self._room:
                self._bytes -= transfer.nbytes
                self._room.notify_all()


def _events(record: PendingRecord) -> tuple[torch.cuda.Event, ...]:
    """An event on the current stream of every device that the record's tensors come from."""
    return tuple(
        torch.cuda.current_stream(torch.device(device)).record_event() for device in record.cuda_devices
    )
