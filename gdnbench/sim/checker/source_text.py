# SPDX-License-Identifier: Apache-2.0
"""The text of the source line of an access, by which a finding is known again when its line has moved."""

from __future__ import annotations

import linecache

from gdnbench.sim.errors import Place


def source_text(place: Place) -> str | None:
    """The source line of `place` without its indentation, runs of blanks as one. None without a source line,
    or if the file cannot be read here."""
    if place.file is None or place.file_line is None:
        return None
    linecache.checkcache(place.file)
    return " ".join(linecache.getline(place.file, place.file_line).split()) or None
