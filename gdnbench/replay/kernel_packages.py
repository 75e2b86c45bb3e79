# SPDX-License-Identifier: Apache-2.0
"""Kernels of packages in a folder of their own: `pip install --no-deps --target FOLDER ...`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdnbench.errors import BadInputError

VARIABLE = "PYTHONPATH"


@contextmanager
def kernel_packages(folder: Path | None) -> Iterator[None]:
    """Inside this block imports look into `folder` first, also those of processes that are started. None
    changes nothing. BadInputError if it is no folder.

    A package that is imported already stays as it is, so the folder should hold what the kernel needs and
    this environment lacks, and nothing else: that is what pip's `--no-deps` is for.
    """
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise BadInputError(f"--kernel-env {folder} is no folder; install packages into it with pip --target")
    path = str(folder.resolve())
    before = os.environ.get(VARIABLE)
    sys.path.insert(0, path)
    os.environ[VARIABLE] = os.pathsep.join(filter(None, (path, before)))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(path)
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
