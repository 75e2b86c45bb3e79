# SPDX-License-Identifier: Apache-2.0
"""Matrix fragments. Expectations are the layout formulas of PTX ISA 9.7.14.5, applied one thread and one
register at a time; products of small integers are exact whatever the tensor core's arithmetic is."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.run import run_ptx
from tests.sim.instructions.one_instruction import HEADER, apply, check

Array = npt.NDArray[Any]
LANES = 32


def warp(engine: str, body: str, arrays: list[Array], smem: int = 0, declare: str = "") -> None:
    """`body` in one warp; %p<i> holds the address of array i, %lane the lane, `room` is shared memory."""
    params = ", ".join(f".param .b64 a{i}" for i in range(len(arrays)))
    loads = "".join(f".reg .b64 %p{i}; ld.param.b64 %p{i}, [a{i}];\n" for i in range(len(arrays)))
    ptx = f"""{HEADER}
.extern .shared .align 128 .b8 room[];
.visible .entry k({params})
{{
.reg .b32 %r<40>; .reg .b64 %q; .reg .b32 %lane, %at, %base;
{declare}
{loads}
mov.u32 %lane, %tid.x; mov.u32 %base, room;
{body}
ret;
}}"""
    run_ptx(ptx, "k", (1, 1, 1), (LANES, 1, 1), arrays, smem, engine=engine, threads=1)


def names(first: int, count: int) -> str:
    registers = ", ".join(f"%r{first + i}" for i in range(count))
    return f"{{{registers}}}"


def per_lane(parameter: int, first: int, count: int, op: str) -> str:
    """Load or store `count` registers of each lane at [lane * count]."""
    one = "ld.global.b32 %r{0}, [%q+{1}];\n" if op == "ld" else "st.global.b32 [%q+{1}], %r{0};\n"
    moves = "".join(one.format(first + i, 4 * i) for i in range(count))
    return f"mad.wide.u32 %q, %lane, {4 * count}, %p{parameter};\n{moves}"


def fragment(tile: Array, transposed: bool) -> Array:
    """Lane i of an 8x8 tile of halves has row i/4, columns 2(i%4) and 2(i%4)+1; of its transpose if asked."""
    t = tile.T if transposed else tile
    pairs = [(int(t[i // 4, 2 * (i % 4)]), int(t[i // 4, 2 * (i % 4) + 1])) for i in range(LANES)]
    return np.array([low | high << 16 for low, high in pairs], np.uint32)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("transposed", "space"), [(False, ".shared"), (True, ".shared::cta"), (False, "")])
def test_ldmatrix(engine: str, count: int, transposed: bool, space: str) -> None:
    """Rows lie scattered; lane 8m + r gives the address of row r of matrix m. Without a space the 32 bits of
    the address are a shared address, as ptxas takes them."""
    rows = 48
    memory = np.arange(rows * 8, dtype=np.uint16)
    where = np.random.default_rng(count).permutation(rows)[:LANES].astype(np.uint32)
    out = np.zeros((LANES, count), np.uint32)
    copies = "".join(
        f"ld.global.b32 %r0, [%q+{4 * i}]; st.shared.b32 [%at+{4 * i}], %r0;\n"
        for i in range(rows * 16 // 128)
    )
    trans = ".trans" if transposed else ""
    body = f"""mad.wide.u32 %q, %lane, {rows * 16 // 32}, %p0;
    mad.lo.s32 %at, %lane, {rows * 16 // 32}, %base;
    {copies}
    bar.warp.sync -1;
    {per_lane(1, 8, 1, "ld")}
    mad.lo.s32 %at, %r8, 16, %base;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {names(0, count)}, [%at];
    {per_lane(2, 0, count, "st")}"""
    warp(engine, body, [memory, where, out], rows * 16)
    table = memory.reshape(rows, 8)
    expected = np.stack([fragment(table[where[8 * m : 8 * m + 8]], transposed) for m in range(count)], axis=1)
    check(out.ravel(), expected.ravel())


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("transposed", "space"), [(False, ".shared"), (True, ".shared::cta"), (False, "")])
def test_stmatrix(engine: str, count: int, transposed: bool, space: str) -> None:
    """Without a space the 32 bits of the address are a shared address, as ptxas takes them."""
    rows = 48
    tiles = np.random.default_rng(count).integers(0, 1 << 16, (count, 8, 8)).astype(np.uint16)
    registers = np.stack([fragment(tile, transposed) for tile in tiles], axis=1)
    where = np.random.default_rng(9).permutation(rows)[:LANES].astype(np.uint32)
    out = np.zeros(rows * 8, np.uint16)
    words = rows * 16 // 128
    clear = "".join(f"st.shared.b32 [%at+{4 * i}], %r0;\n" for i in range(words))
    back = "".join(
        f"ld.shared.b32 %r0, [%at+{4 * i}]; st.global.b32 [%q+{4 * i}], %r0;\n" for i in range(words)
    )
    trans = ".trans" if transposed else ""
    body = f"""mov.b32 %r0, 0; mad.lo.s32 %at, %lane, {4 * words}, %base;
    {clear}
    bar.warp.sync -1;
    {per_lane(0, 0, count, "ld")}{per_lane(1, 8, 1, "ld")}
    mad.lo.s32 %at, %r8, 16, %base;
    stmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 [%at], {names(0, count)};
    bar.warp.sync -1;
    mad.lo.s32 %at, %lane, {4 * words}, %base; mad.wide.u32 %q, %lane, {4 * words}, %p2;
    {back}"""
    warp(engine, body, [registers, where, out], rows * 16)
    expected = np.zeros((rows, 8), np.uint16)
    for m in range(count):
        expected[where[8 * m : 8 * m + 8]] = tiles[m]
    check(out, expected.ravel())


def test_movmatrix(engine: str) -> None:
    tile = np.arange(64, dtype=np.uint16).reshape(8, 8)
    source = np.tile(fragment(tile, False), 4)
    (out,) = apply(engine, "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %s0;", [source], [np.uint32])
    check(out, np.tile(fragment(tile, True), 4))


def test_a_misaligned_row(engine: str) -> None:
    body = """mov.b32 %r0, 0; st.shared.b32 [%base], %r0; mad.lo.s32 %at, %lane, 16, %base;
    add.s32 %at, %at, 8;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%at];"""
    with pytest.raises(KernelFault) as caught:
        warp(engine, body, [], 1024)
    assert caught.value.kind is FaultKind.MISALIGNED


KINDS = {
    "bf16": (ml_dtypes.bfloat16, 2),
    "f16": (np.float16, 2),
    "tf32": (np.float32, 4),
    "e4m3": (ml_dtypes.float8_e4m3fn, 1),
    "e5m2": (ml_dtypes.float8_e5m2, 1),
}


def place_a(register: int, element: int, lane: int, per: int) -> tuple[int, int]:
    """(row, k) of an element of A: 9.7.14.5, m16n8k4 to m16n8k32, with g = lane/4 and t = lane%4."""
    g, t = lane // 4, lane % 4
    return g + 8 * (register % 2), t * per + element + 4 * per * (register // 2)


def place_b(register: int, element: int, lane: int, per: int) -> tuple[int, int]:
    """(k, n) of an element of B."""
    return lane % 4 * per + element + 4 * per * register, lane // 4


def pack(matrix: Array, place: Any, registers: int, size: int) -> Array:
    """Each lane's registers, elements low first."""
    per = 4 // size
    raw = matrix.view(f"u{size}")
    out = np.zeros((LANES, registers), np.uint32)
    for lane in range(LANES):
        for r in range(registers):
            for e in range(per):
                out[lane, r] |= np.uint32(int(raw[place(r, e, lane, per)]) << 8 * size * e)
    return out


def place_c(register: int, lane: int) -> tuple[int, int]:
    return lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2


SHAPES = [("bf16", 8), ("bf16", 16), ("f16", 8), ("f16", 16), ("tf32", 4), ("tf32", 8),
          ("e4m3", 32), ("e5m2", 32), ("e4m3", 16), ("e5m2", 16)]  # fmt: skip


HALF_RESULTS = [(name, k, "f16") for name, k in SHAPES if name not in ("bf16", "tf32")]


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "k", "d_type"), [*((n, k, "f32") for n, k in SHAPES), *HALF_RESULTS])
def test_mma(engine: str, name: str, k: int, d_type: str) -> None:
    """Small integers: every product and sum is exact, so a wrong place shows and nothing else can."""
    kind, size = KINDS[name]
    random = np.random.default_rng(k)
    a, b = random.integers(-2, 3, (16, k)), random.integers(-2, 3, (k, 8))
    c = random.integers(-50, 51, (16, 8))
    per = 4 // size
    a_registers, b_registers = 2 * k // (4 * per), k // (4 * per)
    halves = d_type == "f16"
    lanes = [[place_c(r, lane) for r in range(4)] for lane in range(LANES)]
    c_wide = np.array([[np.float16(c[at]) if halves else np.float32(c[at]) for at in row] for row in lanes])
    c_bits = np.ascontiguousarray(c_wide).view(np.uint32)
    c_registers = 2 if halves else 4
    arrays = [
        pack(a.astype(kind), place_a, a_registers, size),
        pack(b.astype(kind), place_b, b_registers, size),
        c_bits,
    ]
    out = np.zeros((LANES, c_registers), np.uint32)
    loads = per_lane(0, 0, a_registers, "ld") + per_lane(1, 8, b_registers, "ld")
    body = f"""{loads}{per_lane(2, 16, c_registers, "ld")}
    mma.sync.aligned.m16n8k{k}.row.col.{d_type}.{name}.{name}.{d_type}
        {names(20, c_registers)}, {names(0, a_registers)}, {names(8, b_registers)}, {names(16, c_registers)};
    {per_lane(3, 20, c_registers, "st")}"""
    warp(engine, body, [*arrays, out])
    d = a @ b + c
    got = np.ascontiguousarray(out).view(np.float16 if halves else np.float32)
    expected = np.array([[d[at] for at in row] for row in lanes], got.dtype)
    check(got.ravel(), expected.ravel())


