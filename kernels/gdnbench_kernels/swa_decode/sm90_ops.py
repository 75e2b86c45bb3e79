"""Instructions of a warpgroup on sm_90a, with addresses, registers and operands as numbers. CuTe DSL.

A product is D += A B, 64 x N x 16, f16 with f32 sums. Thread t of a warpgroup has, of D, rows
16 w + t / 4 % 8 and + 8 (w its warp), of every 8 columns 2 (t % 4) and + 1: four sums, those of the first row
first. Of A it has the same rows and, as pairs, columns 2 (t % 4), + 1 and + 8: the first row's first pair,
the second row's, then their second pairs (PTX ISA, wgmma.mma_async, register fragments). B lies in shared
memory, N rows of 16 adjacent values, 8 rows of 128 bytes to 1 KiB, 16-byte chunk ^= row % 8.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm

from gdnbench_kernels.swa_decode.warp_ops import Quad

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

SWIZZLE_128 = 1 << 62
EIGHT_ROWS = (1024 >> 4) << 32
"""Of an operand's descriptor: what one 8 rows and the next are apart."""
NO_STRIDE = 1 << 16
"""What the field of the distance between chunks is, which a swizzled operand does not use."""
UNIT = 16
"""Bytes that a descriptor counts in."""


def thread_in_role(first_warp: int) -> Any:
    """Of this CTA, counted from a warp; read anew, so that no register need hold it across `setmaxnreg`."""
    text = "mov.u32 $0, %tid.x;"
    return I32(llvm.inline_asm(I32.mlir_type, [], text, "=r", has_side_effects=True)) - 32 * first_warp


def descriptor(address: Any) -> Any:
    """The descriptor of B, whose first row is at `address` in shared memory, a multiple of 1 KiB; plus
    `bytes // UNIT` it is that of columns further on."""
    return I64(SWIZZLE_128 + EIGHT_ROWS + NO_STRIDE) + I64(address >> 4)


def fence() -> None:
    """Before the first product, and where a register of A or D was written otherwise since the last."""
    cute.arch.inline_ptx("wgmma.fence.sync.aligned;")


def commit() -> None:
    """Makes a group of the products since the last."""
    cute.arch.inline_ptx("wgmma.commit_group.sync.aligned;")


def wait(pending: int) -> None:
    """Until no more than the last `pending` groups are at work."""
    cute.arch.inline_ptx(f"wgmma.wait_group.sync.aligned {pending};")


def results(sums: list[Any]) -> list[Any]:
    """The same sums, which nothing may use before here: the compiler knows no other reason."""
    return _in_place("// all sums are there", sums, (), "")


def mma_async(sums: list[Any] | None, a: Quad, b: Any, columns: int) -> list[Any]:
    """D + A B, or A B where there are no sums yet; `columns` is N. There after `wait` and `results`."""
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
    """`values` as an instruction leaves them that has them for operands 0 .. and, where there are any, for
    as many after them; `count` new ones where there are none. CuTe DSL's own inline PTX returns no operand
    that is read and written."""
    count = count or len(values)
    constraints = [*["=f"] * count, *map(str, range(len(values))), *([kinds] if kinds else [])]
    result = llvm.StructType.get_literal([F32.mlir_type] * count)
    operands = [x.ir_value() for x in (*values, *others)]
    found = llvm.inline_asm(result, operands, text, ",".join(constraints), has_side_effects=True)
    return [F32(llvm.extractvalue(F32.mlir_type, found, [place])) for place in range(count)]


def store_matrices_transposed(address: Any, *words: Any) -> None:
    """Four matrices of 8 x 8 units of 16 bits, each transposed: lane l has, of row l / 4, columns 2 (l % 4)
    and + 1, and gives the address of column l % 8 of matrix l / 8."""
    cute.arch.inline_ptx(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[address, *words],
    )


def store_bulk(target: Any, shared: Any, size: int) -> None:
    """`size` bytes from shared to global memory, in the thread's bulk group."""
    cute.arch.inline_ptx(
        f"cp.async.bulk.global.shared::cta.bulk_group [{{$r0}}], [{{$r1}}], {size};",
        read_only_args=[target, shared],
    )


def prefetch_bulk(source: Any, size: Any) -> None:
    """`size` bytes of global memory, a multiple of 16, on their way to L2."""
    cute.arch.inline_ptx("cp.async.bulk.prefetch.L2.global [{$r0}], {$r1};", read_only_args=[source, size])


def prefetch(source: Any) -> None:
    """A word of global memory, and what else its line has, on its way to L2."""
    cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[source])
