# SPDX-License-Identifier: Apache-2.0
"""Capture from Python, within a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gdnbench.capture import runtime
from gdnbench.capture.destination import check_objects, local_store
from gdnbench.capture.hook import CaptureFinder, install_finder, remove_finder
from gdnbench.capture.launch import check_store
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.recorder import Counts
from gdnbench.capture.report import Report
from gdnbench.capture.sealing import seal_segment
from gdnbench.store.address import Address, checked_url, is_url


@contextmanager
def capturing(store: Address, options: CaptureOptions | None = None) -> Iterator[Counts]:
    """Capture the calls of known functions and of functions decorated with `record` inside the block.

    Yields the counts of this process, which grow while the block runs. When the block ends, all records are
    in the store. Models may be built, and their modules imported, before or inside the block. Raises what
    `CaptureOptions.check_switch` and `check_store` raise; for a URL, what `check_objects` raises; and at the
    end what `seal_segment` raises.
    """
    options = options or CaptureOptions()
    options.check_switch()
    if is_url(store):
        check_objects(checked_url(str(store)), options)
    path = local_store(store)
    check_store(path)
    capture = runtime.Capture(path, options, report=Report(None), on_first_record=runtime.start_sealer)
    finder = CaptureFinder(lambda: capture.patcher.after_import)
    session = capture.session
    install_finder(finder)
    capture.patcher.patch_loaded()
    runtime.running.append(capture)
    try:
        yield session.counts
    finally:
        runtime.running.remove(capture)
        remove_finder(finder)
        capture.patcher.restore()
        session.close()
    if session.segment is not None:
        seal_segment(path, session.segment)