DOUBLES = {"m8n8k4": (8, 4), "m16n8k4": (16, 4), "m16n8k8": (16, 8), "m16n8k16": (16, 16)}


def double_warp(engine: str, shape: str, a: Array, b: Array, c: Array, mode: str = "") -> Array:
    """D of `mma` of f64. Elements lie as PTX ISA 9.7.14.5 says: a_i of lane 4g + t has row g (+8 if i is odd
    and there are 16 rows) and column t + 4 * (i / (rows / 8)), b_i row t + 4i and column g, c_i row
    g + 8 * (i / 2) and column 2t + i % 2."""
    rows, k = DOUBLES[shape]
    blocks = rows // 8
    g, t = np.arange(LANES) // 4, np.arange(LANES) % 4
    lanes_a = np.stack([a[g + 8 * (i % blocks), t + 4 * (i // blocks)] for i in range(blocks * k // 4)], 1)
    lanes_b = np.stack([b[t + 4 * i, g] for i in range(k // 4)], 1)
    places = [(g + 8 * (i // 2), 2 * t + i % 2) for i in range(2 * blocks)]
    lanes_c = np.stack([c[place] for place in places], 1)
    out = np.zeros_like(lanes_c)

    def moves(op: str, name: str, parameter: int, count: int) -> str:
        one = "ld.global.f64 {0}, [%q+{1}];" if op == "ld" else "st.global.f64 [%q+{1}], {0};"
        return f"mad.wide.u32 %q, %lane, {8 * count}, %p{parameter};" + "".join(
            one.format(f"%{name}{i}", 8 * i) for i in range(count)
        )

    def several(name: str, count: int) -> str:
        return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"

    counts = [lanes.shape[1] for lanes in (lanes_a, lanes_b, lanes_c)]
    operands = ", ".join(
        several(name, count) for name, count in zip("cabc", [counts[2], *counts], strict=True)
    )
    body = f"""{moves("ld", "a", 0, counts[0])}{moves("ld", "b", 1, counts[1])}
    {moves("ld", "c", 2, counts[2])}
    mma.sync.aligned.{shape}.row.col{mode}.f64.f64.f64.f64 {operands};
    {moves("st", "c", 3, counts[2])}"""
    declare = ".reg .f64 %a<9>, %b<9>, %c<9>;"
    warp(engine, body, [*map(np.ascontiguousarray, (lanes_a, lanes_b, lanes_c)), out], declare=declare)
    d = np.zeros_like(c)
    for i, place in enumerate(places):
        d[place] = out[:, i]
    return d


def fused(a: float, b: float, c: float, mode: str) -> float:
    """a * b + c rounded once; `.rz` cuts the exact value."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = float(exact)
    if mode == ".rz" and abs(Fraction(near)) > abs(exact):
        near = math.nextafter(near, 0.0)
    return near


@pytest.mark.parametrize("mode", ["", ".rz"])
@pytest.mark.parametrize("shape", DOUBLES)
def test_mma_of_doubles(engine: str, shape: str, mode: str) -> None:
    """Fused products one after another in the order of k, as on an H100: the order shows in the bits."""
    rows, k = DOUBLES[shape]
    random = np.random.default_rng(rows + k)
    a, b, c = (random.normal(size=size) * 2.0 ** random.integers(-9, 9, size)
               for size in ((rows, k), (k, 8), (rows, 8)))  # fmt: skip
    expected = c.copy()
    for i, j in np.ndindex(rows, 8):
        for each in range(k):
            expected[i, j] = fused(a[i, each], b[each, j], expected[i, j], mode)
    check(double_warp(engine, shape, a, b, c, mode), expected)


def test_mma_of_doubles_beside_one_of_halves(engine: str) -> None:
    """One kernel may have both, and a profile counts both."""
    body = """.reg .f64 %x<4>; .reg .b32 %h<9>; mov.f64 %x0, 0d3FF0000000000000; mov.f64 %x1, %x0;
    mov.f64 %x2, 0d0000000000000000; mov.f64 %x3, %x2;
    mov.b32 %h0, 0x3C003C00; mov.b32 %h1, %h0; mov.b32 %h2, 0; mov.b32 %h3, 0; mov.b32 %h4, 0; mov.b32 %h5, 0;
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%x2, %x3}, {%x0}, {%x1}, {%x2, %x3};
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%h2, %h3, %h4, %h5}, {%h0, %h1}, {%h0},
        {%h2, %h3, %h4, %h5};
    cvt.rn.f32.f64 %h6, %x3; add.f32 %h6, %h6, %h5; .reg .f32 %unused;
    mad.wide.u32 %q, %lane, 4, %p0; st.global.b32 [%q], %h6;"""
    out = np.zeros(LANES, np.float32)
    ptx = f"""{HEADER}.visible .entry k(.param .b64 a0) {{ .reg .b32 %lane; .reg .b64 %q, %p0;
    ld.param.b64 %p0, [a0]; mov.u32 %lane, %tid.x; {body} ret; }}"""
    result = run_ptx(ptx, "k", (1, 1, 1), (LANES, 1, 1), [out], engine=engine, threads=1, profile=True)
    assert out.tolist() == [12.0] * LANES
    assert result.counters.mma_macs == 8 * 8 * 4 + 16 * 8 * 8
    assert result.counters.instructions["mma"] == 2


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("types", [("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")])
@pytest.mark.parametrize(("rows", "k"), [(8, 16), (16, 16), (16, 32)])
def test_mma_of_bytes(engine: str, rows: int, k: int, types: tuple[str, str], saturates: bool) -> None:
    """Places as of the 8-bit floats; sums near the bounds of s32 wrap, or stay there with .satfinite."""
    random = np.random.default_rng(k)
    kinds = [np.dtype(np.int8 if name == "s8" else np.uint8) for name in types]
    ranges = [np.iinfo(kind) for kind in kinds]
    a = random.integers(ranges[0].min, ranges[0].max + 1, (rows, k)).astype(kinds[0])
    b = random.integers(ranges[1].min, ranges[1].max + 1, (k, 8)).astype(kinds[1])
    c = random.choice(np.array([0, 2**31 - 100, -(2**31) + 100], np.int64), (rows, 8))
    blocks = rows // 8
    counts = (blocks * k // 16, k // 16, 2 * blocks)

    def place(register: int, element: int, lane: int, per: int) -> tuple[int, int]:
        row, column = place_a(register, element, lane, per)
        return (row, column) if blocks == 2 else (lane // 4, column + 4 * per * (register % 2))

    places = [[place_c(r, lane) for r in range(counts[2])] for lane in range(LANES)]
    c_words = np.array([[c[at] for at in row] for row in places]).astype(np.int32).view(np.uint32)
    arrays = [pack(a, place, counts[0], 1), pack(b, place_b, counts[1], 1), c_words]
    out = np.zeros((LANES, counts[2]), np.uint32)
    loads = per_lane(0, 0, counts[0], "ld") + per_lane(1, 8, counts[1], "ld")
    sat = ".satfinite" if saturates else ""
    body = f"""{loads}{per_lane(2, 16, counts[2], "ld")}
    mma.sync.aligned.m{rows}n8k{k}.row.col{sat}.s32.{types[0]}.{types[1]}.s32
        {names(20, counts[2])}, {names(0, counts[0])}, {names(8, counts[1])}, {names(16, counts[2])};
    {per_lane(3, 20, counts[2], "st")}"""
    warp(engine, body, [*arrays, out])
    d = a.astype(np.int64) @ b.astype(np.int64) + c
    d = np.clip(d, -(2**31), 2**31 - 1) if saturates else d
    expected = np.array([[d[at] for at in row] for row in places]).astype(np.int32).view(np.uint32)
    check(out.ravel(), expected.ravel())
