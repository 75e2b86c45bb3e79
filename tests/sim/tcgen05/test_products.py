# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma: every kind, shape, major, swizzle and operand source against exact integer products.

Operands are small integers, so that the product is exact in every type and every model and each element
has its say: an element read from a wrong place, or twice, gives another number. Layouts come from CuTe on the
host.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.tcgen05.cute_layouts import shared_layout
from tests.sim.tcgen05.products import KIND, NUMPY, STEP, Operand, instruction_descriptor, put_tmem, result
from tests.sim.tcgen05.tensor_machine import Machine
from tests.subset import quick

A_AT = 16 * 1024
B_AT = 96 * 1024
COLUMN = 40


def integers(rng: np.random.Generator, rows: int, depth: int) -> np.ndarray:
    """Integers that all operand types hold exactly (e5m2 has three significant bits)."""
    return rng.integers(-3, 4, (rows, depth)).astype(np.float32)


def multiply(
    name: str, m: int, n: int, blocks: int, a_layout: tuple[str, bool] | None, b_layout: tuple[str, bool],
    offsets: tuple[int, int], lane: int = 0, schedule: str = "late",
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(what the machine gives, what NumPy gives); A in TMEM if `a_layout` is None."""
    kind = KIND[name]
    step, depth = STEP[kind], STEP[kind] * blocks
    rng = np.random.default_rng([m, n, blocks, *offsets])
    a, b = integers(rng, m, depth), integers(rng, n, depth)
    machine = Machine(schedule=schedule)
    machine.alloc(512)
    idesc = instruction_descriptor(
        name, name, m, n, a_mn=a_layout is not None and a_layout[1], b_mn=b_layout[1]
    )
    right = Operand(shared_layout(b_layout[0], name, b_layout[1], n, depth), B_AT + offsets[1], name)
    right.put(machine, b)
    left = None
    if a_layout is not None:
        left = Operand(shared_layout(a_layout[0], name, a_layout[1], m, depth), A_AT + offsets[0], name)
        left.put(machine, a)
    else:
        put_tmem(machine, 320, name, m, a, lane)
    for block in range(blocks):
        source = (lane << 16 | 320 + 8 * block) if left is None else left.descriptor(step * block)
        machine.mma(
            kind, lane << 16 | COLUMN, source, right.descriptor(step * block), idesc,
            a_in_tmem=left is None, accumulate=block > 0,
        )  # fmt: skip
    machine.finish()
    return result(machine, COLUMN, m, n, lane).view(np.float32), a @ b.T


K_MAJOR = [(kind, False) for kind in ("INTER", "SW32", "SW64", "SW128")]
MN_MAJOR = [(kind, True) for kind in ("INTER", "SW32", "SW64", "SW128")]
# Buffers past a 1024-byte alignment: the swizzle must follow the address, not the offset in the buffer.
OFFSETS = [(0, 0), (128, 256), (256, 512), (512, 128)]


SIXTEEN_BIT = [
    (layout, offsets, *size)
    for layout in K_MAJOR + MN_MAJOR
    for offsets in OFFSETS
    for size in ((64, 256), (128, 192))
]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("layout", "offsets", "m", "n"),
    quick(
        SIXTEEN_BIT,
        *range(0, len(SIXTEEN_BIT), 3),
        ids=[f"{kind}-{'MN' if mn else 'K'}-{at}-{m}-{n}" for (kind, mn), at, m, n in SIXTEEN_BIT],
    ),
)
def test_sixteen_bit_layouts(layout: tuple[str, bool], offsets: tuple[int, int], m: int, n: int) -> None:
    other = (layout[0], not layout[1])
    got, want = multiply("bf16", m, n, 4, layout, other, offsets)
    np.testing.assert_array_equal(got, want)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", K_MAJOR, ids=lambda layout: layout[0])
@pytest.mark.parametrize(
    ("name", "m", "n"), [("f16", 64, 8), ("tf32", 128, 24), ("e4m3", 64, 40), ("e5m2", 128, 104)]
)
def test_k_major_of_every_type(name: str, m: int, n: int, layout: tuple[str, bool]) -> None:
    got, want = multiply(name, m, n, 4, layout, layout, (384, 128))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", MN_MAJOR, ids=lambda layout: layout[0])
@pytest.mark.parametrize("m", [64, 128])
def test_mn_major_of_eight_bits(m: int, layout: tuple[str, bool]) -> None:
    a_layout = ("SW64", True) if layout[0] == "SW128" and m == 64 else layout
    got, want = multiply("e4m3", m, 256, 2, a_layout, layout, (128, 512))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize(("m", "n"), [(64, 96), (128, 32)])
def test_mn_major_of_tf32(m: int, n: int, offsets: tuple[int, int]) -> None:
    """32-bit elements have one transposed layout, 128-byte swizzle with 32-byte atoms."""
    layout = ("SW128_32B", True)
    got, want = multiply("tf32", m, n, 3, layout, layout, offsets)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["bf16", "f16", "tf32", "e4m3", "e5m2"])
@pytest.mark.parametrize(("m", "lane"), [(64, 0), (64, 16), (128, 0)])
def test_a_in_tensor_memory(name: str, m: int, lane: int) -> None:
    got, want = multiply(name, m, 48, 3, None, ("SW32", False), (0, 256), lane)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("schedule", ["early", "late", "random:3"])
def test_schedules_agree(schedule: str) -> None:
    got, want = multiply("bf16", 128, 80, 4, ("SW128", False), ("SW64", False), (0, 0), schedule=schedule)
    np.testing.assert_array_equal(got, want)


@pytest.mark.every(3)
@pytest.mark.parametrize("n", range(8, 257, 8))
@pytest.mark.parametrize("m", [64, 128])
def test_every_n(m: int, n: int) -> None:
    got, want = multiply("bf16", m, n, 1, ("SW32", False), ("SW32", False), (0, 0))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mma", ["hardware", "exact"])
@pytest.mark.parametrize("in_tmem", [False, True])
@pytest.mark.parametrize(
    ("name", "m"), [("f16", 64), ("bf16", 128), ("tf32", 64), ("e4m3", 128), ("e5m2", 64)]
)
def test_random_numbers_against_fp64(name: str, m: int, in_tmem: bool, mma: str) -> None:
    """Four products of one K each on top of each other, normally distributed operands.

    One product cuts each of its K terms and D at 2^-25 of 2^e, where e is the largest nominal exponent and
    2^e at most the largest term, and then cuts the sum to 24 bits: an error of at most (K + 1) 2^-25
    max|term| + 2^-23 |sum|, which stays when the next product adds to it. `exact` rounds once a product and
    is better than that.
    """
    kind, n, blocks = KIND[name], 56, 4
    step = STEP[kind]
    rng = np.random.default_rng(m)
    a, b = (rng.normal(size=(rows, blocks * step)).astype(NUMPY[name]) for rows in (m, n))
    if name == "tf32":  # the low 13 bits of a float are not read
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFF_E000)).view(np.float32) for x in (a, b))
    machine = Machine(mma=mma)
    machine.alloc(512)
    right = Operand(shared_layout("SW64", name, False, n, blocks * step), B_AT, name)
    right.put(machine, b)
    left = Operand(shared_layout("SW128", name, False, m, blocks * step), A_AT, name)
    if in_tmem:
        put_tmem(machine, 320, name, m, a)
    else:
        left.put(machine, a)
    idesc = instruction_descriptor(name, name, m, n)
    for block in range(blocks):
        source = 320 + 8 * block if in_tmem else left.descriptor(step * block)
        machine.mma(
            kind, COLUMN, source, right.descriptor(step * block), idesc,
            a_in_tmem=in_tmem, accumulate=block > 0,
        )  # fmt: skip
    machine.finish()
    total, bound = np.zeros((m, n)), np.zeros((m, n))
    for block in range(blocks):
        part = slice(step * block, step * block + step)
        terms = a[:, None, part].astype(np.float64) * b[None, :, part].astype(np.float64)
        largest = np.maximum(np.abs(terms).max(axis=2), np.abs(total) + bound)
        total = total + terms.sum(axis=2)
        bound = bound + (step + 1) * 2.0**-25 * largest
        bound = bound + 2.0**-23 * (np.abs(total) + bound)
    got = result(machine, COLUMN, m, n).view(np.float32)
    worst = np.unravel_index(np.argmax(np.abs(got - total) - bound), got.shape)
    assert (np.abs(got - total) <= bound).all(), (worst, got[worst], total[worst])
