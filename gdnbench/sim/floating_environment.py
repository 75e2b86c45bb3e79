"""The CPU's floating-point settings while a kernel is simulated: IEEE 754's, whatever the process has chosen.

`torch.set_flush_denormal(True)` and libraries built with fast-math make a thread's arithmetic take
subnormals for zero, and `fesetround` rounds otherwise: NumPy and compiled code would both give other bits.
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
    """IEEE 754 arithmetic in this thread, and in threads and processes that it starts: they inherit its
    settings. Those of before come back at the end."""
    before = ctypes.create_string_buffer(_ROOM)
    _library().fegetenv(before)
    _library().fesetenv(_DEFAULT)
    try:
        yield
    finally:
        _library().fesetenv(before)
