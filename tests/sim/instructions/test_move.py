# SPDX-License-Identifier: Apache-2.0
"""Movement and addresses: `mov`, packing, `cvta`, `isspacep`, special registers."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import PtxSyntaxError, UnsupportedError
from gdnbench.sim.run import run_ptx
from tests.messages import wording
from tests.sim.instructions.one_instruction import BLOCK, HEADER, apply, check, one
from tests.sim.instructions.operands import integers


def test_mov_of_every_width(engine: str) -> None:
    for width in (16, 32, 64):
        a = integers(f"u{width // 8}", 1)
        check(one(engine, f"mov.b{width} %d0, %s0;", [a], a.dtype), a, a)


def test_packing(engine: str) -> None:
    """The first element of a vector is the lowest."""
    a, b, c, d = (integers(np.uint16, seed) for seed in range(2, 6))
    pair = a.astype(np.uint32) | b.astype(np.uint32) << np.uint32(16)
    check(one(engine, "mov.b32 %d0, {%s0, %s1};", [a, b], np.uint32), pair, a, b)
    four = sum(x.astype(np.uint64) << np.uint64(16 * i) for i, x in enumerate((a, b, c, d)))
    check(one(engine, "mov.b64 %d0, {%s0, %s1, %s2, %s3};", [a, b, c, d], np.uint64), four, a, b, c, d)
    wide = integers(np.uint64, 6)
    low, high = apply(engine, "mov.b64 {%d0, %d1}, %s0;", [wide], [np.uint32] * 2)
    check(low, wide.astype(np.uint32), wide)
    check(high, (wide >> np.uint64(32)).astype(np.uint32), wide)
    (upper,) = apply(engine, "mov.b32 {_, %d0}, %s0;", [pair], [np.uint16])
    check(upper, b, pair)


def test_a_register_may_be_unpacked_onto_itself(engine: str) -> None:
    a = integers(np.uint32, 7)
    text = ".reg .b16 %x, %y; mov.b32 {%x, %y}, %s0; mov.b32 %d0, {%y, %x};"
    swapped = a << np.uint32(16) | a >> np.uint32(16)
    check(one(engine, text, [a], np.uint32), swapped, a)


def test_generic_addresses(engine: str) -> None:
    """A shared address goes to the generic space and back; each space knows its own."""
    text = """.shared .align 8 .b8 room[64];
    .reg .b64 %own, %generic;
    mov.u64 %own, room;
    cvta.shared.u64 %generic, %own;
    cvta.to.shared.u64 %d0, %generic;
    sub.s64 %d0, %d0, %own;
    isspacep.shared %d1, %generic;
    isspacep.global %d2, %generic;
    isspacep.shared %d3, %s0;
    isspacep.global %d4, %s0;"""
    address = np.full(BLOCK, 0x7F00_0000_1000, np.uint64)
    same, *spaces = apply(engine, text.replace("isspacep.shared %d", "isspacep.shared %d"), [address],
                          [np.uint64, np.bool_, np.bool_, np.bool_, np.bool_])  # fmt: skip
    assert not same.any()
    assert [space.all() or space.any() for space in spaces] == [True, False, False, True]


def special(engine: str, name: str, grid: tuple[int, int, int], block: tuple[int, int, int]) -> np.ndarray:
    """The register in every thread, in the order of the linear index."""
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 out)
{{
.reg .b32 %r<16>;
.reg .b64 %d<3>;
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %ctaid.z;
mov.u32 %r3, %nctaid.x; mov.u32 %r4, %nctaid.y;
mad.lo.s32 %r5, %r2, %r4, %r1;
mad.lo.s32 %r5, %r5, %r3, %r0;
mov.u32 %r6, %tid.x; mov.u32 %r7, %tid.y; mov.u32 %r8, %tid.z;
mov.u32 %r9, %ntid.x; mov.u32 %r10, %ntid.y; mov.u32 %r11, %ntid.z;
mad.lo.s32 %r12, %r8, %r10, %r7;
mad.lo.s32 %r12, %r12, %r9, %r6;
mul.lo.s32 %r13, %r9, %r10;
mul.lo.s32 %r13, %r13, %r11;
mad.lo.s32 %r12, %r5, %r13, %r12;
ld.param.b64 %d0, [out];
mad.wide.u32 %d0, %r12, 4, %d0;
mov.u32 %r14, %{name};
st.global.b32 [%d0], %r14;
ret;
}}"""
    out = np.full(int(np.prod(grid) * np.prod(block)), 0xDEAD, np.uint32)
    run_ptx(ptx, "k", grid, block, [out], 64, engine=engine, threads=1)
    return out


