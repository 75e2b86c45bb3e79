# SPDX-License-Identifier: Apache-2.0
"""Per-lane lookup in small tables of 32-bit constants, in several tables by one index.

With AVX-512 a table is in registers: one instruction looks up 32 words for 16 lanes. On other CPUs it is in
memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gdnbench.sim.compiler.emit import I1, I32, LANES, Code, Value, const, lane_constants, lanes_of
from gdnbench.sim.compiler.native import has_feature

_HALF = 16
_PAIR = 32
_REGISTER = f"<{_HALF} x i32>"


def look_up(code: Code, tables: Sequence[Sequence[int]], index: Value) -> list[Value]:
    """`table[index]` in each lane, for each table. The tables are equally long; the index is in range."""
    if has_feature("avx512f"):
        return _from_registers(code, tables, index)
    return [_from_memory(code, table, index) for table in tables]


def _from_registers(code: Code, tables: Sequence[Sequence[int]], index: Value) -> list[Value]:
    halves = [code.shuffle(index, range(start, start + _HALF)) for start in range(0, LANES, _HALF)]
    bits = range(_PAIR.bit_length() - 1, (len(tables[0]) - 1).bit_length())
    upper = [code.comparei("icmp ne", code.opi("and", index, 1 << bit), 0) for bit in bits]
    found = []
    for table in tables:
        padded = [*table, *[0] * (-len(table) % (_PAIR << len(upper)))]
        chosen = [_pair(code, padded[at : at + _PAIR], halves) for at in range(0, len(padded), _PAIR)]
        for mask in upper:
            pairs = zip(chosen[::2], chosen[1::2], strict=True)
            chosen = [code.select(mask, high, low) for low, high in pairs]
        found.append(chosen[0])
    return found


def _pair(code: Code, words: Sequence[int], halves: Sequence[Value]) -> Value:
    """Select one of 32 words by the low five bits of an index."""
    low, high = (lane_constants("i32", words[at : at + _HALF]) for at in (0, _HALF))
    name = "x86.avx512.vpermi2var.d.512"
    parts = [code.intrinsic(name, _REGISTER, low, half, high, suffix="") for half in halves]
    return code.shuffle(parts[0], range(LANES), parts[1])


def _from_memory(code: Code, table: Sequence[int], index: Value) -> Value:
    words = ", ".join(f"i32 {word}" for word in table)
    constant = f"[{len(table)} x i32] [{words}]"
    name = f"@table_{hashlib.sha256(constant.encode()).hexdigest()[:16]}"
    code.library.declarations[name] = f"{name} = internal constant {constant}"
    offsets = code.opi("shl", index, 2)
    places = code.value(lanes_of("ptr"), f"getelementptr i8, ptr {name}, {offsets}")
    everyone = const(I1, 1)
    poison = Value(I32, "poison")
    name, align = "masked.gather", const("i32", 4)
    return code.intrinsic(name, I32, places, align, everyone, poison, suffix="v32i32.v32p0")
