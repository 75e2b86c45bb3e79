# SPDX-License-Identifier: Apache-2.0
"""The least time of a launch, from instructions whose products are counted by hand."""

from __future__ import annotations

import pytest

from gdnbench.sim.predict.machines import B200, H200
from gdnbench.sim.predict.roofline import floor_of
from gdnbench.sim.predict.trace import CtaTrace, Entered, Issued, Kind, Operation, Shape
from gdnbench.sim.ptx.parser import parse

KERNEL = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
.reg .b32 %r<4>; .reg .f32 %f<4>;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
  {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};
mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
  {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r0,%r1}, {%f0,%f1,%f2,%f3};
ret;
}
"""


def test_products_of_warps() -> None:
    """Two CTAs of two warps, each of which executes both products: 2,048 MACs of 16 bits, and 4,096 of 8
    bits, which take as long. An H200 has 132 SMs with 2,048 MACs a cycle each."""
    kernel = parse(KERNEL).kernels["k"]
    trace = CtaTrace(0, [[Entered(0), Entered(1), Entered(2)]] * 2, ["MMA"] * 2, [], [])
    found = floor_of(H200, kernel, [trace, trace], 1000, memory_bytes=32.0)
    assert found.macs == 1000 * 2 * (2048 + 4096 / 2)
    assert found.unit == "tensor core"
    assert found.seconds == pytest.approx(found.macs / (132 * 2048 * 1.98e9))


def test_asynchronous_products() -> None:
    """64 products of 128x256 with rows of 32 bytes, 16 elements. They take 128 cycles each on a B200
    (umma_throughput_max.csv: 128.6), which its rate gives too."""
    operations = [Operation(Kind.PRODUCT, 0, shape=Shape(128, 256, a_in_shared=True)) for _ in range(64)]
    trace = CtaTrace(0, [[Issued(0, tuple(range(64)))]], ["MMA"], operations, [])
    found = floor_of(B200, parse(KERNEL).kernels["k"], [trace], 148, memory_bytes=0.0)
    assert found.macs == 148 * 64 * 128 * 256 * 16
    assert found.seconds * 1.965e9 == pytest.approx(64 * 128.6, rel=0.01)


def test_bytes_that_take_longer_than_the_products() -> None:
    kernel = parse(KERNEL).kernels["k"]
    trace = CtaTrace(0, [[Entered(0)]], ["MMA"], [], [])
    found = floor_of(B200, kernel, [trace], 1, memory_bytes=7.25e6)
    assert (found.unit, found.seconds) == ("HBM", pytest.approx(1e-6))
