# SPDX-License-Identifier: Apache-2.0
"""Makes the last level of cache cold, and checks that it is.

A "cold" time that was warm is off by a third and looks like a good kernel, so cold is not assumed. The
control reads a record's own buffers in three ways: as rounds do (`cold`), the same buffers again and again
(`warm`), and memory that nothing read since more than the cache was written and read elsewhere (`known`).
Cold holds where `cold` is as slow as `known`.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from gdnbench.timing.result import Control

MARGIN = 0.06
"""Of a time: what placement alone moves identical kernels by, and `cold` and `known` are different memory."""


class Flush:
    """Reads `size` bytes of its own, so that nothing else is in the cache, and nothing of it is dirty: what
    the cache would first have to write back is not left to whoever is timed next."""

    def __init__(self, device: torch.device, size: int) -> None:
        self._buffer = torch.zeros(-(-size // 8), dtype=torch.int64, device=device)
        self._sum = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def bytes(self) -> int:
        return self._buffer.nbytes

    def __call__(self) -> None:
        read_memory(self._buffer, self._sum)


class Eviction:
    """What `known` is made cold with, and nothing else: memory of its own written, then other read."""

    def __init__(self, device: torch.device, size: int) -> None:
        self._written = torch.zeros(-(-size // 8), dtype=torch.int64, device=device)
        self._flush = Flush(device, size)

    def __call__(self) -> None:
        self._written.add_(1)
        self._flush()


def read_memory(memory: Tensor, total: Tensor) -> None:
    """Every byte of `memory` [n] int64, into `total` [] int64."""
    torch.sum(memory, dim=0, out=total)


def last_level(device: torch.device) -> int | None:
    """Bytes of the last level of cache; None where the machine does not say."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [
        _bytes(path.read_text()) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    if sizes:
        return max(sizes)
    names = [name for name in os.sysconf_names if name in ("SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")]
    return max((os.sysconf(name) for name in names), default=0) or None


def _bytes(text: str) -> int:
    """Of "32768K", as the kernel writes sizes."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text.strip()[-1:], 1)
    return int(text.strip().rstrip("KMG")) * unit


def judged(cold: float, warm: float, known: float, size: int, cache_bytes: int | None) -> Control:
    """The control of cold rounds.

    `cold` may be MARGIN faster than `known`. Whether that means anything is what `warm` is for: it has to be
    faster by twice as much, or the control could not have seen a warm cache.
    """
    holds: bool | None
    if warm > known * (1 - 2 * MARGIN):
        if cache_bytes is not None and size > cache_bytes:
            holds, reason = True, "a launch's own bytes are more than the cache holds"
        else:
            holds = None
            reason = "the same buffers again and again are read no faster than memory: the control is blind"
    elif cold >= known * (1 - MARGIN):
        holds, reason = True, "as slow as memory that nothing had read"
    else:
        part = min((known - cold) / (known - warm), 1.0)
        holds, reason = False, f"about {part:.0%} of a launch's bytes were still in the cache"
    return Control(cold, warm, known, size, cache_bytes, holds, reason)


def judged_warm(warm: float, known: float, size: int, cache_bytes: int | None) -> Control:
    """The control of warm rounds: `cold` is `known`."""
    holds: bool | None
    if warm <= known * (1 - 2 * MARGIN):
        holds, reason = True, "faster than memory that nothing had read"
    elif cache_bytes is not None and size > cache_bytes:
        holds, reason = False, "a launch's own bytes are more than the cache holds"
    else:
        holds, reason = None, "no faster than memory that nothing had read: the control is blind"
    return Control(known, warm, known, size, cache_bytes, holds, reason)
