# SPDX-License-Identifier: Apache-2.0
"""Timelines for Perfetto that commands write with `--timeline`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gdnbench.cli.console import print_note
from gdnbench.errors import BadInputError
from gdnbench.whole_file import replacing

if TYPE_CHECKING:
    from gdnbench.replay.predicting import Timelines


def check_timeline(path: Path | None) -> None:
    """BadInputError for a path that nothing can be written to: before the run, whose result it would lose."""
    if path is None:
        return
    code = 0
    if path.is_dir():
        code = errno.EISDIR
    elif not path.parent.is_dir():
        code = errno.ENOENT
    elif not all(os.access(place, os.W_OK) for place in _written(path)):
        code = errno.EACCES
    if code:
        raise BadInputError(f"--timeline {path}: {os.strerror(code)}")


def _written(path: Path) -> list[Path]:
    """What must be writable: a new file takes the place of one that is there, but of no device or pipe."""
    if not path.exists():
        return [path.parent]
    return [path, Path(os.path.realpath(path)).parent] if path.is_file() else [path]


def write_timeline(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a path whose file then takes the place of `path`. BadInputError if that fails."""
    try:
        with replacing(path) as unfinished:
            write(unfinished)
    except OSError as error:
        raise BadInputError(f"--timeline {path}: {error.strerror or error}") from None


def write_predicted(path: Path, timelines: Timelines) -> None:
    """Write predicted launches, or a note if there are none."""
    from gdnbench.sim.predict import write_timelines

    if timelines:
        write_timeline(path, lambda given: write_timelines(given, timelines))
    else:
        print_note(f"gdnbench: no launch is predicted; {path} is not written")
