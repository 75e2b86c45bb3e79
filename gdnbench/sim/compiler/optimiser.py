# SPDX-License-Identifier: Apache-2.0
"""Replaces the code of a running kernel by better code, once that is worth the time of the compiler.

A kernel that is not in the cache is compiled at `Level.BASELINE`, so that it starts early. Once a process of
a launch has taken about twice the processor time that LLVM takes at `Level.OPTIMISED`, it compiles the kernel
at that level, and leaves it in the cache for the others and for later launches. On a busy machine, where a
launch waits more than it runs, that is later by the clock. Both codes have the same blocks and the same state
in memory, so a warp changes from one to the other between two turns. Both compute the same bits.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable

import numpy as np

from gdnbench.sim.compiler import native
from gdnbench.sim.compiler.native import Compiled, Level, Loaded

# LLVM's seconds for a byte of IR at Level.OPTIMISED, on one core of an EPYC of 2023.
SECONDS_PER_BYTE = 1.2e-6
WORTH = 2.0  # times the compiler's seconds
LEAST_SECONDS = 1.0  # of a processor; a launch that takes less is never worth it
RETRY = 0.25  # seconds until a process looks again at what another one compiles

_NOBODY, _CLAIMED, _DONE = 0, 1, 2


class Optimiser:
    """Compiles one kernel better. The processes of a launch share it: one compiles, the others take the
    result from the cache. `name` is the entry's, `size` the bytes of the IR that `translate` returns."""

    def __init__(self, name: str, compiled: Compiled, size: int, translate: Callable[[], list[str]]) -> None:
        self._name, self._record, self._translate = name, compiled.record, translate
        self._state = np.frombuffer(mmap.mmap(-1, 8), np.int64)
        self._seconds = max(LEAST_SECONDS, WORTH * SECONDS_PER_BYTE * size)
        self._begun = os.getpid(), time.process_time()

    def first_look(self) -> float:
        """The time of `time.perf_counter` from which on `look` is to be called."""
        return time.perf_counter() + self._seconds

    def look(self) -> tuple[Loaded | None, float]:
        """The better code, if it is there or this process has now compiled it; and when to look again."""
        state = int(self._state[0])
        if state == _CLAIMED:
            return None, time.perf_counter() + RETRY
        if state == _NOBODY:
            left = self._seconds - self._spent()
            if left > 0:
                return None, time.perf_counter() + left
            self._state[0] = _CLAIMED
            objects = native.compile_texts(self._translate(), Level.OPTIMISED)
            native.write_cached(self._name, Compiled(objects, self._record))
            self._state[0] = _DONE
            return native.load_objects(objects), math.inf
        found = native.read_cached(self._name)  # None if the cache cannot be written
        return None if found is None else native.load_objects(found.objects), math.inf

    def _spent(self) -> float:
        """Seconds of a processor that this process has taken for the launch. The clock of a forked process
        begins at 0."""
        process, before = self._begun
        return time.process_time() - (before if process == os.getpid() else 0.0)
