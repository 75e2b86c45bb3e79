# SPDX-License-Identifier: Apache-2.0
"""Seals the journals of captured processes: in a low-priority thread while they run, and completely once they
end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gdnbench.capture.report import read_report, segments_in
from gdnbench.store.sealer import IDLE_SECONDS, Progress, Sealer
from gdnbench.store.spool import Spool
from gdnbench.store.upload import upload_spool
from gdnbench.store.zarr_loop import end_zarr_loop_at_exit

_NICENESS = 19
# Processes that outlive the command usually end soon after it.
_GRACE_SECONDS = 5.0


def seal_segment(store: Path, segment: str) -> None:
    """Wait until the journal of `segment`, whose writer is closed, is sealed by us or by another sealer.

    If `store` is a spool, also wait until the object store has everything. StoreError if the store cannot be
    written; the journal is kept. CannotRunError if the object store cannot be reached; the spool then keeps
    what is not uploaded.
    """
    sealer = Sealer(store)
    try:
        while segment in sealer.poll().busy:
            time.sleep(IDLE_SECONDS)
    finally:
        sealer.close()
    spool = Spool.of_store(store)
    if spool is not None:
        upload_spool(spool)


class SealingThread(threading.Thread):
    """Seals all journals in `store` beside the captured command, whose processes write events to `report`.

    Several commands may capture into one store at once; any of their sealers may take a journal. On Linux,
    niceness belongs to a thread and the threads that it starts.
    """

    def __init__(self, store: Path, report: Path, on_progress: Callable[[Progress], None]) -> None:
        super().__init__(name="gdnbench-sealer", daemon=True)
        self._store = store
        self._report = report
        self._on_progress = on_progress
        self._command_ended = threading.Event()
        self._waits_until: float | None = None
        self.progress = Progress()
        self.error: str | None = None

    def run(self) -> None:
        try:
            os.nice(_NICENESS)
            Sealer(self._store).run_until(self._may_stop, self._show)
        except Exception as error:
            self.error = " ".join(f"{type(error).__name__}: {error}".split())

    def _may_stop(self) -> bool:
        """Whether the command and the processes that it left have ended, or the grace period is over."""
        if not self._command_ended.is_set():
            return False
        if self._waits_until is None:
            self._waits_until = time.monotonic() + _GRACE_SECONDS
            return False
        waited_for = {*self.progress.live, *self.progress.busy}
        mine = segments_in(read_report(self._report)) if waited_for else None
        settled = not (waited_for if mine is None else waited_for & mine)
        return settled or time.monotonic() > self._waits_until

    def _show(self, progress: Progress) -> None:
        self.progress = progress
        self._on_progress(progress)

    def finish(self) -> None:
        """Tell the thread that the command has ended, and wait until everything is sealed."""
        self._command_ended.set()
        self.join()
        end_zarr_loop_at_exit()
