# SPDX-License-Identifier: Apache-2.0
"""Ends zarr's thread at the end of a process.

zarr runs its input and output in a thread with an event loop. At exit it waits 0.2 s for this thread, then
closes the loop all the same, which prints a traceback if the thread still runs. The thread that seals has the
lowest priority, and so have the threads that it starts: on a busy machine zarr's needs longer.
"""

from __future__ import annotations

import atexit
import sys

_STOP_SECONDS = 30.0


def end_zarr_loop_at_exit() -> None:
    """Wait for zarr's thread at exit, before zarr does. Call it once zarr is imported: the function that was
    registered last runs first. Idempotent."""
    atexit.unregister(_end_loop)
    atexit.register(_end_loop)


def _end_loop() -> None:
    sync = sys.modules.get("zarr.core.sync")
    (loop,), (thread,) = getattr(sync, "loop", (None,)), getattr(sync, "iothread", (None,))
    if loop is not None and thread is not None and thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_SECONDS)
