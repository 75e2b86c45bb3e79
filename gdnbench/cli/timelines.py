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
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        code = errno.EACCES
    if code:
        raise BadInputError(f"--timeline {path}: {os.strerror(code)}")


def write_timeline(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with the path. BadInputError if that fails."""
    try:
        write(path)
    except OSError as error:
        raise BadInputError(f"--timeline {path}: {error.strerror or error}") from None


def write_predicted(path: Path, timelines: Timelines) -> None:
    """Write predicted launches, or a note if there are none."""
    from gdnbench.sim.predict import write_timelines

    if timelines:
        write_timeline(path, lambda given: write_timelines(given, timelines))
    else:
        print_note(f"gdnbench: no launch is predicted; {path} is not written")
