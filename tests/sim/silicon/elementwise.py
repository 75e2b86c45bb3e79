# SPDX-License-Identifier: Apache-2.0
"""Many instructions over the same inputs: a thread loads operands, runs each instruction, stores each result.

An `Operation` is PTX text with placeholders:

    $a $b $c ...  the inputs in order, in registers of their width
    $d, $d1 ...   result registers, one per entry of `outs`
    $m, $m1 ...   the address (global) of the same results' slots, for instructions that write memory; an
                  entry of `outs` with a star ("b32*") is such a slot and is not stored by the wrapper
    $p $q         predicates of this operation's own
    $k            a number of its own, for labels
    $s            this thread's 16 bytes of shared memory (32-bit address), if the kernel asks for any
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.sim.silicon.microkernel import Array, Buffer, MicroKernel, entry

BLOCK = 256
LETTERS = "abcefghijl"  # d, k, m, p, q, s mean other things
UNSIGNED: dict[str, npt.DTypeLike] = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}


@dataclass(frozen=True, slots=True)
class Operation:
    label: str
    text: str
    outs: tuple[str, ...]


def op(spelling: str, out: str = "b32", sources: int = 1) -> Operation:
    """`spelling d, a, b, ...;` with as many sources as said."""
    operands = ", ".join(f"${letter}" for letter in LETTERS[:sources])
    return Operation(spelling, f"{spelling} $d, {operands};", (out,))


def asm(label: str, text: str, *outs: str) -> Operation:
    return Operation(label, text, outs)


def width(kind: str) -> int:
    """Bytes of `b32` or `b32*`."""
    return int(kind.strip("*")[1:]) // 8


class _Writer:
    """Registers and slots while the operations are spelled out."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.registers = {"b16": 0, "b32": 0, "b64": 0}
        self.rows: dict[int, list[str]] = {2: [], 4: [], 8: []}
        self.lines: list[str] = []

    def register(self, kind: str) -> str:
        self.registers[kind] += 1
        return f"%{'hrd'[('b16', 'b32', 'b64').index(kind)]}{self.registers[kind] - 1}"

    def write(self, number: int, operation: Operation, inputs: dict[str, str]) -> None:
        names = {**inputs, "k": str(number), "p": f"%p{2 * number}", "q": f"%p{2 * number + 1}", "s": "%mine"}
        stores = []
        for i, out in enumerate(operation.outs):
            suffix = str(i) if i else ""
            size = width(out)
            tag = f" -> {i}" if len(operation.outs) > 1 else ""
            self.rows[size].append(operation.label + tag)
            slot = f"[%out{size}+{(len(self.rows[size]) - 1) * self.count * size}]"
            names["m" + suffix] = slot
            if not out.endswith("*"):
                names["d" + suffix] = self.register(out)
                stores.append(f"st.global.{out} {slot}, {names['d' + suffix]};")
        text = re.sub(r"\$([a-z]\d*)", lambda match: names[match[1]], operation.text)
        self.lines += [*text.split("\n"), *stores]


def elementwise(
    name: str,
    inputs: Sequence[Array],
    operations: Sequence[Operation],
    *,
    declare: str = "",
    prologue: str = "",
    shared: bool = False,
) -> MicroKernel:
    """One thread per element of `inputs`, all of the same length; every operation's results in a row each."""
    count = inputs[0].size
    block = min(BLOCK, count)
    if count % block:
        raise ValueError(f"{name}: {count} elements do not fill blocks of {block}")
    writer = _Writer(count)
    named = {}
    loads = []
    for letter, data in zip(LETTERS, inputs, strict=False):
        kind = f"b{data.dtype.itemsize * 8}"
        named[letter] = writer.register(kind)
        loads += [
            f"ld.param.b64 %at, [in_{letter}];",
            f"mad.wide.u32 %at, %i, {data.dtype.itemsize}, %at;",
            f"ld.global.{kind} {named[letter]}, [%at];",
        ]
    for number, operation in enumerate(operations):
        writer.write(number, operation, named)
    outs = [size for size, rows in writer.rows.items() if rows]
    body = [
        ".reg .b32 %i, %t, %n, %mine;\n.reg .b64 %at, %out2, %out4, %out8;",
        f".reg .pred %p<{2 * len(operations)}>;",
        *(f".reg .{kind} %{'hrd'[i]}<{n}>;" for i, (kind, n) in enumerate(writer.registers.items()) if n),
        *([declare] if declare else []),
        *([f".shared .align 512 .b8 mine[{16 * block}];"] if shared else []),
        "mov.u32 %i, %ctaid.x;\nmov.u32 %n, %ntid.x;\nmov.u32 %t, %tid.x;\nmad.lo.s32 %i, %i, %n, %t;",
        *(["mov.b32 %mine, mine;\nmad.lo.s32 %mine, %t, 16, %mine;"] if shared else []),
        *loads,
        *(f"ld.param.b64 %out{s}, [out_{s}];\nmad.wide.u32 %out{s}, %i, {s}, %out{s};" for s in outs),
        *([prologue] if prologue else []),
        *writer.lines,
        "ret;",
    ]
    params = [f".param .b64 in_{letter}" for letter in named] + [f".param .b64 out_{size}" for size in outs]
    buffers = [Buffer(f"in_{x}", data) for x, data in zip(named, inputs, strict=True)]
    for size in outs:
        # 0xA5 tells a result that was never written from one that is zero.
        empty = np.full((len(writer.rows[size]), count * size), 0xA5, np.uint8).view(UNSIGNED[f"b{8 * size}"])
        buffers.append(Buffer(f"out_{size}", empty, tuple(writer.rows[size])))
    text = entry(name, ", ".join(params), "\n".join(body))
    return MicroKernel(name, text, tuple(buffers), count // block, block)
