"""Sealing what captured processes write: beside them, at low priority, and to the end once they are done."""

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

_NICENESS = 19
# Processes that the command left behind are mostly about to end too.
_GRACE_SECONDS = 5.0


def seal_segment(store: Path, segment: str) -> None:
    """Return once the journal of `segment`, whose writer is closed, is sealed: by us or by who works on it;
    and, where `store` is a spool's, has arrived.

    StoreError if the store cannot be written; the journal is then still there. CannotRunError if the object
    store cannot be reached; the spool then keeps what has not arrived.
    """
    sealer = Sealer(store)
    try:
        while segment in sealer.poll().busy:
            time.sleep(IDLE_SECONDS)
    finally:
        sealer.close()
    spool = Spool.of(store)
    if spool is not None:
        upload_spool(spool)


class SealingThread(threading.Thread):
    """Seals all journals in `store` beside the captured command, whose processes write notes to `report`.

    A store may be captured into by several commands at once: whose sealer takes a journal does not matter.
    On Linux, niceness is of a thread and those that it starts.
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
            Sealer(self._store).run(self._may_stop, self._show)
        except Exception as error:
            self.error = " ".join(f"{type(error).__name__}: {error}".split())

    def _may_stop(self) -> bool:
        """The command ended, and with it, or within the grace, whatever it started."""
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
        """No more will come: return when everything is sealed."""
        self._command_ended.set()
        self.join()
