"""Warpgroup instructions of sm_90a with integer addresses, registers and operands. CuTe DSL.

A product is D += A B, 64 x N x 16, f16 with f32 sums. Thread t of a warpgroup (warp w) has rows
16 w + t / 4 % 8 and + 8 of D, and of every 8 columns 2 (t % 4) and + 1: four sums, the first row's first. It
has the same rows of A and, as pairs, columns 2 (t % 4), + 1 and + 8: the first row's first pair, the second
row's, then their second pairs (PTX ISA, wgmma.mma_async, register fragments). B is in shared memory: N rows
of 16 adjacent values, 8 rows of 128 bytes per 1 KiB, 16-byte chunk ^= row % 8.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm

from gdnbench_kernels.swa_decode.warp_ops import Quad

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

SWIZZLE_128 = 1 << 62
EIGHT_ROWS = (1024 >> 4) << 32
"""Stride field of an operand's descriptor: the distance of groups of 8 rows."""
NO_STRIDE = 1 << 16
"""Leading-dimension field of the descriptor, which a swizzled operand does not use."""
UNIT = 16
"""Unit of a descriptor's addresses and distances, in bytes."""


def thread_in_role(first_warp: int) -> Any:
    """The thread index in this CTA relative to a warp. It is read anew each time, so that no register has to
    hold it across `setmaxnreg`."""
    text = "mov.u32 $0, %tid.x;"
    return I32(llvm.inline_asm(I32.mlir_type, [], text, "=r", has_side_effects=True)) - 32 * first_warp


def descriptor(address: Any) -> Any:
    """The descriptor of B, whose first row is at shared address `address`, a multiple of 1 KiB; add `bytes //
    UNIT` for later columns."""
    return I64(SWIZZLE_128 + EIGHT_ROWS + NO_STRIDE) + I64(address >> 4)


def fence() -> None:
    """wgmma.fence: required before the first product, and after another instruction wrote a register of A or
    D."""
    cute.arch.inline_ptx("wgmma.fence.sync.aligned;")


def commit() -> None:
    """wgmma.commit_group: group the products since the last commit."""
    cute.arch.inline_ptx("wgmma.commit_group.sync.aligned;")


def wait(pending: int) -> None:
    """wgmma.wait_group: wait until at most the last `pending` groups are in flight."""
    cute.arch.inline_ptx(f"wgmma.wait_group.sync.aligned {pending};")


def results(sums: list[Any]) -> list[Any]:
    """The same sums, with a dependency that keeps the compiler from using them earlier."""
    return _in_place("// all sums are there", sums, (), "")


def mma_async(sums: list[Any] | None, a: Quad, b: Any, columns: int) -> list[Any]:
    """D + A B, or A B if `sums` is None; `columns` is N. The result is valid after `wait` and `results`."""
    count = columns // 2
    d = ", ".join(f"${place}" for place in range(count))
    first = count if sums is None else 2 * count
    a0, a1, a2, a3, descriptor = (f"${first + place}" for place in range(5))
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, {int(sums is not None)}, 0;"
        f" wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16"
        f" {{{d}}}, {{{a0}, {a1}, {a2}, {a3}}}, {descriptor}, p, 1, 1, 0; }}"
    )
    return _in_place(text, sums or [], (*a, b), "r,r,r,r,l", count)


def _in_place(text: str, values: list[Any], others: tuple[Any, ...], kinds: str, count: int = 0) -> list[Any]:
    """`values` after an instruction that has them as operands 0 .. and `others` after them; `count` new
    values if there are none. CuTe DSL's inline PTX cannot return operands that are both read and written."""
    count = count or len(values)
    constraints = [*["=f"] * count, *map(str, range(len(values))), *([kinds] if kinds else [])]
    result = llvm.StructType.get_literal([F32.mlir_type] * count)
    operands = [x.ir_value() for x in (*values, *others)]
    found = llvm.inline_asm(result, operands, text, ",".join(constraints), has_side_effects=True)
    return [F32(llvm.extractvalue(F32.mlir_type, found, [place])) for place in range(count)]


def store_matrices_transposed(address: Any, *words: Any) -> None:
    """Store four matrices of 8 x 8 units of 16 bits, each transposed: lane l has columns 2 (l % 4) and + 1 of
    row l / 4, and passes the address of column l % 8 of matrix l / 8."""
    cute.arch.inline_ptx(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[address, *words],
    )


def store_bulk(target: Any, shared: Any, size: int) -> None:
    """Copy `size` bytes from shared to global memory, in the thread's bulk group."""
    cute.arch.inline_ptx(
        f"cp.async.bulk.global.shared::cta.bulk_group [{{$r0}}], [{{$r1}}], {size};",
        read_only_args=[target, shared],
    )
