"""Building blocks of the SM90 kernels with bf16 products: wgmma, matrices in shared memory. CuTe DSL, sm_90a.

    sums = product(None, quads, descriptor(address))     # D = A B, in flight
    (sums,) = wait(0, [sums], quads)                     # now D may be read and A's registers written

D is 64 x N with f32 sums, A 64 x K in registers or in shared memory, B in shared memory. Thread t of a
warpgroup (warp w) has rows 16 w + t / 4 % 8 and + 8 of D, and of every 8 columns 2 (t % 4) and + 1: value
4 n + 2 half + j is row + 8 half, column 8 n + 2 (t % 4) + j. It has the same elements of A, as pairs: quad n
of 16 columns is made of values 8 n .. 8 n + 7 of a D with these columns (`quads_of`).

Tiles have rows of 128 bytes, 8 rows per 1 KiB, 16-byte chunk ^= row % 8 (`blackwell.load_layout`); further
columns of 64 values follow all rows. As B, a tile is N rows of K columns, or `transposed` K rows of N
columns.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
from cutlass._mlir.dialects import llvm

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

Quad = tuple[Any, Any, Any, Any]
"""A thread's part of 16 columns of A: four pairs of bf16."""

UNIT = 16
"""Unit of a descriptor's addresses and distances, in bytes."""
STEP = 16
"""Columns of A that one wgmma of 16-bit values multiplies."""
ROW = 128
"""Bytes of a row of a swizzled tile, 64 values of 16 bits."""
SWIZZLE_128 = 1 << 62
EIGHT_ROWS = (8 * ROW // UNIT) << 32
"""Stride field: the distance of groups of 8 rows."""
NO_STRIDE = 1 << 16
"""Leading-dimension field, which operands of up to 64 columns do not use."""


def descriptor(address: Any) -> Any:
    """The descriptor of a tile at shared address `address`, a multiple of 1 KiB."""
    return I64(SWIZZLE_128 + EIGHT_ROWS + NO_STRIDE) + I64(address >> 4)


def columns_from(rows: int, steps: int) -> list[int]:
    """Where steps of 16 columns begin in a tile of so many rows, in units: K of an operand."""
    return [(step // 4 * rows * ROW + step % 4 * 2 * STEP) // UNIT for step in range(steps)]


def rows_from(steps: int) -> list[int]:
    """Where steps of 16 rows begin, in units: K of a transposed operand."""
    return [step * STEP * ROW // UNIT for step in range(steps)]


def product(
    sums: list[Any] | None,
    a: list[Quad] | tuple[Any, list[int]],
    b: tuple[Any, list[int]],
    *,
    columns: int = 64,
    transposed: bool = False,
) -> list[Any]:
    """Start D + A B, or A B if `sums` is None, and commit it as a group. `b`, and `a` in shared memory, are a
    descriptor and where in the tile each step of K begins."""
    count, steps = columns // 2, len(b[1])
    in_registers = isinstance(a, list)
    others = [word for quad in a for word in quad] if isinstance(a, list) else [a[0]]
    first = count if sums is None else 2 * count
    d = ", ".join(f"${place}" for place in range(count))
    at_b = first + len(others)
    lines = [
        f".reg .pred first, further; .reg .b64 a<{steps}>, b<{steps}>;",
        f"setp.ne.b32 first, {int(sums is not None)}, 0; setp.ne.b32 further, 1, 0;",
    ]
    for step in range(steps):
        lines.append(f"add.s64 b{step}, ${at_b}, {b[1][step]};")
        if not isinstance(a, list):
            lines.append(f"add.s64 a{step}, ${first}, {a[1][step]};")
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(steps):
        if in_registers:
            left = ", ".join(f"${first + 4 * step + word}" for word in range(4))
            left, majors = f"{{{left}}}", f"{int(transposed)}"
        else:
            left, majors = f"a{step}", f"0, {int(transposed)}"
        add = "first" if step == 0 else "further"
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
            f" {{{d}}}, {left}, b{step}, {add}, 1, 1, {majors};"
        )
    lines.append("wgmma.commit_group.sync.aligned;")
    text = "{ " + " ".join(lines) + " }"
    kinds = ["r"] * len(others) if in_registers else ["l"]
    return _in_place(text, sums or [], [*others, b[0]], [*kinds, "l"], count)


def wait(pending: int, groups: list[list[Any]], *operands: list[Quad]) -> list[list[Any]]:
    """Wait until at most the last `pending` groups are in flight. Returns `groups`, the sums of products that
    are complete: they may be used from here on, and registers of `operands` reused."""
    values = [value for group in groups for value in group]
    others = [word for quads in operands for quad in quads for word in quad]
    text = f"wgmma.wait_group.sync.aligned {pending};"
    found = iter(_in_place(text, values, others, ["r"] * len(others), len(values)))
    return [[next(found) for _ in group] for group in groups]


def _in_place(text: str, values: list[Any], others: list[Any], kinds: list[str], count: int) -> list[Any]:
    """`values` after an instruction that has them as operands 0 .. and `others` after them; `count` new
    values if there are none."""
    if not count:
        llvm.inline_asm(None, [x.ir_value() for x in others], text, ",".join(kinds), has_side_effects=True)
        return []
    constraints = [*["=&f"] * count, *map(str, range(len(values))), *kinds]
    result = llvm.StructType.get_literal([F32.mlir_type] * count)
    operands = [x.ir_value() for x in (*values, *others)]
    found = llvm.inline_asm(result, operands, text, ",".join(constraints), has_side_effects=True)
    return [F32(llvm.extractvalue(F32.mlir_type, found, [place])) for place in range(count)]


def prefetch(address: Any) -> None:
    """Start to bring the line of a global address into the L2 cache."""
    llvm.inline_asm(None, [address.ir_value()], "prefetch.global.L2 [$0];", "l", has_side_effects=True)


def _pure(kind: Any, text: str, constraints: str, *values: Any, ordered: bool = False) -> Any:
    """An instruction without side effects, which the compiler may move unless it is `ordered`."""
    operands = [x.ir_value() for x in values]
    return kind(llvm.inline_asm(kind.mlir_type, operands, text, constraints, has_side_effects=ordered))


def fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return _pure(F32, "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", x, y, z)


def mul(x: Any, y: Any) -> Any:
    """x y, rounded: the compiler may not fuse it with a later sum."""
    return _pure(F32, "mul.rn.f32 $0, $1, $2;", "=f,f,f", x, y)


def bfloats(low: Any, high: Any, ordered: bool = False) -> Any:
    """Two floats, each rounded to bf16, in a word."""
    return _pure(I32, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", low, high, ordered=ordered)


def widened(word: Any) -> tuple[Any, Any]:
    """The two bf16 of a word as floats."""
    low = _pure(F32, "{ .reg .b32 x; shl.b32 x, $1, 16; mov.b32 $0, x; }", "=f,r", word)
    high = _pure(F32, "{ .reg .b32 x; and.b32 x, $1, 0xffff0000; mov.b32 $0, x; }", "=f,r", word)
    return low, high


def halves(low: Any, high: Any) -> Any:
    """Two floats, each rounded to fp16, in a word."""
    return _pure(I32, "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", low, high)


def widened_halves(word: Any) -> tuple[Any, Any]:
    """The two fp16 of a word as floats."""
    text = "{ .reg .b16 x<2>; mov.b32 {x0, x1}, $1; cvt.f32.f16 $0, x%d; }"
    low, high = (_pure(F32, text % place, "=f,r", word) for place in range(2))
    return low, high


def product_of_halves(sums: list[Any], a: Quad, b: tuple[Any, Any]) -> list[Any]:
    """D + A B by a warp: A 16 x 16 and B 16 x 8 of fp16, D 16 x 8 with f32 sums."""
    text = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9},"
    operands = [x.ir_value() for x in (*a, *b, *sums)]
    result = llvm.StructType.get_literal([F32.mlir_type] * 4)
    found = llvm.inline_asm(
        result,
        operands,
        f"{text} {{$10, $11, $12, $13}};",
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        has_side_effects=True,
    )
    return [F32(llvm.extractvalue(F32.mlir_type, found, [place])) for place in range(4)]


def quads_of(values: list[Any], ordered: bool = False) -> list[Quad]:
    """Sums as an operand: 8 values of a thread are its part of 16 columns. `ordered`: rounded at this point
    between waits, not behind a later one."""
    words = [bfloats(values[at], values[at + 1], ordered) for at in range(0, len(values), 2)]
    return [(words[at], words[at + 1], words[at + 2], words[at + 3]) for at in range(0, len(words), 4)]


def load_transposed(address: Any) -> Quad:
    """Load four matrices of 8 x 8 units of 16 bits, each transposed: lane l passes the address of row l % 8
    of matrix l / 8, and has rows 2 (l % 4) and + 1 of column l / 4."""
    result = llvm.StructType.get_literal([I32.mlir_type] * 4)
    text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];"
    found = llvm.inline_asm(result, [address.ir_value()], text, "=r,=r,=r,=r,r", has_side_effects=True)
    one, two, three, four = (I32(llvm.extractvalue(I32.mlir_type, found, [place])) for place in range(4))
    return one, two, three, four


def store_matrices(address: Any, quad: Quad, transposed: bool = False) -> None:
    """Store four matrices, as ldmatrix loads them; lane l passes the address of row l % 8 of matrix l / 8."""
    form = ".trans" if transposed else ""
    text = f"stmatrix.sync.aligned.m8n8.x4{form}.shared.b16 [$0], {{$1, $2, $3, $4}};"
    operands = [x.ir_value() for x in (address, *quad)]
    llvm.inline_asm(None, operands, text, "r,r,r,r,r", has_side_effects=True)
