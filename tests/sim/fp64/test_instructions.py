# SPDX-License-Identifier: Apache-2.0
"""Shadows of single instructions, against NumPy in double or a formula computed by hand.

f32 inputs are exact in double. Each expectation is what the chain of instructions computes if nothing is
rounded; NumPy rounds each of at most six operations to 2^-53, so 1e-14 relative holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.sim.fp64.shadowed_kernel import ShadowedRun

RELATIVE = 1e-14
Function = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Loads leave a in %f1, b in %f2; the result is stored from %f9.
CASES: dict[str, tuple[str, Function]] = {
    "sum and product": ("fma.rn.f32 %f3,%f1,%f2,%f1; sub.f32 %f9,%f3,%f2;", lambda a, b: a * b + a - b),
    "division": ("div.rn.f32 %f3,%f1,%f2; div.full.f32 %f4,%f3,%f1; mul.f32 %f9,%f3,%f4;",
                 lambda a, b: a / b * (a / b / a)),
    "functions": ("ex2.approx.ftz.f32 %f3,%f1; lg2.approx.f32 %f4,%f2; rsqrt.approx.f32 %f5,%f2;"
                  "sqrt.rn.f32 %f6,%f2; add.f32 %f7,%f3,%f4; fma.rn.f32 %f8,%f5,%f6,%f7;"
                  "tanh.approx.f32 %f5,%f1; add.f32 %f9,%f8,%f5;",
                  lambda a, b: np.exp2(a) + np.log2(b) + 1 + np.tanh(a)),
    "reciprocal": ("rcp.approx.ftz.f32 %f3,%f2; sin.approx.f32 %f4,%f1; cos.approx.f32 %f5,%f1;"
                   "mul.f32 %f6,%f4,%f5; add.f32 %f9,%f3,%f6;", lambda a, b: 1 / b + np.sin(a) * np.cos(a)),
    "minimum, maximum, sign": ("mul.f32 %f3,%f1,%f2; neg.f32 %f4,%f3; max.f32 %f5,%f3,%f4; abs.f32 %f6,%f4;"
                               "min.f32 %f7,%f3,%f4; add.f32 %f8,%f5,%f6; sub.f32 %f9,%f8,%f7;",
                               lambda a, b: 3 * np.abs(a * b)),
    "bf16 pair": ("mul.f32 %f3,%f1,%f2; cvt.rn.bf16x2.f32 %r2,%f1,%f3; mov.b32 {%h1,%h2},%r2;"
                  "cvt.f32.bf16 %f4,%h1; cvt.f32.bf16 %f5,%h2; fma.rn.f32 %f9,%f4,%f5,%f4;",
                  lambda a, b: a * b * a + a * b),
    "bf16 widened by bits": ("mul.f32 %f3,%f1,%f2; cvt.rn.bf16x2.f32 %r2,%f3,%f1; shl.b32 %r3,%r2,16;"
                             "and.b32 %r4,%r2,0xffff0000; mov.b32 %f4,%r3; mov.b32 %f5,%r4;"
                             "sub.f32 %f9,%f5,%f4;", lambda a, b: a * b - a),
    "f16 arithmetic": ("cvt.rn.f16x2.f32 %r2,%f1,%f2; fma.rn.f16x2 %r3,%r2,%r2,%r2; mov.b32 {%h1,%h2},%r3;"
                       "cvt.f32.f16 %f4,%h1; cvt.f32.f16 %f5,%h2; sub.f32 %f9,%f5,%f4;",
                       lambda a, b: a * a + a - b * b - b),
    "fp8 there and back": ("mul.f32 %f3,%f1,0f3C23D70B; cvt.rn.satfinite.e4m3x2.f32 %h1,%f3,%f1;"
                           "cvt.rn.f16x2.e4m3x2 %r2,%h1; mov.b32 {%h2,%h3},%r2; cvt.f32.f16 %f4,%h2;"
                           "cvt.f32.f16 %f5,%h3; add.f32 %f9,%f4,%f5;",
                           lambda a, b: a + a * float(np.uint32(0x3C23D70B).view(np.float32))),
    "tf32 and a mask": ("mul.f32 %f3,%f1,%f2; cvt.rna.tf32.f32 %r2,%f3; mov.b32 %r3,%f3;"
                        "and.b32 %r4,%r3,0xffffe000; mov.b32 %f4,%r2; mov.b32 %f5,%r4; add.f32 %f9,%f4,%f5;",
                        lambda a, b: 2 * a * b),
    "high and low parts": ("mul.f32 %f3,%f1,%f2; cvt.rn.bf16.f32 %h1,%f3; cvt.f32.bf16 %f4,%h1;"
                           "sub.f32 %f5,%f3,%f4; cvt.rn.bf16.f32 %h2,%f5; cvt.f32.bf16 %f6,%h2;"
                           "fma.rn.f32 %f9,%f4,%f1,%f6;", lambda a, b: a * b * a),
    "sign by xor, exponent by add": ("mul.f32 %f3,%f1,%f2; mov.b32 %r2,%f3; xor.b32 %r3,%r2,0x80000000;"
                                     "add.s32 %r4,%r3,0x01000000; mov.b32 %f9,%r4;", lambda a, b: -4 * a * b),
    "select and lop3": ("mul.f32 %f3,%f1,%f2; mul.f32 %f5,%f3,%f2; setp.gt.f32 %p1,%f1,0f00000000;"
                        "selp.f32 %f4,%f3,%f5,%p1;"
                        "mov.b32 %r2,%f4; lop3.b32 %r3,%r2,0x7fffffff,0,0xc0; mov.b32 %f9,%r3;",
                        lambda a, b: np.abs(np.where(a > 0, a * b, a * b * b))),
    "shuffle": ("mul.f32 %f3,%f1,%f2; mov.b32 %r2,%f3; shfl.sync.bfly.b32 %r3,%r2,1,0x1f,-1;"
                "mov.b32 %f4,%r3; add.f32 %f9,%f3,%f4;",
                lambda a, b: a * b + (a * b).reshape(-1, 2)[:, ::-1].reshape(-1)),
    "bytes of two registers": ("mul.f32 %f3,%f1,%f2; mul.f32 %f6,%f3,%f2; mov.b32 %r2,%f3; mov.b32 %r3,%f6;"
                               "prmt.b32 %r4,%r2,%r3,0x7632;"
                               "mov.b32 {%h1,%h2},%r4; cvt.f32.bf16 %f4,%h1; cvt.f32.bf16 %f5,%h2;"
                               "fma.rn.f32 %f9,%f4,%f5,%f4;", lambda a, b: (a * b) ** 2 * b + a * b),
    "pairs of f32": ("mul.f32 %f3,%f1,%f2; mov.b64 %rd8,{%f1,%f3}; fma.rn.f32x2 %rd9,%rd8,%rd8,%rd8;"
                     "mov.b64 {%f4,%f5},%rd9; sub.f32 %f9,%f4,%f5;",
                     lambda a, b: a * a + a - (a * b) ** 2 - a * b),
    "shared and local memory": ("mul.f32 %f3,%f1,%f2; mov.u32 %r2,tile; mad.lo.s32 %r3,%r1,8,%r2;"
                                "st.shared.v2.f32 [%r3],{%f1,%f3}; ld.shared.f32 %f4,[%r3+4];"
                                "st.local.f32 [own],%f4; ld.local.b32 %r4,[own]; mov.b32 %f5,%r4;"
                                "mul.f32 %f9,%f5,%f1;", lambda a, b: a * b * a),
    "double": ("mul.f32 %f3,%f1,%f2; cvt.f64.f32 %d1,%f3; mul.f64 %d2,%d1,%d1; cvt.rn.f32.f64 %f9,%d2;",
               lambda a, b: (a * b) ** 2),
    "clamped": ("mul.sat.f32 %f3,%f1,%f2; mul.f32 %f4,%f3,%f2; mov.f32 %f9,%f4;",
                lambda a, b: np.clip(a * b, 0, 1) * b),
}  # fmt: skip


def inputs(threads: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """a of both signs, b above zero."""
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(threads, generator=generator)
    return a, torch.rand(threads, generator=generator) + 0.25


@pytest.mark.parametrize("name", CASES)
def test_the_shadow_is_the_unrounded_result(name: str) -> None:
    body, function = CASES[name]
    a, b = inputs()
    run = ShadowedRun(body, a, b)
    exact = function(a.double().numpy(), b.double().numpy())
    assert bool(run.shadowed.all())
    np.testing.assert_allclose(run.fp64.numpy(), exact, rtol=RELATIVE, atol=RELATIVE)
    assert np.abs(run.out.double().numpy() - exact).max() > 100 * RELATIVE  # the kernel itself rounds
    assert run.lost == []


def test_a_rounding_to_an_integer_is_kept() -> None:
    """floor by `cvt.rmi` and nearest by 1.5 * 2^23 are the kernel's own; x minus one is unrounded."""
    a, b = inputs()
    body = """mul.f32 %f3,%f1,%f2; cvt.rmi.f32.f32 %f4,%f3; sub.f32 %f5,%f3,%f4;
        add.rn.f32 %f6,%f3,0f4B400000; sub.rn.f32 %f7,%f6,0f4B400000; fma.rn.f32 %f9,%f7,%f1,%f5;"""
    run = ShadowedRun(body, a, b)
    product = a.double() * b.double()
    own = (a * b).double()
    exact = own.round() * a.double() + product - own.floor()
    assert float((run.fp64 - exact).abs().max()) < RELATIVE * 10
    assert run.lost == []


