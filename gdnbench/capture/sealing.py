"""The launcher's own sealer: a thread at low priority beside the captured command."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from gdnbench.store.sealer import Progress, Sealer

_NICENESS = 19


class SealingThread(threading.Thread):
    """Seals the journals in `store` until `finish` is called, and then what is left of them.

    On Linux niceness belongs to a thread, and the threads that it starts inherit it.
    """

    def __init__(self, store: Path, on_progress: Callable[[Progress], None]) -> None:
        super().__init__(name="gdnbench-sealer", daemon=True)
        self._store = store
        self._on_progress = on_progress
        self._command_ended = threading.Event()
        self.progress = Progress()
        self.error: str | None = None

    def run(self) -> None:
        try:
            os.nice(_NICENESS)
            Sealer(self._store).run(self._command_ended.is_set, self._show)
        except Exception as error:
            self.error = " ".join(f"{type(error).__name__}: {error}".split())

    def _show(self, progress: Progress) -> None:
        self.progress = progress
        self._on_progress(progress)

    def finish(self) -> None:
        """No more will come: return when everything is sealed."""
        self._command_ended.set()
        self.join()
