"""Capture from Python, for the length of a `with` block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdnbench.capture import runtime
from gdnbench.capture.hook import CaptureFinder, install, remove
from gdnbench.capture.launch import check_store
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.recorder import Counts
from gdnbench.capture.report import Report
from gdnbench.capture.sealing import seal_segment


@contextmanager
def capturing(store: str | os.PathLike[str], options: CaptureOptions | None = None) -> Iterator[Counts]:
    """Capture what known functions, and functions decorated with `record`, do inside the block.

    Yields the counts of this process as they grow. When the block ends, everything recorded is in the store.
    Models may be built, and their modules imported, before or inside the block. Raises what `check_store`
    raises, and StoreError at the end if the store could not be written.
    """
    path = Path(store).absolute()
    check_store(path)
    capture = runtime.Capture(
        path, options or CaptureOptions(), report=Report(None), on_first_record=runtime.start_sealer
    )
    finder = CaptureFinder(lambda: capture.patcher.after_import)
    session = capture.session
    install(finder)
    capture.patcher.patch_loaded()
    runtime.running.append(capture)
    try:
        yield session.counts
    finally:
        runtime.running.remove(capture)
        remove(finder)
        capture.patcher.restore()
        session.close()
    if session.segment is not None:
        seal_segment(path, session.segment)
