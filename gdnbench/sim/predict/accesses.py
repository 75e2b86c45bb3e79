"""What a load or store costs the memories: cycles of shared memory with bank conflicts, sectors of
global memory."""

from __future__ import annotations

from collections.abc import Iterator

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
LINE_SECTORS = 4


def accessed(ins: Instruction, lanes: npt.NDArray[np.uint32], addresses: Addresses) -> Iterator[Accessed]:
    """The steps of executions of `ins` by these lanes, uint32[n], with these addresses, uint64[n, 32]."""
    bits = (lanes[:, None] >> np.arange(LANES, dtype=np.uint32)) & 1
    active = bits.astype(np.bool_)
    width = MATRIX_ROW if ins.form.by_rows else ins.vec * max(width_of(ins.types[-1]) // 8, 1)
    for mask, row in zip(active, addresses, strict=True):
        named = row[mask]
        space = _space(ins, int(named[0]))
        if space is Space.GLOBAL:
            first, last = named // SECTOR, (named + np.uint64(width - 1)) // SECTOR
            sectors = np.unique(np.concatenate([first, last]))
            lines = len(np.unique(sectors // np.uint64(LINE_SECTORS)))
            yield Accessed(ins.pc, space, lines, tuple(sectors.tolist()))
        elif space is Space.SHARED:
            cycles = _bank_cycles(row, mask, width)
            yield Accessed(ins.pc, space, cycles, ())
        else:
            # Local memory interleaves the words of the lanes.
            yield Accessed(ins.pc, space, -(-width // WORD), ())


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
    """Lanes whose words fill the 128 bytes of a cycle go together: 32 of 4 bytes, 16 of 8, 8 of 16. Each such
    part takes as many cycles as the most different words of one bank."""
    together = max(LANES * WORD // max(width, WORD), 1)
    total = 0
    for start in range(0, LANES, together):
        part = row[start : start + together][mask[start : start + together]]
        if not part.size:
            continue
        words = (part[:, None] // np.uint64(WORD) + np.arange(max(width // WORD, 1), dtype=np.uint64)).ravel()
        total += int(np.bincount((np.unique(words) % np.uint64(BANKS)).astype(np.int64)).max())
    return max(total, 1)