def test_sums_of_large_numbers_are_not_taken_for_roundings() -> None:
    """Data of 2^23 to 2^25, as raw scores of fp8 operands are, has shadows like any other."""
    a, b = inputs()
    body = """mul.f32 %f3,%f2,0f4B189680; mul.f32 %f4,%f1,%f2; add.f32 %f5,%f3,%f4; sub.f32 %f9,%f5,%f3;"""
    run = ShadowedRun(body, a, b)
    # 2^25 cancels: 2^-53 of it is left, in two operations.
    product = a.double() * b.double()
    assert float((run.fp64 - product).abs().max()) < 2 * 2.0**25 * 2.0**-53
    assert bool(run.shadowed.all())


def test_an_exponential_by_the_exponent_field() -> None:
    """expf of libdevice: n = floor(252 t) by 12582913, 2^n by a shift of its bits, the rest by ex2."""
    a, b = inputs()
    body = """fma.rn.sat.f32 %f3,%f1,0f3BBB989D,0f3F000000; fma.rm.f32 %f4,%f3,0f437C0000,0f4B400001;
        add.f32 %f5,%f4,0fCB40007F; neg.f32 %f6,%f5; fma.rn.f32 %f7,%f1,0f3FB8AA3B,%f6;
        fma.rn.f32 %f8,%f1,0f32A57060,%f7; ex2.approx.ftz.f32 %f10,%f8; mov.b32 %r2,%f4; shl.b32 %r3,%r2,23;
        mov.b32 %f11,%r3; mul.f32 %f9,%f10,%f11;"""
    run = ShadowedRun(body, a, b)
    # log2(e) in two parts of 24 bits each.
    np.testing.assert_allclose(run.fp64.numpy(), np.exp(a.double().numpy()), rtol=2.0**-44)
    assert run.lost == []


