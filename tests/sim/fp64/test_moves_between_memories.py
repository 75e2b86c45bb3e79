# SPDX-License-Identifier: Apache-2.0
"""Shadows through copies, matrix fragments and `mma.sync`.

Each kernel makes products a * b in f32, moves them, and computes with what arrives. The expectation is the
same formula in double; see test_instructions.py for the tolerance.
"""

from __future__ import annotations

import numpy as np
import torch

from tests.sim.fp64.shadowed_kernel import ShadowedRun
from tests.sim.fp64.test_instructions import RELATIVE, inputs

MAKE = """mul.f32 %f3,%f1,%f2; mov.u32 %r2,tile; mad.lo.s32 %r3,%r1,4,%r2;"""


def products(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    found: np.ndarray = a.double().numpy() * b.double().numpy()
    return found


def test_cp_async_takes_shadows_from_global_to_shared_memory() -> None:
    """Half of the lanes copy, the others zero their words by a source size of 0."""
    a, b = inputs()
    body = (
        MAKE
        + """st.global.f32 [%rd7],%f3; st.shared.f32 [%r3],%f1;
        setp.ge.u32 %p1,%r1,16; selp.u32 %r4,0,4,%p1;
        cp.async.ca.shared.global [%r3],[%rd7],4,%r4; cp.async.wait_all; ld.shared.f32 %f4,[%r3];
        fma.rn.f32 %f9,%f4,%f1,%f3;"""
    )
    run = ShadowedRun(body, a, b)
    product = products(a, b)
    copied = np.where(np.arange(32) < 16, product, 0)
    np.testing.assert_allclose(run.fp64.numpy(), copied * a.double().numpy() + product, rtol=RELATIVE)


def test_bulk_copies_and_reductions_take_shadows_along() -> None:
    """Shared to global as a sum onto a * b, then back by another bulk copy: 2 * a * b."""
    a, b = inputs()
    body = (
        MAKE
        + """st.global.f32 [%rd7],%f3; st.shared.f32 [%r3],%f3;
        fence.proxy.async; bar.warp.sync -1;
        setp.ne.u32 %p1,%r1,0; @%p1 bra JOINED;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd3],[%r2],128;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        add.u32 %r5,%r2,1024; mbarrier.init.shared.b64 [%r5],1;
        mbarrier.arrive.expect_tx.shared.b64 %rd8,[%r5],128;
        add.u32 %r6,%r2,2048;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6],[%rd3],128,[%r5];
        WAIT: mbarrier.try_wait.shared.b64 %p2,[%r5],%rd8; @!%p2 bra WAIT;
        JOINED: bar.warp.sync -1; ld.shared.f32 %f4,[%r3+2048]; mul.f32 %f9,%f4,%f1;"""
    )
    run = ShadowedRun(body, a, b)
    np.testing.assert_allclose(run.fp64.numpy(), 2 * products(a, b) * a.double().numpy(), rtol=RELATIVE)


def test_fragments_and_mma_sync() -> None:
    """X = bf16 of 8 x 8 products, written by stmatrix, read transposed by ldmatrix and moved by movmatrix, as
    the B of a product with A of ones: D[row, n] = sum over k of the 16 B[k, n], twice the column's sum."""
    a, b = inputs(32)
    body = (
        MAKE
        + """cvt.rn.bf16x2.f32 %r10,%f3,%f3; and.b32 %r11,%r1,7; mad.lo.s32 %r12,%r11,16,%r2;
        stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r12],{%r10}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r13},[%r12];
        movmatrix.sync.aligned.m8n8.trans.b16 %r14,%r13;
        movmatrix.sync.aligned.m8n8.trans.b16 %r15,%r14;
        mov.u32 %r20,0x3f803f80; mov.f32 %f20,0f00000000;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f21,%f22,%f23,%f24},
            {%r20,%r20,%r20,%r20},{%r15,%r13},{%f20,%f20,%f20,%f20};
        mov.f32 %f9,%f21;"""
    )
    run = ShadowedRun(body, a, b)
    # Lane 4 g + t has X[g, 2t] = X[g, 2t + 1] = a b of the lane; ldmatrix.trans gives B[k, n] = X[k, n] as
    # (n, k) pairs, so that n is a column of X.
    x = np.repeat(products(a, b).reshape(8, 4), 2, axis=1)
    d = 2 * x.sum(axis=0)
    lanes = np.arange(32)
    np.testing.assert_allclose(run.fp64.numpy(), d[2 * (lanes % 4)], rtol=RELATIVE, atol=RELATIVE)
    assert bool(run.shadowed.all())
    assert np.abs(run.out.numpy() - d[2 * (lanes % 4)]).max() > 1e-4
