# SPDX-License-Identifier: Apache-2.0
"""Logic, shifts and byte permutation against Python integers, by the definitions of PTX ISA 9.7.8 and
9.7.9.7."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from tests.messages import wording
from tests.sim.instructions.exact import elementwise
from tests.sim.instructions.one_instruction import apply, check, one
from tests.sim.instructions.operands import integers, pairs, triples


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("op", ["and", "or", "xor"])
def test_bitwise(engine: str, op: str, width: int) -> None:
    a, b = pairs(integers(f"u{width // 8}", 1), integers(f"u{width // 8}", 2))
    functions = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}
    expected = elementwise(functions[op], a.dtype, a, b)
    check(one(engine, f"{op}.b{width} %d0, %s0, %s1;", [a, b], a.dtype), expected, a, b)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_not(engine: str, width: int) -> None:
    a = integers(f"u{width // 8}", 3)
    ones = (1 << width) - 1
    inverted = elementwise(lambda x: x ^ ones, a.dtype, a)
    check(one(engine, f"not.b{width} %d0, %s0;", [a], a.dtype), inverted, a)
    zero = elementwise(lambda x: int(x == 0), a.dtype, a)
    check(one(engine, f"cnot.b{width} %d0, %s0;", [a], a.dtype), zero, a)


def test_predicates(engine: str) -> None:
    p, q = np.array([False, False, True, True]), np.array([False, True, False, True])
    text = """and.pred %d0, %s0, %s1; or.pred %d1, %s0, %s1; xor.pred %d2, %s0, %s1; not.pred %d3, %s0;
    mov.pred %d4, %s1; mov.pred %d5, -1; mov.pred %d6, 0;"""
    results = apply(engine, text, [p, q], [np.bool_] * 7)
    expected = [
        [False, False, False, True],
        [False, True, True, True],
        [False, True, True, False],
        [True, True, False, False],
        [False, True, False, True],
        [True] * 4,
        [False] * 4,
    ]
    assert [r.tolist() for r in results] == expected


@pytest.mark.parametrize("table", [0x00, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x1D])
def test_lop3(engine: str, table: int) -> None:
    a, b, c = triples(*(integers(np.uint32, seed) for seed in (4, 5, 6)))

    def bit_by_bit(x: int, y: int, z: int) -> int:
        rows = ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1) for i in range(32))
        return sum((table >> row & 1) << i for i, row in enumerate(rows))

    check(
        one(engine, f"lop3.b32 %d0, %s0, %s1, %s2, {table};", [a, b, c], np.uint32),
        elementwise(bit_by_bit, np.uint32, a, b, c),
        a, b, c,
    )  # fmt: skip


def test_lop3_of_a_table_that_is_no_constant(engine: str) -> None:
    """The PTX ISA wants `immLut` as a constant."""
    a = integers(np.uint32, 4)
    with pytest.raises(
        UnsupportedError, match=wording("sim.lop3-table", instruction="lop3.b32") + " at PTX line"
    ):
        one(engine, "lop3.b32 %d0, %s0, %s0, %s0, %s0;", [a], np.uint32)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts(engine: str, width: int) -> None:
    """Amounts of the width or more act like the width."""
    unsigned = np.resize(integers(f"u{width // 8}", 7), 1000)
    signed = unsigned.view(f"i{width // 8}")
    amount = np.random.default_rng(8).integers(0, 2 * width, 1000).astype(np.uint32)
    amount[:4] = [0xFFFFFFFF, 0x80000000, width, 256]
    ones = (1 << width) - 1
    cases = [
        ("shl.b", unsigned, lambda x, n: x << min(n, width) & ones),
        ("shr.u", unsigned, lambda x, n: x >> min(n, width)),
        ("shr.b", unsigned, lambda x, n: x >> min(n, width)),
        ("shr.s", signed, lambda x, n: x >> min(n, width)),
    ]
    for op, a, function in cases:
        expected = elementwise(function, a.dtype, a, amount)
        check(one(engine, f"{op}{width} %d0, %s0, %s1;", [a, amount], a.dtype), expected, a, amount)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(engine: str, mode: str) -> None:
    a, b = (np.resize(integers(np.uint32, seed), 1000) for seed in (9, 10))
    amount = np.random.default_rng(11).integers(0, 70, 1000).astype(np.uint32)

    def count(n: int) -> int:
        return min(n, 32) if mode == "clamp" else n & 31

    left = elementwise(lambda x, y, n: (y << 32 | x) << count(n) >> 32 & 0xFFFFFFFF, np.uint32, a, b, amount)
    right = elementwise(lambda x, y, n: (y << 32 | x) >> count(n) & 0xFFFFFFFF, np.uint32, a, b, amount)
    for direction, expected in (("l", left), ("r", right)):
        text = f"shf.{direction}.{mode}.b32 %d0, %s0, %s1, %s2;"
        check(one(engine, text, [a, b, amount], np.uint32), expected, a, b, amount)


# The documented tables: bytes d.b3, d.b2, d.b1, d.b0 for selectors 0 to 3.
PERMUTE = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", PERMUTE)
def test_prmt_modes(engine: str, mode: str) -> None:
    a, b, c = (np.resize(integers(np.uint32, seed), 600) for seed in (12, 13, 14))

    def pick(x: int, y: int, selector: int) -> int:
        octets = (y << 32 | x).to_bytes(8, "little")
        chosen = PERMUTE[mode][selector & 3]
        return int.from_bytes(bytes(octets[int(i)] for i in reversed(chosen)), "little")

    text = f"prmt.b32.{mode} %d0, %s0, %s1, %s2;"
    check(one(engine, text, [a, b, c], np.uint32), elementwise(pick, np.uint32, a, b, c), a, b, c)


def test_prmt(engine: str) -> None:
    a, b, c = (np.resize(integers(np.uint32, seed, 1000), 2000) for seed in (15, 16, 17))

    def pick(x: int, y: int, control: int) -> int:
        octets = (y << 32 | x).to_bytes(8, "little")
        out = []
        for i in range(4):
            nibble = control >> 4 * i & 0xF
            octet = octets[nibble & 7]
            out.append((0xFF if octet & 0x80 else 0) if nibble & 8 else octet)
        return int.from_bytes(bytes(out), "little")

    text = "prmt.b32 %d0, %s0, %s1, %s2;"
    check(one(engine, text, [a, b, c], np.uint32), elementwise(pick, np.uint32, a, b, c), a, b, c)
