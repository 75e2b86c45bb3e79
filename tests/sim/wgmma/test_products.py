# SPDX-License-Identifier: Apache-2.0
"""The micro-kernels of wgmma in both engines on other operands and in more shapes than a GPU recorded.

tests/sim/silicon replays the recorded ones; `test_recorded_sums.py` says what rule their bits admit.
"""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.run import ENGINES, run_ptx
from tests.seeds import drawn, fresh
from tests.sim.silicon.replay import aligned_copy
from tests.sim.silicon.wgmma import (
    LAYOUTS,
    TYPES,
    Case,
    Operands,
    d_matrix,
    kernel,
    random_operands,
    special_operands,
)
from tests.sim.wgmma.reference_sums import expected


def answer(case: Case, operands: Operands, engine: str, schedule: str = "late") -> np.ndarray:
    """D[64, n] as the simulator's registers hold it."""
    launch = kernel(case, operands, "product")
    arrays = [aligned_copy(buffer.data) for buffer in launch.buffers()]
    run_ptx(
        launch.ptx, "product", (1, 1, 1), (128, 1, 1), arrays, engine=engine, schedule=schedule, threads=1
    )
    return d_matrix(case, arrays[-1])


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_types(types: tuple[str, str, str], engine: str) -> None:
    """Operands of up to 40 binades, the accumulators' and special values, fixed seeds and a fresh one."""
    case = Case(*types, n=64, repeats=2)
    fresh = drawn("wgmma products", 30)
    for make, seed in ((random_operands, 1), (random_operands, fresh), (special_operands, fresh)):
        operands = make(case, seed)
        np.testing.assert_array_equal(
            answer(case, operands, engine), expected(case, operands), err_msg=f"seed {seed}"
        )


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", LAYOUTS, ids=lambda case: case.name)
def test_layouts(case: Case, engine: str) -> None:
    """Each operand's elements differ, so that a wrong place of one shows."""
    operands = random_operands(case, 7)
    np.testing.assert_array_equal(answer(case, operands, engine), expected(case, operands))


@pytest.mark.every(2)
@pytest.mark.parametrize("n", [8, 16, 24, 72, 104, 192, 248, 256])
@pytest.mark.parametrize("d", ["f32", "f16"])
def test_widths(n: int, d: str) -> None:
    case = Case(d, "f16", "f16", n, swizzle="32B")
    operands = random_operands(case, n)
    np.testing.assert_array_equal(answer(case, operands, "compiled"), expected(case, operands))


@pytest.mark.parametrize("schedule", ["early", "random:1", fresh(f"random:{drawn('wgmma schedule', 10)}")])
@pytest.mark.parametrize("engine", ENGINES)
def test_schedules_give_equal_bits(schedule: str, engine: str) -> None:
    case = Case("f32", "bf16", "bf16", 64, a_registers=True, repeats=4)
    operands = random_operands(case, 11)
    np.testing.assert_array_equal(
        answer(case, operands, engine, schedule), answer(case, operands, engine, "late")
    )


def test_small_whole_numbers_are_exact() -> None:
    """Sums that every rule agrees on: int64 says what they are."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-8, 9, shape) for shape in ((64, 16), (64, 16), (64, 64)))
    case = Case("f32", "f16", "f16", 64, b_mn=True, swizzle="64B", negate_a=True)
    operands = Operands(
        a.astype(np.float16).view(np.uint16),
        b.astype(np.float16).view(np.uint16),
        c.astype(np.float32).view(np.uint32),
    )
    got = answer(case, operands, "compiled").view(np.float32)
    np.testing.assert_array_equal(got, c - a @ b.T)


def test_bytes_keep_thirteen_bits_unlike_tcgen05() -> None:
    """1 + 2^-14 is 1 to Hopper's fp8 unit (MMA-Sim, "f32_e8m13"), and 2^-13 is kept."""
    case = Case("f32", "e5m2", "e5m2", 8)
    a, b = np.zeros((64, 32), np.uint8), np.zeros((8, 32), np.uint8)
    one, small, tiny = 0x3C, 0x24, 0x20  # 1, 2^-6, 2^-7
    a[:, 0], b[:, 0] = one, one
    a[:, 1], b[:, 1] = tiny, tiny
    operands = Operands(a, b, np.zeros((64, 8), np.uint32))
    assert (answer(case, operands, "compiled").view(np.float32) == 1.0).all()
    a[:, 1], b[:, 1] = small, tiny
    assert (answer(case, operands, "compiled").view(np.float32) == 1.0 + 2.0**-13).all()
