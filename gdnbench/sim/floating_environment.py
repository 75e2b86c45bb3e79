# SPDX-License-Identifier: Apache-2.0
"""Sets the CPU's floating-point mode to IEEE 754 defaults while a kernel is simulated.

`torch.set_flush_denormal(True)` and libraries built with fast-math make a thread treat subnormals as zero,
and `fesetround` changes rounding. Both would change the bits that NumPy and compiled code compute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Larger than `fenv_t` of any C library for Linux (x86-64: 32 bytes, AArch64: 8).
_ROOM = 64

# FE_DFL_ENV in glibc and musl: round to nearest even, keep subnormals, no traps.
_DEFAULT = ctypes.c_void_p(-1)


@cache
def _library() -> Any:
    return ctypes.CDLL(None)


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """IEEE 754 arithmetic in this thread and in the threads and processes that it starts, which inherit its
    mode. The previous mode is restored at the end."""
    before = ctypes.create_string_buffer(_ROOM)
    _library().fegetenv(before)
    _library().fesetenv(_DEFAULT)
    try:
        yield
    finally:
        _library().fesetenv(before)
