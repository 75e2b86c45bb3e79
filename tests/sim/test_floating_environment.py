# SPDX-License-Identifier: Apache-2.0
"""The process's floating-point settings change nothing in a simulation, and come back after it."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gdnbench import sim
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.floating_environment import ieee_arithmetic

ENGINES = ("interpreter", "compiled")
CTAS = 6
UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}

# Half of a subnormal, a product of normal numbers that is one, and a sum that has to be rounded.
TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data, .param .f32 small)
{
.reg .b32 %r<8>;
.reg .f32 %f<12>;
.reg .f64 %g<4>;
.reg .b64 %d<4>;
ld.param.u64 %d0, [data];
ld.param.f32 %f0, [small];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r0, %r1, 32, %r0;
mad.wide.u32 %d0, %r0, 32, %d0;
mul.f32 %f1, %f0, 0f3F000000;
cvt.rn.f32.u32 %f2, %r0;
fma.rn.f32 %f3, %f2, 0f00800000, %f0;
mul.f32 %f4, %f2, 0f1F800000;
mul.f32 %f4, %f4, 0f1F800000;
div.rn.f32 %f5, %f2, 0f40E00000;
add.f32 %f6, %f2, 0f33333333;
cvt.f64.f32 %g0, %f0;
mul.f64 %g0, %g0, 0d0010000000000000;
mul.f64 %g0, %g0, 0d3FE0000000000000;
st.global.v4.f32 [%d0], {%f1, %f3, %f4, %f5};
st.global.f32 [%d0+16], %f6;
st.global.f32 [%d0+20], %f0;
st.global.f64 [%d0+24], %g0;
ret;
}
"""


def result(engine: str, threads: int) -> np.ndarray:
    data = np.zeros(CTAS * 32 * 4, np.float64)
    # As a Python float: packing it rounds to float32.
    sim.run_ptx(TEXT, "k", (CTAS, 1, 1), (32, 1, 1), [data, 2.0**-140], engine=engine, threads=threads)
    return data.view(np.uint32)


@pytest.fixture
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def upward() -> Iterator[None]:
    library = ctypes.CDLL(None)
    library.fesetround(UPWARD[platform.machine()])
    yield
    library.fesetround(0)


def flushes() -> bool:
    return not (np.array([2.0**-140], np.float32) * np.float32(0.5)).any()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_flush_to_zero_of_the_process(engine: str, threads: int, request: pytest.FixtureRequest) -> None:
    want = result(engine, threads).reshape(-1, 8)
    # Of the first thread: half of 2^-140; 2^-140 itself, which is fma's 0 x 2^-126 + 2^-140 too.
    assert want[0, 0] == 1 << 8
    assert want[0, 1] == want[0, 5] == 1 << 9
    assert want[1, 2] == 1 << 21  # 1 x 2^-64 x 2^-64, a subnormal number: 2^-128
    request.getfixturevalue("flushing")
    assert flushes()
    assert np.array_equal(result(engine, threads).reshape(-1, 8), want)
    assert flushes()


@pytest.mark.parametrize("engine", ENGINES)
def test_rounding_of_the_process(engine: str, request: pytest.FixtureRequest) -> None:
    want = result(engine, 1)
    request.getfixturevalue("upward")
    assert np.array_equal(result(engine, 1), want)
    assert (np.ones(1, np.float32) + np.float32(2.0**-30)).item() > 1


def test_settings_come_back_after_a_fault(flushing: None) -> None:
    with pytest.raises(KernelFault):
        sim.run_ptx(TEXT, "k", (CTAS, 1, 1), (32, 1, 1), [np.zeros(4), 1.0])
    assert flushes()


def test_nested(flushing: None) -> None:
    with ieee_arithmetic():
        with ieee_arithmetic():
            assert not flushes()
        assert not flushes()
    assert flushes()
