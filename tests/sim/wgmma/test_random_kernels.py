# SPDX-License-Identifier: Apache-2.0
"""Random legal kernels of wgmma: both engines under every schedule agree, and with exact fractions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gdnbench.sim.machine import wgmma, wgmma_fragment
from gdnbench.sim.machine.tcgen05_operand import Gather
from gdnbench.sim.run import ENGINES, run_ptx
from gdnbench.sim.tensorcore import product
from tests.seeds import drawn, fresh
from tests.sim.wgmma.exact_sums import Types, fused_sum
from tests.sim.wgmma.kernel_text import THREADS, answers, inputs, kernel_text, output_words
from tests.sim.wgmma.random_kernels import Codes, Layout, M, RandomKernel, expected_entry, random_kernel

ENTRIES = 32  # of each accumulator, in fractions: one bit more or less of the cut shows in 5 to 30 % of f32's
FRESH = drawn("wgmma")
HALVED = 1795319972  # half of an f32 accumulator was once taken for one in flight here
BUSY = 431  # two warpgroups; f16, tf32 and bytes, D of f32 and f16; every kind of step and of wait


def words(kernel: RandomKernel, text: str, engine: str, schedule: str) -> Codes:
    """The registers of D as the kernel stored them."""
    out = np.zeros(output_words(kernel), np.uint32)
    arrays = [kernel.image.view(np.uint32).copy(), inputs(kernel), out]
    block = (THREADS * len(kernel.groups), 1, 1)
    run_ptx(text, "k", (1, 1, 1), block, arrays, engine=engine, schedule=schedule, threads=1)
    return out


def check_entries(kernel: RandomKernel, stored: Codes) -> None:
    """Random entries of every accumulator against their sums in fractions."""
    rng = random.Random(kernel.seed)
    for g, (group, matrices) in enumerate(zip(kernel.groups, answers(kernel, stored), strict=True)):
        for i, (one, d) in enumerate(zip(group.accumulators, matrices, strict=True)):
            for row, column in ((rng.randrange(M), rng.randrange(one.n)) for _ in range(ENTRIES)):
                got, due = int(d[row, column]), expected_entry(group, i, row, column)
                assert got == due, (
                    f"seed {kernel.seed}: warpgroup {g}, accumulator {i} ({'.'.join(one.types)}, n {one.n}), "
                    f"D[{row}, {column}] is 0x{got:x}, the sum is 0x{due:x}; "
                    f"layouts {[stored.layout for stored in (*one.a, *one.b)]}"
                )


def check(seed: int) -> None:
    """All of it for one seed, which every failure and fault names."""
    try:
        kernel = random_kernel(seed)
        compare(kernel, kernel_text(kernel))
    except Exception as error:
        error.add_note(f"random_kernel({seed})")
        raise


def compare(kernel: RandomKernel, text: str) -> None:
    first = None
    for engine in ENGINES:
        for schedule in ("late", "early", f"random:{kernel.seed % 97}"):
            stored = words(kernel, text, engine, schedule)
            if first is None:
                first = stored
                check_entries(kernel, stored)
            np.testing.assert_array_equal(stored, first, err_msg=f"{engine}, {schedule}")


@pytest.mark.parametrize("seed", [HALVED, BUSY, fresh(FRESH)])
def test_engines_schedules_and_fractions_agree(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("ten", range(10))
def test_a_hundred_fresh_seeds(ten: int) -> None:
    for seed in range(FRESH + 1 + 10 * ten, FRESH + 11 + 10 * ten):
        check(seed)


@pytest.mark.parametrize(
    ("types", "small", "count", "due"),
    [
        # 1 and `count` products 2^-12 x small. Of halves, 2^-25 is kept in the sum and 2^-26 is not; f32 then
        # keeps 2^-23, toward zero.
        (("f32", "f16", "f16"), 0x0800, 4, 0x3F800001),  # 2^-13: four make 2^-23
        (("f32", "f16", "f16"), 0x0800, 3, 0x3F800000),
        (("f32", "f16", "f16"), 0x0400, 15, 0x3F800000),  # 2^-14: each is cut
        # Half accumulators keep 2^-10, to nearest even: 2^-11 is a tie.
        (("f16", "f16", "f16"), 0x4000, 1, 0x3C00),  # 2: 2^-11
        (("f16", "f16", "f16"), 0x4000, 3, 0x3C02),  # 3 x 2^-11 is a tie too, between 1 and 2 x 2^-10
    ],
)
def test_exact_sums_by_hand(types: Types, small: int, count: int, due: int) -> None:
    a, b = [0] * 16, [0] * 16
    a[0] = b[0] = 0x3C00
    a[1 : count + 1], b[1 : count + 1] = [0x0C00] * count, [small] * count  # 2^-12
    assert fused_sum(types, a, b, None) == due


def test_exact_sums_of_bytes_by_hand() -> None:
    """1 + 2^-14 is 1, 1 + 2^-13 is kept, and so is the sum's fraction: 2 + 2^-13 is 2."""
    one, types = 0x3C, ("f32", "e5m2", "e5m2")  # 0x24 is 2^-6, 0x20 is 2^-7
    assert fused_sum(types, [one, 0x20], [one, 0x20], None) == 0x3F800000
    assert fused_sum(types, [one, 0x24], [one, 0x20], None) == 0x3F800000 | 1 << 10
    assert fused_sum(types, [one, 0x24, one], [one, 0x20, one], None) == 0x40000000
    assert fused_sum(types, [one, 0x7C], [one, 0], None) == 0x7FFFFFFF  # Inf x 0
    assert fused_sum(types, [one, 0xFC], [one, one], 0x7F7FFFFF) == 0xFF800000  # -Inf


