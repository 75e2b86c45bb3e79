# SPDX-License-Identifier: Apache-2.0
"""Comparisons and selections, by PTX ISA 9.3.1, 9.7.6 and 9.7.7."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.sim.instructions.exact import decode, elementwise
from tests.sim.instructions.one_instruction import apply, check, one
from tests.sim.instructions.operands import float_bits, integers, pairs

Array = npt.NDArray[Any]
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
STORAGE = {"f32": np.uint32, "f64": np.uint64, "f16": np.uint16, "bf16": np.uint16}


def float_test(name: str, test: str, a: int, b: int) -> bool:
    """9.3.1.2: a NaN makes ordered comparisons false and unordered ones true."""
    x, y = decode(a, name), decode(b, name)
    missing = x.nan or y.nan
    if test in ("num", "nan"):
        return missing == (test == "nan")
    ordered = test.removesuffix("u") if len(test) == 3 else test
    return len(test) == 3 if missing else ORDER[ordered](x.number, y.number)


FLOAT_TESTS = [*ORDER, *(f"{name}u" for name in ORDER), "num", "nan"]


@pytest.mark.parametrize("name", STORAGE)
def test_setp_float(engine: str, name: str) -> None:
    a, b = pairs(float_bits(name, 1, 64), float_bits(name, 2, 64), corners=20)
    text = "".join(f"setp.{test}.{name} %d{i}, %s0, %s1;\n" for i, test in enumerate(FLOAT_TESTS))
    for test, actual in zip(
        FLOAT_TESTS, apply(engine, text, [a, b], [np.bool_] * len(FLOAT_TESTS)), strict=True
    ):
        expected = elementwise(lambda x, y, test=test: float_test(name, test, x, y), np.bool_, a, b)
        check(actual, expected, a, b)


@pytest.mark.parametrize("name", [f"{k}{w}" for k in "bus" for w in (16, 32, 64)])
def test_setp_integer(engine: str, name: str) -> None:
    kind = np.dtype(f"{'i' if name[0] == 's' else 'u'}{int(name[1:]) // 8}")
    a, b = pairs(integers(kind, 3, 64), integers(kind, 4, 64))
    tests = {"eq": ORDER["eq"], "ne": ORDER["ne"]} if name[0] == "b" else dict(ORDER)
    if name[0] == "u":
        tests |= UNSIGNED
    text = "".join(f"setp.{test}.{name} %d{i}, %s0, %s1;\n" for i, test in enumerate(tests))
    for function, actual in zip(
        tests.values(), apply(engine, text, [a, b], [np.bool_] * len(tests)), strict=True
    ):
        check(actual, elementwise(function, np.bool_, a, b), a, b)


def test_setp_combines_and_negates(engine: str) -> None:
    """p = (a < b) op c, q = !(a < b) op c; `!c` negates the third source."""
    a, b = pairs(integers(np.int32, 5, 64), integers(np.int32, 6, 64))
    c = np.random.default_rng(7).integers(0, 2, a.size).astype(np.bool_)
    less = a < b
    for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        for spelled, third in (("%s2", c), ("!%s2", ~c)):
            p, q = apply(
                engine, f"setp.lt.{name}.s32 %d0|%d1, %s0, %s1, {spelled};", [a, b, c], [np.bool_] * 2
            )
            check(p, function(less, third), a, b, c)
            check(q, function(~less, third), a, b, c)


def test_setp_ftz(engine: str) -> None:
    a = np.array([1, 0x80000001, 0, 0x007FFFFF, 0x00800000], np.uint32)
    assert one(engine, "setp.eq.ftz.f32 %d0, %s0, 0f00000000;", [a], np.bool_).tolist() == [True] * 4 + [
        False
    ]
    assert (
        one(engine, "setp.eq.f32 %d0, %s0, 0f00000000;", [a], np.bool_).tolist()
        == [False] * 2 + [True] + [False] * 2
    )


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_setp_packed(engine: str, name: str) -> None:
    """The lower halves decide p, the upper ones q."""
    a, b = pairs(float_bits(name, 8, 64), float_bits(name, 9, 64), corners=20)
    c, d = np.roll(a, 5), np.roll(b, 11)
    low_high = [(h.astype(np.uint32) << np.uint32(16) | x) for x, h in ((a, c), (b, d))]
    for test in ("lt", "neu"):
        p, q = apply(engine, f"setp.{test}.{name}x2 %d0|%d1, %s0, %s1;", low_high, [np.bool_] * 2)
        check(p, elementwise(lambda x, y, t=test: float_test(name, t, x, y), np.bool_, a, b), a, b)
        check(q, elementwise(lambda x, y, t=test: float_test(name, t, x, y), np.bool_, c, d), c, d)


def test_set(engine: str) -> None:
    a, b = pairs(float_bits("f32", 10, 64), float_bits("f32", 11, 64), corners=20)
    less = elementwise(lambda x, y: float_test("f32", "lt", x, y), np.bool_, a, b)
    for target, true in (("u32", 0xFFFFFFFF), ("s32", 0xFFFFFFFF), ("f32", 0x3F800000)):
        expected = np.where(less, np.uint32(true), np.uint32(0))
        check(one(engine, f"set.lt.{target}.f32 %d0, %s0, %s1;", [a, b], np.uint32), expected, a, b)
    c = np.random.default_rng(12).integers(0, 2, a.size).astype(np.bool_)
    expected = np.where(less & c, np.uint32(0xFFFFFFFF), np.uint32(0))
    check(one(engine, "set.lt.and.u32.f32 %d0, %s0, %s1, %s2;", [a, b, c], np.uint32), expected, a, b, c)
    halves = [x >> np.uint32(16) for x in (a, b)]
    both = elementwise(
        lambda x, y: (0x3C00 if float_test("f16", "gt", x & 0xFFFF, y & 0xFFFF) else 0)
        | (0x3C000000 if float_test("f16", "gt", x >> 16, y >> 16) else 0),
        np.uint32, a, b,
    )  # fmt: skip
    check(one(engine, "set.gt.f16x2.f16x2 %d0, %s0, %s1;", [a, b], np.uint32), both, a, b)
    low = [h.astype(np.uint16) for h in halves]
    one_half = elementwise(lambda x, y: 0x3C00 if float_test("f16", "le", x, y) else 0, np.uint16, *low)
    check(one(engine, "set.le.f16.f16 %d0, %s0, %s1;", low, np.uint16), one_half, *low)


@pytest.mark.parametrize("name", ["b16", "b32", "b64", "u16", "s32", "f32", "f64"])
def test_selp(engine: str, name: str) -> None:
    kind = np.dtype(f"u{int(name[1:]) // 8}")
    a, b = integers(kind, 13), integers(kind, 14)
    p = np.random.default_rng(15).integers(0, 2, a.size).astype(np.bool_)
    check(one(engine, f"selp.{name} %d0, %s0, %s1, %s2;", [a, b, p], kind), np.where(p, a, b), a, b, p)


@pytest.mark.parametrize("name", ["b16", "b32", "b64"])
def test_slct(engine: str, name: str) -> None:
    """d = c >= 0 ? a : b; -0.0 selects a, NaN selects b."""
    kind = np.dtype(f"u{int(name[1:]) // 8}")
    a, b = integers(kind, 16), integers(kind, 17)
    c = np.resize(integers(np.int32, 18), a.shape)
    check(
        one(engine, f"slct.{name}.s32 %d0, %s0, %s1, %s2;", [a, b, c], kind), np.where(c >= 0, a, b), a, b, c
    )
    f = np.resize(float_bits("f32", 19), a.shape)
    first = elementwise(lambda x: not decode(x, "f32").nan and decode(x, "f32").number >= 0, np.bool_, f)
    check(
        one(engine, f"slct.{name}.f32 %d0, %s0, %s1, %s2;", [a, b, f], kind), np.where(first, a, b), a, b, f
    )