def test_atomic_sums_in_shared_memory() -> None:
    """32 additions to one word: the shadow is their sum, exact to 31 roundings of 2^-53."""
    a, b = inputs()
    body = """mov.u32 %r2,tile; st.shared.f32 [%r2],0f00000000; bar.warp.sync -1; mul.f32 %f3,%f1,%f2;
        red.shared.add.f32 [%r2],%f3; bar.warp.sync -1; ld.shared.f32 %f9,[%r2];"""
    run = ShadowedRun(body, a, b)
    exact = float((a.double() * b.double()).sum())
    assert float((run.fp64 - exact).abs().max()) < 1e-14
    assert float((run.out.double() - exact).abs().max()) > 1e-9


def test_arithmetic_on_bits_that_means_nothing_loses_the_shadow_and_is_counted() -> None:
    a, b = inputs()
    body = "mul.f32 %f3,%f1,%f2; mov.b32 %r2,%f3; mul.lo.u32 %r3,%r2,3; add.u32 %r4,%r3,1; mov.b32 %f9,%r4;"
    run = ShadowedRun(body, a, b)
    assert not bool(run.shadowed.any())
    assert [(one.instruction, one.count) for one in run.lost] == [("mul.lo.u32", 32)]
    assert run.lost[0].place.line > 0
    assert torch.equal(run.fp64, run.out.double()) or bool(run.out.isnan().any())


