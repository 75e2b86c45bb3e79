# SPDX-License-Identifier: Apache-2.0
"""What CuTe says on the host: layouts of shared memory, TMEM and fragments, as NumPy arrays of addresses.

Only layouts are taken from CuTe, as shapes and strides; `evaluate` is the textbook rule of a CuTe layout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")

import cutlass
import cutlass.utils.blackwell_helpers as helpers
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

DTYPES = {
    "f16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "tf32": cutlass.TFloat32,
    "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2,
}
GROUPS = {1: tcgen05.CtaGroup.ONE, 2: tcgen05.CtaGroup.TWO}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}


def on_host(build: Callable[[], tuple]) -> tuple:
    """Evaluate CuTe's layout algebra: it works inside a jit function only."""
    found: list[tuple] = []

    @cute.jit
    def trace() -> None:
        found.append(build())

    trace()
    return found[0]


def flat(shape: object, stride: object) -> list[tuple[int, int]]:
    """(extent, stride) of every leaf, in order."""
    if isinstance(shape, tuple):
        return [leaf for pair in zip(shape, stride, strict=True) for leaf in flat(*pair)]
    return [(int(shape), int(stride))]


def along(shape: object, stride: object) -> np.ndarray:
    """Offsets of one mode at coordinates 0, 1, ...: the first leaf runs fastest."""
    offsets = np.zeros(1, np.int64)
    for extent, step in flat(shape, stride):
        offsets = (np.arange(extent)[:, None] * step + offsets).ravel()
    return offsets


def evaluate(shape: tuple, stride: tuple) -> np.ndarray:
    """The offsets of all coordinates, one array axis for each top-level mode."""
    total = np.zeros((), np.int64)
    for mode in zip(shape, stride, strict=True):
        total = np.add.outer(total, along(*mode))
    return total


def swizzle(address: np.ndarray, bits: int, base: int, shift: int) -> np.ndarray:
    """CuTe's Swizzle<bits, base, shift>."""
    mask = (1 << bits) - 1 << base + shift
    return address ^ (address & mask) >> shift


def _major(mn: bool) -> OperandMajorMode:
    return OperandMajorMode.MN if mn else OperandMajorMode.K


@cache
def accumulator_layout(m: int, n: int, a: str = "bf16", ctas: int = 1) -> np.ndarray:
    """TMEM address (lane << 16 | column) of D[m, n], of a pair of CTAs of the rows of each, [m / 2, n]."""

    def build() -> tuple:
        mma = helpers.make_trivial_tiled_mma(
            DTYPES[a], DTYPES[a], _major(False), _major(False), cutlass.Float32, GROUPS[ctas], (m, n)
        )
        layout = mma.make_fragment_C(mma.partition_shape_C((m, n))).layout
        return layout.shape[0], layout.stride[0]

    return evaluate(*on_host(build))


@cache
def fragment_layout(shape: str, repeat: int) -> np.ndarray:
    """[thread, register] -> 32-bit word of the fragment, whose rows are the TMEM lanes one after another."""
    operation = {
        "32x32b": tcgen05.Ld32x32bOp,
        "16x64b": tcgen05.Ld16x64bOp,
        "16x128b": tcgen05.Ld16x128bOp,
        "16x256b": tcgen05.Ld16x256bOp,
        "16x32bx2": tcgen05.Ld16x32bx2Op,
    }[shape]

    def build() -> tuple:
        atom = cute.make_copy_atom(operation(getattr(tcgen05.Repetition, f"x{repeat}")), cutlass.Float32)
        return atom.layout_dst_tv.shape, atom.layout_dst_tv.stride

    return evaluate(*on_host(build))


@dataclass(frozen=True)
class SharedLayout:
    """A CuTe layout of shared memory: `offset[row, k]` in bytes, and the swizzle that follows."""

    offset: np.ndarray
    swizzle: tuple[int, int, int]
    element: int
    mn_major: bool

    def addresses(self, base: int) -> np.ndarray:
        """[row, k, byte]: where each byte of each element lies. CuTe swizzles the pointer, an address."""
        return swizzle(base + self.offset[..., None] + np.arange(self.element), *self.swizzle)

    def strides(self) -> tuple[int, int]:
        """(leading, stride) byte offsets as `make_umma_desc` takes them from the canonical layout."""
        bits, base, _ = self.swizzle
        unit = 16 // self.element
        across = unit << (bits if base == 4 else 3)  # elements in a row of the swizzle atom
        if self.mn_major:
            down = 4 if base == 5 else 8
            block = self._at(across, 0)
            return (self._at(0, 8), block) if bits == 0 else (block, self._at(0, down))
        return (self._at(0, unit) if bits == 0 else 16), self._at(8, 0)

    def _at(self, row: int, k: int) -> int:
        return int(self.offset[row, k]) if row < len(self.offset) else 0


@cache
def shared_layout(kind: str, name: str, mn_major: bool, rows: int, depth: int) -> SharedLayout:
    """A [rows, depth] operand tiled with a canonical atom, `kind` INTER, SW32, SW64, SW128 or SW128_32B."""
    atom_kind = getattr(tcgen05.SmemLayoutAtomKind, f"{'MN' if mn_major else 'K'}_{kind}")

    def build() -> tuple:
        layout = cute.tile_to_shape(
            tcgen05.make_smem_layout_atom(atom_kind, DTYPES[name]), (rows, depth), (0, 1)
        )
        inner = layout.inner
        return layout.outer.shape, layout.outer.stride, (inner.num_bits, inner.num_base, inner.num_shift)

    shape, stride, parameters = on_host(build)
    element = BITS[name] // 8
    return SharedLayout(evaluate(shape, stride) * element, parameters, element, mn_major)


@cache
def tmem_operand_layout(m: int, depth: int, name: str, ctas: int = 1) -> np.ndarray:
    """[m, k]: TMEM lane << 16 times elements a column, plus the element's number along the columns, of A. For
    the rows that a CTA of a pair has: [copies x m / 2, k]."""

    def build() -> tuple:
        mma = helpers.make_trivial_tiled_mma(
            DTYPES[name], DTYPES[name], _major(False), _major(False), cutlass.Float32, GROUPS[ctas],
            (m, 32), tcgen05.OperandSource.TMEM,
        )  # fmt: skip
        layout = mma.make_fragment_A(mma.partition_shape_A((m, depth))).layout
        return layout.shape, layout.stride

    offsets = evaluate(*on_host(build))  # [(m, k) of an instruction, 1, k blocks]
    blocks = offsets.shape[-1]
    rows = offsets.shape[0] // (32 * 8 // BITS[name])
    return np.concatenate([offsets[:, 0, block].reshape(-1, rows).T for block in range(blocks)], axis=1)
