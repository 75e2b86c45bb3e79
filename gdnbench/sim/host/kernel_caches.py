# SPDX-License-Identifier: Apache-2.0
"""Packages that keep their compiled CuTe DSL kernels as object files, and what switches that off.

Such a file has machine code and no PTX, so that a kernel loaded from it cannot be simulated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCHES = {
    "flash_attn": ("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "0"),
    "flashinfer": ("FLASHINFER_CUTE_DSL_DISABLE_CACHE", "1"),
    "quack": ("QUACK_CACHE_ENABLED", "0"),
}
"""By package, the environment variable that switches its cache off, and the value. quack and flash_attn read
it when they are imported."""

WITHOUT_A_SWITCH = "compile it inside sim.active(), with the program's own cache of compiled kernels off"


@contextmanager
def kernel_caches_off() -> Iterator[None]:
    """Inside this block the packages of `SWITCHES` that are imported in it compile their kernels. A variable
    that is set already stays as it is."""
    given = {name: value for name, value in SWITCHES.values() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


def how_to_compile() -> str:
    """What to do so that the package that loads an object file, one of this thread's callers, compiles its
    kernel instead."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in SWITCHES:
            name, value = SWITCHES[package]
            return f"set {name}={value} before {package} is imported, and it compiles its kernels"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return WITHOUT_A_SWITCH