GRID, EXTENT = (2, 3, 2), (5, 7, 3)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_indices(engine: str, axis: int) -> None:
    """Thread and CTA indices with x fastest; the block is no multiple of a warp."""
    threads = int(np.prod(EXTENT))
    thread, cta = (
        np.arange(threads * int(np.prod(GRID))) % threads,
        np.arange(threads * int(np.prod(GRID))) // threads,
    )
    expected = {
        "tid": np.unravel_index(thread, EXTENT[::-1])[2 - axis],
        "ctaid": np.unravel_index(cta, GRID[::-1])[2 - axis],
    }
    for name, values in expected.items():
        assert special(engine, f"{name}.{'xyz'[axis]}", GRID, EXTENT).tolist() == values.tolist()


def test_lane_registers(engine: str) -> None:
    lane = np.arange(105) % 32
    expected = {
        "laneid": lane,
        "warpid": np.arange(105) // 32,
        "lanemask_eq": 1 << lane,
        "lanemask_lt": (1 << lane) - 1,
        "lanemask_le": (2 << lane) - 1,
        "lanemask_gt": 0xFFFFFFFF & ~((2 << lane) - 1),
        "lanemask_ge": 0xFFFFFFFF & ~((1 << lane) - 1),
        "dynamic_smem_size": np.full(105, 64),
        "nwarpid": np.full(105, 4),
    }
    for name, values in expected.items():
        assert special(engine, name, (1, 1, 1), (105, 1, 1)).tolist() == values.tolist(), name


def test_a_cta_for_each_multiprocessor(engine: str) -> None:
    """The 148 of a B200 (data sheet), in turn: what a kernel finds that counts CTAs by multiprocessor."""
    grid, block = (150, 1, 1), (32, 1, 1)
    smid = special(engine, "smid", grid, block).reshape(150, 32)
    assert (smid == (np.arange(150) % 148)[:, None]).all()
    assert (special(engine, "nsmid", grid, block) == 148).all()
    for name, value in (("gridid", 0), ("cluster_ctarank", 0), ("cluster_nctarank", 1)):
        assert (special(engine, name, (2, 1, 1), block) == value).all(), name


@pytest.mark.parametrize(
    "text", ["mov.pred %p, %s0; selp.b32 %d0, 1, 2, %p;", "setp.eq.b32 %p, %s0, 1; add.s32 %d0, %p, 1;"]
)
def test_a_predicate_is_no_number(engine: str, text: str) -> None:
    """ptxas refuses both. The engines would take different bits of the number for the predicate."""
    with pytest.raises(UnsupportedError, match=r"register %(p|s0), \.(pred|b32)"):
        one(engine, f".reg .pred %p; {text}", [np.arange(32, dtype=np.uint32)], np.uint32)


def test_vectors_of_registers(engine: str) -> None:
    """Whole, by element, by colour, and as one operand of `ld` and `st` (PTX ISA, "Vectors as Operands")."""
    a = integers(np.uint32, 8)
    text = """.reg .v4 .b32 %v, %w; .reg .v2 .u32 %pair<2>; .reg .b32 %x; .shared .v4 .b32 room[128];
    .reg .b32 %at;
    mov.u32 %x, %tid.x; mov.u32 %at, room; mad.lo.u32 %at, %x, 16, %at;
    mov.b32 %v.x, %s0; add.u32 %v.y, %v.x, 1; add.u32 %v.b, %v.g, 1; mov.b32 %v.w, 0;
    st.shared.v4.b32 [%at], %v;
    ld.shared.v4.b32 %w, [%at];
    mov.v2.u32 %pair1, {%w.z, %w.r};
    mov.v2.u32 {%pair0.x, %pair0.y}, %pair1;
    mov.v2.u32 {%pair0.y, %pair0.x}, %pair0;
    mad.lo.u32 %d0, %pair0.x, 3, %pair0.y;"""
    check(one(engine, text, [a], np.uint32), a * np.uint32(3) + a + np.uint32(2), a)


def test_a_vector_is_no_register(engine: str) -> None:
    text = ".reg .v2 .b32 %v; mov.v2.b32 %v, {%s0, %s0}; add.u32 %d0, %v, 1;"
    with pytest.raises(PtxSyntaxError, match=wording("sim.ptx.vector-used", name="%v")):
        one(engine, text, [np.zeros(BLOCK, np.uint32)], np.uint32)


def test_directives_without_a_space(engine: str) -> None:
    """As cuda_fp16.h has them."""
    a = integers(np.uint32, 9)
    text = "{.reg.b16 %l, %h; mov.b32 {%l,%h}, %s0; mov.b32 %d0, {%h,%l};}"
    check(one(engine, text, [a], np.uint32), a << np.uint32(16) | a >> np.uint32(16), a)


def test_a_cache_policy_is_a_value(engine: str) -> None:
    a = integers(np.uint32, 10)
    text = """.reg .b64 %policy; createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;
    .reg .b64 %a; .shared .b32 word[128]; .reg .b32 %t, %at; mov.u32 %t, %tid.x; mov.u32 %at, word;
    mad.lo.u32 %at, %t, 4, %at; st.shared.b32 [%at], %s0; ld.shared.b32 %d0, [%at];"""
    check(one(engine, text, [a], np.uint32), a, a)
