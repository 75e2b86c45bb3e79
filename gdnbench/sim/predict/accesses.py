# SPDX-License-Identifier: Apache-2.0
"""What a load or store costs the memories: cycles of shared memory with bank conflicts, sectors of
global memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.engine_interface import LANES, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_SIZE
from gdnbench.sim.machine.observer import Addresses
from gdnbench.sim.predict.trace import SECTOR, Accessed, Space
from gdnbench.sim.ptx.ir import Instruction
from gdnbench.sim.ptx.literals import width_of

BANKS = 32
WORD = 4
"""Shared memory has 32 banks of 4 bytes a cycle (CUDA Programming Guide, "Shared Memory")."""
MATRIX_ROW = 16
"""Bytes that a lane of ldmatrix or stmatrix addresses."""
LINE_SECTORS = 4
LINE = SECTOR * LINE_SECTORS
PATTERNS = 1 << 16
"""How many patterns of lane addresses each cache keeps."""
_ABSENT = np.iinfo(np.uint64).max
"""In place of the address of a lane that does not take part."""


def accessed(ins: Instruction, lanes: npt.NDArray[np.uint32], addresses: Addresses) -> Iterator[Accessed]:
    """A step for each of n executions of `ins`: `lanes` are the masks of active lanes, uint32[n], `addresses`
    what each lane accesses, uint64[n, 32]."""
    bits = (lanes[:, None] >> np.arange(LANES, dtype=np.uint32)) & 1
    given = np.where(bits.astype(np.bool_), addresses, _ABSENT)
    width = MATRIX_ROW if ins.form.by_rows else ins.vec * max(width_of(ins.types[-1]) // 8, 1)
    # Banks and lines are the same from any start of a line on: executions share what is computed for one.
    lines = given.min(axis=1) // np.uint64(LINE)
    patterns = np.where(given == _ABSENT, _ABSENT, given - (lines * np.uint64(LINE))[:, None])
    firsts = addresses[np.arange(len(addresses)), bits.argmax(axis=1)]
    for pattern, line, address in zip(patterns, lines.tolist(), firsts.tolist(), strict=True):
        space = _space(ins, address)
        if space is Space.GLOBAL:
            count, sectors = _global(pattern.tobytes(), width)
            start = line * LINE_SECTORS
            yield Accessed(ins.pc, space, count, tuple([start + sector for sector in sectors]))
        elif space is Space.SHARED:
            yield Accessed(ins.pc, space, _shared(pattern.tobytes(), width), ())
        else:
            # Local memory interleaves the words of the lanes.
            yield Accessed(ins.pc, space, -(-width // WORD), ())


@lru_cache(maxsize=PATTERNS)
def _global(pattern: bytes, width: int) -> tuple[int, tuple[int, ...]]:
    """How many lines, and which sectors, lanes at these places of a line access."""
    places = np.frombuffer(pattern, np.uint64)
    named = places[places != _ABSENT]
    first, last = named // SECTOR, (named + np.uint64(width - 1)) // SECTOR
    sectors = np.unique(np.concatenate([first, last]))
    return len(np.unique(sectors // np.uint64(LINE_SECTORS))), tuple(sectors.tolist())


@lru_cache(maxsize=PATTERNS)
def _shared(pattern: bytes, width: int) -> int:
    """For how many cycles shared memory is busy with lanes at these places of a line."""
    places = np.frombuffer(pattern, np.uint64)
    return _bank_cycles(places, places != _ABSENT, width)


def _space(ins: Instruction, address: int) -> Space:
    if ins.has("global", "const"):
        return Space.GLOBAL
    if ins.has("shared", "shared::cta", "shared::cluster") or (ins.form.by_rows and address < SHARED_WINDOW):
        return Space.SHARED
    if ins.has("local", "param", "param::entry"):
        return Space.LOCAL
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_SIZE:
        return Space.SHARED
    return Space.LOCAL if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_SIZE else Space.GLOBAL


def _bank_cycles(row: npt.NDArray[np.uint64], mask: npt.NDArray[np.bool_], width: int) -> int:
    """Cycles with bank conflicts. Shared memory serves groups of lanes that access 128 bytes: 32 lanes of 4
    bytes, 16 of 8, 8 of 16. A group takes as many cycles as it accesses different words of one bank."""
    together = max(LANES * WORD // max(width, WORD), 1)
    total = 0
    for start in range(0, LANES, together):
        part = row[start : start + together][mask[start : start + together]]
        if not part.size:
            continue
        words = (part[:, None] // np.uint64(WORD) + np.arange(max(width // WORD, 1), dtype=np.uint64)).ravel()
        total += int(np.bincount((np.unique(words) % np.uint64(BANKS)).astype(np.int64)).max())
    return max(total, 1)
