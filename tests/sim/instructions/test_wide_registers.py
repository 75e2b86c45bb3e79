# SPDX-License-Identifier: Apache-2.0
"""Registers of 128 bits: mov packs and unpacks them, ld and st move them (PTX ISA, "mov", "ld", "st")."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim import run_ptx
from gdnbench.sim.errors import FaultKind, KernelFault, PtxSyntaxError, UnsupportedError

KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 from, .param .u64 to)
{{
.reg .pred %p;
.reg .b32 %t, %s;
.reg .b64 %d<8>, %lo, %hi;
.reg .b128 %q<3>, %other;
.shared .align 16 .b8 tile[512];
ld.param.u64 %d0, [from];
ld.param.u64 %d1, [to];
mov.u32 %t, %tid.x;
mul.wide.u32 %d2, %t, 16;
add.u64 %d0, %d0, %d2;
add.u64 %d1, %d1, %d2;
{body}
ret;
}}
"""
SHARED = "cvt.u32.u64 %s, %d2;\nmov.u32 %t, tile;\nadd.s32 %s, %s, %t;\n"
# What is stored, of (lo, hi).
BODIES = {
    "st.global.b128 of what ld.global.b128 loads": (
        "ld.global.b128 %q0, [%d0];\nst.global.b128 [%d1], %q0;",
        lambda pair: pair,
    ),
    "mov.b128 to and from halves": (
        "ld.global.v2.b64 {%lo, %hi}, [%d0];\nmov.b128 %q1, {%hi, %lo};\nmov.b128 %other, %q1;\n"
        "mov.b128 {%d4, %d5}, %other;\nst.global.v2.b64 [%d1], {%d4, %d5};",
        lambda pair: pair[:, ::-1],
    ),
    "a move under a guard": (
        "ld.global.b128 %q0, [%d0];\nmov.b128 %q1, {%d2, %d2};\nsetp.lt.u32 %p, %t, 9;\n"
        "@%p mov.b128 %q1, %q0;\nst.global.b128 [%d1], %q1;",
        lambda pair: np.where(np.arange(32)[:, None] < 9, pair, 16 * np.arange(32, dtype=np.uint64)[:, None]),
    ),
    "shared memory": (
        SHARED + "ld.global.nc.b128 %q2, [%d0];\nst.shared.b128 [%s], %q2;\nld.shared.b128 %q0, [%s];\n"
        "mov.b128 {%lo, %hi}, %q0;\nxor.b64 %lo, %lo, %hi;\nmov.b128 %q0, {%lo, %hi};\n"
        "st.global.b128 [%d1], %q0;",
        lambda pair: np.stack((pair[:, 0] ^ pair[:, 1], pair[:, 1]), axis=1),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_values(engine: str, name: str) -> None:
    body, expected = BODIES[name]
    pair = np.random.default_rng(1).integers(0, 1 << 64, (32, 2), np.uint64)
    out = np.zeros_like(pair)
    run_ptx(KERNEL.format(body=body), "k", (1, 1, 1), (32, 1, 1), [pair, out], engine=engine)
    np.testing.assert_array_equal(out, expected(pair))


def test_an_address_between_16_bytes(engine: str) -> None:
    pair = np.zeros((33, 2), np.uint64)
    body = "ld.global.b128 %q0, [%d0+8];\nst.global.b128 [%d1], %q0;"
    with pytest.raises(KernelFault) as caught:
        run_ptx(KERNEL.format(body=body), "k", (1, 1, 1), (32, 1, 1), [pair, pair.copy()], engine=engine)
    assert caught.value.kind is FaultKind.MISALIGNED


def test_half_a_register(engine: str) -> None:
    """Half of it was never written: a store of the half that was is legal, one of both is not."""
    body = "mov.b64 %lo, 7;\nmov.b128 %q0, {{%lo, %hi}};\nmov.b128 {{%d4, %d5}}, %q0;\n{store};"
    pair, out = np.zeros((32, 2), np.uint64), np.zeros((32, 2), np.uint64)
    for store, legal in (("st.global.b64 [%d1], %d4", True), ("st.global.b128 [%d1], %q0", False)):
        text = KERNEL.format(body=body.format(store=store))
        if legal or engine == "compiled":
            run_ptx(text, "k", (1, 1, 1), (32, 1, 1), [pair, out], engine=engine)
            assert (out[:, 0] == 7).all()
        else:
            with pytest.raises(KernelFault) as caught:
                run_ptx(text, "k", (1, 1, 1), (32, 1, 1), [pair, out], engine=engine)
            assert caught.value.kind is FaultKind.UNINITIALISED


@pytest.mark.parametrize("text", ["atom.global.exch.b128 %q0, [%d0], %q1;", "add.u32 %q0, %t, %t;"])
def test_what_no_engine_executes(engine: str, text: str) -> None:
    body = f"mov.b128 %q1, {{%d0, %d1}};\n{text}"
    pair = np.zeros((32, 2), np.uint64)
    with pytest.raises((UnsupportedError, PtxSyntaxError)):
        run_ptx(KERNEL.format(body=body), "k", (1, 1, 1), (32, 1, 1), [pair, pair.copy()], engine=engine)


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.parametrize("text", ["mapa.shared::cluster.u32 %p, %s, 0;", "add.u32 %p, %t, %t;"])
def test_an_integer_into_a_predicate(text: str, engine: str) -> None:
    """ptxas: "Arguments mismatch for instruction"."""
    given = np.zeros(64, np.uint64)
    with pytest.raises(UnsupportedError, match="into %p of 1"):
        run_ptx(KERNEL.format(body=text), "k", (1, 1, 1), (32, 1, 1), [given, given], engine=engine)