def test_layouts_by_hand() -> None:
    """Halves; 16-byte chunks of row r of a 128-byte line trade places by r, as `Swizzle<3, 4, 3>` says."""
    k_major = Layout("128B", False, 0, 1024).offsets(16, 16, 2)
    assert [k_major[at] for at in ((0, 8), (1, 0), (3, 9), (9, 0))] == [16, 144, 384 + 34, 1024 + 144]
    mn_major = Layout("none", True, 512, 128).offsets(16, 16, 2)
    assert [mn_major[at] for at in ((1, 0), (0, 1), (8, 0), (0, 8))] == [2, 16, 128, 512]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("constant", "bits"),
    [
        ("FRACTION_BITS", 13),
        ("FRACTION_BITS", 24),
        ("FRACTION_BITS", 26),
        ("BYTE_FRACTION_BITS", 12),
        ("BYTE_FRACTION_BITS", 14),
    ],
)
def test_another_cut_is_found(constant: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = random_kernel(BUSY)
    monkeypatch.setattr(product, constant, bits)
    with pytest.raises(AssertionError, match=rf"seed {BUSY}: warpgroup \d, accumulator \d"):
        check_entries(kernel, words(kernel, kernel_text(kernel), "interpreter", "late"))


@pytest.mark.parametrize("engine", ENGINES)
def test_swapped_offsets_are_found(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leading offset read as the stride and the other way around."""
    fields = 0x3FFF << 16 | 0x3FFF << 32

    def swapped(bits: int, mn_major: bool, rows: int, k: int, element: int) -> Gather:
        leading, stride = bits >> 16 & 0x3FFF, bits >> 32 & 0x3FFF
        return wgmma_fragment.locate(
            bits & ~fields | stride << 16 | leading << 32, mn_major, rows, k, element
        )

    kernel = random_kernel(BUSY)
    monkeypatch.setattr(wgmma, "locate", swapped)
    with pytest.raises(AssertionError, match=rf"seed {BUSY}: warpgroup \d, accumulator \d"):
        check_entries(kernel, words(kernel, kernel_text(kernel), engine, "late"))
