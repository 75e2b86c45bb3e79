# SPDX-License-Identifier: Apache-2.0
"""The progress line that a capture prints on stderr."""

from __future__ import annotations

import time
from typing import TextIO

from gdnbench.store.sealer import Progress
from gdnbench.units import human_bytes

_SECONDS_BETWEEN = 0.5


class ProgressLine:
    """Rewrites one line of a terminal, at most twice a second. Writes nothing to a file or pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._shown_at = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if not self._live or now - self._shown_at < _SECONDS_BETWEEN:
            return
        self._shown_at = now
        self._stream.write(
            f"\r\x1b[Kgdnbench: {progress.records} records, {human_bytes(progress.bytes)} sealed, "
            f"{human_bytes(progress.queued_bytes)} queued, {progress.dropped} dropped"
        )
        self._stream.flush()

    def clear(self) -> None:
        if self._shown_at:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
