# SPDX-License-Identifier: Apache-2.0
"""Finds the line of the program that a launch comes from."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from types import FrameType

_SIMULATOR = str(Path(__file__).parents[1])
_LIBRARY = sysconfig.get_path("stdlib")
# Packages through which a launch goes on its way from the program to the driver.
LAUNCHERS = ("torch", "cutlass", "nvidia_cutlass_dsl", "cuda", "triton", "tvm_ffi", "cupy", "numba")


def launch_site() -> str | None:
    """`FILE:LINE in FUNCTION` of the innermost frame that is the program's or another library's, neither of a
    launcher nor of the simulator."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in LAUNCHERS and not _passes_through(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=4096)
def _passes_through(file: str) -> bool:
    if file.startswith((_SIMULATOR, "<frozen ", "<string>")):
        return True
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return file.startswith(_LIBRARY) and not installed
