# SPDX-License-Identifier: Apache-2.0
"""ldmatrix, stmatrix and movmatrix: which lane gets which element, plain and transposed.

Every warp owns 512 bytes of shared memory; its rows are given to the lanes in a shuffled order, so that a
mix-up of row addresses shows as well as one of elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.sim.silicon.elementwise import Operation, asm, elementwise
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.patterns import U32, random_words

WARPS = 4
COUNT = 32 * WARPS

# %warp: the warp's first byte; its 512 bytes are filled with the four input words of each lane.
FILL = """.reg .b32 %warp, %row, %lane;
and.b32 %warp, %mine, -512;
mov.u32 %lane, %laneid;
mad.lo.s32 %row, $e, 16, %warp;
"""


def unique_words(start: int) -> U32:
    """Every 16-bit half has a number of its own."""
    low = np.arange(start, start + 2 * COUNT, 2, dtype=np.uint32)
    return low | (low + np.uint32(1)) << np.uint32(16)


def rows() -> U32:
    """A permutation of 0..31 for each warp: the 16-byte row that each lane points at."""
    return np.concatenate([random_words(131 + w, 32).argsort(kind="stable") for w in range(WARPS)]).astype(
        np.uint32
    )


def load(count: int, transposed: str) -> Operation:
    registers = ", ".join(("$d", "$d1", "$d2", "$d3")[:count])
    spelling = f"ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16"
    text = "st.shared.v4.b32 [$s], {$a, $b, $c, $f};\nbar.warp.sync -1;\n"
    text += f"{spelling} {{{registers}}}, [%row];\nbar.warp.sync -1;"
    return asm(spelling, text, *["b32"] * count)


def store(count: int, transposed: str) -> Operation:
    """Shared memory afterwards: 16 bytes a lane."""
    registers = ", ".join(("$a", "$b", "$c", "$f")[:count])
    spelling = f"stmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16"
    text = "st.shared.v4.b32 [$s], {-1, -1, -1, -1};\nbar.warp.sync -1;\n"
    text += f"{spelling} [%row], {{{registers}}};\nbar.warp.sync -1;\n"
    text += "ld.shared.v4.b32 {$d, $d1, $d2, $d3}, [$s];\nbar.warp.sync -1;"
    return asm(spelling, text, *["b32"] * 4)


def moves() -> MicroKernel:
    operations = [make(n, t) for make in (load, store) for n in (1, 2, 4) for t in ("", ".trans")]
    name = "movmatrix.sync.aligned.m8n8.trans.b16"
    operations.append(asm(name, f"{name} $d, $a;", "b32"))
    inputs = [unique_words(2 * COUNT * i) for i in range(3)] + [rows(), unique_words(6 * COUNT)]
    kernel_prologue = FILL.replace("$e", "%r3")  # the fourth input
    return elementwise("matrix_moves", inputs, operations, prologue=kernel_prologue, shared=True)


KERNELS: tuple[Callable[[], MicroKernel], ...] = (moves,)
