# SPDX-License-Identifier: Apache-2.0
"""Atomic operations: lanes of one address take turns, so that what they leave and see is a sum over all.

Where lanes meet, the order is the simulator's choice; the tests ask for what holds in any order, or give
each lane its own address."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.run import run_ptx
from tests.sim.instructions.exact import Value, decode, elementwise, encode, plus, same_f64
from tests.sim.instructions.one_instruction import BLOCK, HEADER, check
from tests.sim.instructions.operands import float_bits, integers, pairs

Array = npt.NDArray[Any]


def run(
    engine: str, text: str, cells: Array, operands: list[Array], old: Any, space: str = "global"
) -> tuple[Array, Array]:
    """`text` with [%at] at the thread's cell, %b0.. its operands, %old its result: (cells after, old
    values)."""
    size, dtypes = cells.itemsize, [operand.dtype for operand in operands]
    declare = "".join(f".reg .b{8 * d.itemsize} %b{i};\n" for i, d in enumerate(dtypes))
    loads = "".join(
        f"ld.param.b64 %p, [in{i}]; mad.wide.u32 %p, %tid, {d.itemsize}, %p;\n"
        f"ld.global.b{8 * d.itemsize} %b{i}, [%p];\n"
        for i, d in enumerate(dtypes)
    )
    params = "".join(f", .param .b64 in{i}" for i in range(len(operands)))
    stage, back = "", ""
    if space == "shared":
        width = 8 * size
        stage = f"""mov.u64 %home, %at; ld.global.b{width} %old, [%at];
        mov.u64 %at, room; mad.wide.u32 %at, %lane, {size}, %at; st.shared.b{width} [%at], %old;"""
        back = f"ld.shared.b{width} %after, [%at]; st.global.b{width} [%home], %after;"
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 cells, .param .b64 olds{params})
{{
.shared .align 16 .b8 room[{BLOCK * size}];
.reg .b32 %tid, %lane; .reg .b64 %at, %home, %p; .reg .b{8 * size} %old, %after;
{declare}
mov.u32 %lane, %tid.x; mov.u32 %tid, %ctaid.x; mad.lo.s32 %tid, %tid, {BLOCK}, %lane;
ld.param.b64 %at, [cells]; mad.wide.u32 %at, %tid, {size}, %at;
{loads}{stage}
{text}
{back}
ld.param.b64 %p, [olds]; mad.wide.u32 %p, %tid, {size}, %p; st.global.b{8 * size} [%p], %old;
ret;
}}"""
    threads = -(-cells.size // BLOCK) * BLOCK
    padded = [np.resize(x, threads) for x in (cells, *operands)]
    olds = np.zeros(threads, old)
    run_ptx(
        ptx,
        "k",
        (threads // BLOCK, 1, 1),
        (BLOCK, 1, 1),
        [padded[0], olds, *padded[1:]],
        engine=engine,
        threads=1,
    )
    return padded[0][: cells.size], olds[: cells.size]


INTEGER: dict[str, tuple[list[str], Callable[[int, int], int]]] = {
    "add": (["u32", "s32", "u64"], lambda r, s: r + s),
    "min": (["u32", "s32", "u64", "s64"], min),
    "max": (["u32", "s32", "u64", "s64"], max),
    "inc": (["u32"], lambda r, s: 0 if r >= s else r + 1),
    "dec": (["u32"], lambda r, s: s if r == 0 or r > s else r - 1),
    "and": (["b32", "b64"], lambda r, s: r & s),
    "or": (["b32", "b64"], lambda r, s: r | s),
    "xor": (["b32", "b64"], lambda r, s: r ^ s),
    "exch": (["b32", "b64"], lambda r, s: s),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("op", "name"), [(op, name) for op, (names, _) in INTEGER.items() for name in names])
def test_integer(engine: str, op: str, name: str, space: str) -> None:
    dtype = np.dtype(f"{'i' if name[0] == 's' else 'u'}{int(name[1:]) // 8}")
    r, s = pairs(integers(dtype, 1, 64), integers(dtype, 2, 64))
    bits = 8 * dtype.itemsize
    low = -(1 << (bits - 1)) if name[0] == "s" else 0
    after, old = run(engine, f"atom.{space}.{op}.{name} %old, [%at], %b0;", r, [s], dtype, space)
    function = INTEGER[op][1]
    check(after, elementwise(lambda x, y: (function(x, y) - low) % (1 << bits) + low, dtype, r, s), r, s)
    check(old, r, r, s)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_compare_and_swap(engine: str, width: int) -> None:
    r = integers(f"u{width // 8}", 3)
    s = np.where(np.random.default_rng(4).integers(0, 2, r.size), r, r + r.dtype.type(1))
    t = integers(f"u{width // 8}", 5)
    after, old = run(engine, f"atom.global.cas.b{width} %old, [%at], %b0, %b1;", r, [s, t], r.dtype)
    check(after, np.where(r == s, t, r), r, s, t)
    check(old, r, r, s, t)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_float_add(engine: str, name: str, space: str) -> None:
    """f32 on global memory flushes subnormal operands and results, on shared memory it does not
    (9.7.13.5)."""
    r, s = pairs(float_bits(name, 6, 64), float_bits(name, 7, 64), corners=20)
    ftz = name == "f32" and space == "global"
    expected = elementwise(
        lambda x, y: encode(plus(decode(x, name, ftz), decode(y, name, ftz)), name, ftz=ftz), r.dtype, r, s
    )
    after, old = run(engine, f"atom.{space}.add.{name} %old, [%at], %b0;", r, [s], r.dtype, space)
    check(after, same_f64(after, expected) if name == "f64" else expected, r, s)
    check(old, r, r, s)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_add(engine: str, name: str) -> None:
    r, s = pairs(float_bits(name, 8, 64), float_bits(name, 9, 64), corners=20)
    total = elementwise(lambda x, y: encode(plus(decode(x, name), decode(y, name)), name), np.uint16, r, s)
    after, old = run(engine, f"atom.global.add.noftz.{name} %old, [%at], %b0;", r, [s], np.uint16)
    check(after, total, r, s)
    check(old, r, r, s)
    packed = [x.astype(np.uint32) << np.uint32(16) | np.roll(x, 9) for x in (r, s)]
    upper = total.astype(np.uint32) << np.uint32(16) | np.roll(total, 9)
    after, _ = run(
        engine, f"atom.global.add.noftz.{name}x2 %old, [%at], %b0;", packed[0], [packed[1]], np.uint32
    )
    check(after, upper, *packed)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_lanes_that_meet(engine: str, space: str) -> None:
    """All threads add 1 to one counter: it ends at their number, and each saw another value on the way."""
    at = {"global": "[%cell]", "shared": "[room]"}[space]
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 cell, .param .b64 olds)
{{
.shared .align 4 .b8 room[4];
.reg .b32 %tid, %old, %zero; .reg .b64 %cell, %p; .reg .pred %first;
mov.u32 %tid, %tid.x; mov.b32 %zero, 0;
ld.param.b64 %cell, [cell];
setp.eq.u32 %first, %tid, 0;
@%first st.{space}.b32 {at}, %zero;
bar.sync 0;
atom.{space}.add.u32 %old, {at}, 1;
red.{space}.add.u32 {at}, 2;
bar.sync 0;
ld.param.b64 %p, [olds]; mad.wide.u32 %p, %tid, 4, %p; st.global.b32 [%p], %old;
ld.{space}.b32 %old, {at};
st.global.b32 [%cell], %old;
ret;
}}"""
    cell, olds = np.array([77], np.uint32), np.zeros(BLOCK, np.uint32)
    run_ptx(ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [cell, olds], engine=engine, threads=1)
    assert cell.tolist() == [3 * BLOCK]
    assert len(set(olds.tolist())) == BLOCK


def test_red_vector(engine: str) -> None:
    """`red.v2.f32` adds each element by itself."""
    values = np.random.default_rng(10).normal(size=(BLOCK, 2)).astype(np.float32)
    cells = np.random.default_rng(11).normal(size=(BLOCK, 2)).astype(np.float32)
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 cells, .param .b64 values)
{{
.reg .b32 %tid, %x, %y; .reg .b64 %p, %q;
mov.u32 %tid, %tid.x;
ld.param.b64 %p, [values]; mad.wide.u32 %p, %tid, 8, %p; ld.global.v2.b32 {{%x, %y}}, [%p];
ld.param.b64 %q, [cells]; mad.wide.u32 %q, %tid, 8, %q;
red.global.add.v2.f32 [%q], {{%x, %y}};
ret;
}}"""
    expected = cells + values
    run_ptx(ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [cells, values], engine=engine, threads=1)
    check(cells, expected, cells, values)


def test_sum_of_small_integers_is_exact_in_any_order(engine: str) -> None:
    """f32 adds of integers below 2^24 do not round, so the order does not matter."""
    values = np.arange(1, BLOCK + 1, dtype=np.float32)
    ptx = f"""{HEADER}
.visible .entry k(.param .b64 cell, .param .b64 values)
{{
.reg .b32 %tid, %x; .reg .b64 %p, %q;
mov.u32 %tid, %tid.x;
ld.param.b64 %p, [values]; mad.wide.u32 %p, %tid, 4, %p; ld.global.b32 %x, [%p];
ld.param.b64 %q, [cell];
red.global.add.f32 [%q], %x;
ret;
}}"""
    cell = np.zeros(1, np.float32)
    run_ptx(ptx, "k", (1, 1, 1), (BLOCK, 1, 1), [cell, values], engine=engine, threads=1)
    exact = sum(Fraction(float(v)) for v in values)
    assert int(cell.view(np.uint32)[0]) == encode(Value(exact, False), "f32")