def test_a_store_of_other_bits_ends_a_shadow() -> None:
    """An integer store over an f32 in shared memory leaves the integer's own value."""
    a, b = inputs()
    body = """mul.f32 %f3,%f1,%f2; mov.u32 %r2,tile; mad.lo.s32 %r3,%r1,4,%r2; st.shared.f32 [%r3],%f3;
        st.shared.u32 [%r3],1065353216; ld.shared.f32 %f9,[%r3];"""
    run = ShadowedRun(body, a, b)
    assert bool((run.fp64 == 1).all())
    assert not bool(run.shadowed.any())


def test_constants_are_the_numbers_that_they_round() -> None:
    """log2(e) as an immediate and 1/sqrt(128) as a parameter: e^(2 a / sqrt(128)) to double precision."""
    a, b = inputs()
    scale = 128**-0.5
    body = """mul.f32 %f3,%f1,%f50; mul.f32 %f4,%f3,0f3FB8AA3B; ex2.approx.ftz.f32 %f5,%f4;
        mov.b32 %f6,0f3FB8AA3B; mul.f32 %f7,%f6,%f3; ex2.approx.ftz.f32 %f8,%f7; mul.f32 %f9,%f5,%f8;"""
    run = ShadowedRun(body, a, b, scale)
    exact = np.exp(2 * a.double().numpy() * scale)
    np.testing.assert_allclose(run.fp64.numpy(), exact, rtol=RELATIVE)
    assert sorted(run.constants.values()) == [scale, np.log2(np.e)]


def test_the_upper_part_of_a_constant_in_two_parts_is_what_it_is() -> None:
    """a ln 2 with ln 2 as the f32 nearest to it and the f32 nearest to the rest, 48 bits in all."""
    a, b = inputs()
    body = "mul.f32 %f3,%f1,0f3F317218; fma.rn.f32 %f9,%f1,0fB102E308,%f3;"
    run = ShadowedRun(body, a, b)
    np.testing.assert_allclose(run.fp64.numpy(), a.double().numpy() * np.log(2), rtol=2.0**-46)
    assert run.constants == {}


def test_a_coefficient_of_a_polynomial_is_what_it_is() -> None:
    """2^x by a polynomial of degree 3 stays at the polynomial's error of about 1e-4."""
    a, b = inputs()
    body = """mov.f32 %f3,0f3D9DF09D; fma.rn.f32 %f4,%f3,%f2,0f3E6906A4; fma.rn.f32 %f5,%f4,%f2,0f3F31F519;
        fma.rn.f32 %f9,%f5,%f2,0f3F800000;"""
    run = ShadowedRun(body, a, b)
    coefficients = np.array([0x3D9DF09D, 0x3E6906A4, 0x3F31F519, 0x3F800000], np.uint32).view(np.float32)
    x = b.double().numpy()
    polynomial = np.polyval(coefficients.astype(np.float64), x)
    np.testing.assert_allclose(run.fp64.numpy(), polynomial, rtol=RELATIVE)
    assert 1e-5 < np.abs(run.fp64.numpy() - np.exp2(x)).max() < 1e-2
    assert run.constants == {}
