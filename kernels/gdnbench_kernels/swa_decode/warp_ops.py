"""Warp instructions on raw bytes that CuTe DSL does not offer, as inline PTX. sm_89 and later.

Addresses are integers: 32 bits for shared memory, 64 for global memory. From a matrix of 8 rows of 16 bytes
`ldmatrix` loads 4 bytes of row l / 4 to lane l; transposed, it loads 2 bytes, number l / 4, of each of rows
2 (l % 4) and + 1.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm

from gdnbench_kernels.warp_values import bfloats as bfloats
from gdnbench_kernels.warp_values import float_of as float_of
from gdnbench_kernels.warp_values import reciprocal as reciprocal
from gdnbench_kernels.warp_values import select_value as select_value
from gdnbench_kernels.warp_values import widened as widened

I32, F32 = cutlass.Int32, cutlass.Float32

Pair = tuple[Any, Any]
Quad = tuple[Any, Any, Any, Any]

EVEN_THEN_ODD = 0x3120
"""Selector of `prmt`: bytes 0 and 2, then 1 and 3."""


def ldmatrix(address: Any) -> Quad:
    """Load four matrices; lane l passes the address of row l % 8 of matrix l / 8."""
    return _four("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];", address)


def ldmatrix_transposed(address: Any) -> Quad:
    """Like `ldmatrix`, with each matrix of 8 x 8 units of 16 bits transposed."""
    return _four(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];", address
    )


def load_shared(address: Any) -> Quad:
    """Load 16 bytes."""
    return _four("ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];", address)


def _four(text: str, address: Any) -> Quad:
    found: Quad = cute.arch.inline_ptx(text, write_only_types=[I32, I32, I32, I32], read_only_args=[address])
    return found


def load_global_if(given: Any, address: Any) -> Quad:
    """Load 16 bytes; zeros without a load if `given` is 0. Not `ld.global.nc`, which ptxas moves before a
    `griddepcontrol.wait`."""
    found: Quad = cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.s32 p, {$r1}, 0; mov.b32 {$w0}, 0; mov.b32 {$w1}, 0; mov.b32 {$w2}, 0;"
        " mov.b32 {$w3}, 0; @p ld.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}]; }",
        write_only_types=[I32, I32, I32, I32],
        read_only_args=[address, given],
    )
    return found


def load_byte_if(given: Any, address: Any) -> Any:
    """Load an unsigned byte; 0 without a load if `given` is 0."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.s32 p, {$r1}, 0; mov.b32 {$w0}, 0; @p ld.global.u8 {$w0}, [{$r0}]; }",
        write_only_types=[I32],
        read_only_args=[address, given],
    )


def load_shared_half(address: Any) -> Any:
    """Load 16 bits, repeated in both halves of a register."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 x; ld.shared.b16 x, [{$r0}]; mov.b32 {$w0}, {x, x}; }",
        write_only_types=[I32],
        read_only_args=[address],
    )


def load_shared_word(address: Any) -> Any:
    return cute.arch.inline_ptx(
        "ld.shared.b32 {$w0}, [{$r0}];", write_only_types=[I32], read_only_args=[address]
    )


def load_shared_floats(address: Any) -> Pair:
    found: Pair = cute.arch.inline_ptx(
        "ld.shared.v2.f32 {{$w0}, {$w1}}, [{$r0}];", write_only_types=[F32, F32], read_only_args=[address]
    )
    return found


def load_shared_float(address: Any) -> Any:
    return cute.arch.inline_ptx(
        "ld.shared.f32 {$w0}, [{$r0}];", write_only_types=[F32], read_only_args=[address]
    )


def store_shared(address: Any, *words: Any) -> None:
    """Store 1, 2 or 4 words of 32 bits, integers or floats."""
    _store("shared", address, words)


def store_global(address: Any, *words: Any) -> None:
    """Store 1, 2 or 4 words of 32 bits, integers or floats."""
    _store("global", address, words)


def _store(space: str, address: Any, words: tuple[Any, ...]) -> None:
    kind = "f32" if isinstance(words[0], F32) else "b32"
    names = ", ".join(f"{{$r{place + 1}}}" for place in range(len(words)))
    vector, value = ("", names) if len(words) == 1 else (f".v{len(words)}", f"{{{names}}}")
    cute.arch.inline_ptx(f"st.{space}{vector}.{kind} [{{$r0}}], {value};", read_only_args=[address, *words])


def store_shared_half(address: Any, value: Any) -> None:
    """Store a float, rounded to 16 bits."""
    cute.arch.inline_ptx(
        "{ .reg .b16 x; cvt.rn.f16.f32 x, {$r1}; st.shared.b16 [{$r0}], x; }", read_only_args=[address, value]
    )


def load_index(address: Any) -> Any:
    """Load a word of global memory; the load is issued at this point."""
    return cute.arch.inline_ptx(
        "ld.global.b32 {$w0}, [{$r0}];", write_only_types=[I32], read_only_args=[address]
    )


def load_index_early(address: Any) -> Any:
    """Load a word of global memory that another kernel may be writing. A relaxed load leaves no line in L1,
    from which a later load might take an old value."""
    return cute.arch.inline_ptx(
        "ld.relaxed.gpu.global.b32 {$w0}, [{$r0}];", write_only_types=[I32], read_only_args=[address]
    )


def multiprocessors() -> Any:
    """SMs of the GPU; on some more, because their numbers have gaps."""
    return I32(llvm.inline_asm(I32.mlir_type, [], "mov.u32 $0, %nsmid;", "=r"))


def prefetch(address: Any) -> None:
    """Prefetch the cache line of a word of global memory into L2."""
    cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[address])


def prefetch_bulk(source: Any, size: Any) -> None:
    """Prefetch `size` bytes of global memory, a multiple of 16, into L2."""
    cute.arch.inline_ptx("cp.async.bulk.prefetch.L2.global [{$r0}], {$r1};", read_only_args=[source, size])


def copy_bulk(shared: Any, source: Any, size: int, barrier: Any) -> None:
    """Copy `size` bytes, a multiple of 16, from global to shared memory, completing them at `barrier`."""
    cute.arch.inline_ptx(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        f" [{{$r0}}], [{{$r1}}], {size}, [{{$r2}}];",
        read_only_args=[shared, source, barrier],
    )


def shuffled_wide(value: Any, lane: int) -> Any:
    """The 64 bits that a lane has, in all lanes."""
    return cute.arch.inline_ptx(
        "{ .reg .b32 x; .reg .b32 y; mov.b64 {x, y}, {$r0};"
        f" shfl.sync.idx.b32 x, x, {lane}, 31, -1; shfl.sync.idx.b32 y, y, {lane}, 31, -1;"
        " mov.b64 {$w0}, {x, y}; }",
        write_only_types=[cutlass.Int64],
        read_only_args=[value],
    )


def halves_of_codes(codes: Any) -> Pair:
    """(bytes 0 and 1, bytes 2 and 3) of four e4m3 numbers as f16, exactly."""
    found: Pair = cute.arch.inline_ptx(
        "{ .reg .b16 x, y; mov.b32 {x, y}, {$r0};"
        " cvt.rn.f16x2.e4m3x2 {$w0}, x; cvt.rn.f16x2.e4m3x2 {$w1}, y; }",
        write_only_types=[I32, I32],
        read_only_args=[codes],
    )
    return found


def transposed_halves_of_codes(word: Any) -> Pair:
    """A word of `ldmatrix_transposed` of codes, with two codes of each of two rows, as f16: (the first codes
    of both rows, the second codes of both)."""
    return halves_of_codes(
        cute.arch.inline_ptx(
            f"prmt.b32 {{$w0}}, {{$r0}}, 0, {EVEN_THEN_ODD};", write_only_types=[I32], read_only_args=[word]
        )
    )


def halves(low: Any, high: Any) -> Any:
    """Two floats, each rounded to f16."""
    return cute.arch.inline_ptx(
        "cvt.rn.f16x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[I32], read_only_args=[low, high]
    )


def bits_of(value: Any) -> Any:
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[I32], read_only_args=[value])


def power_of_two(exponent: Any) -> Any:
    """2^exponent as a float, -126 to 127."""
    return float_of((exponent + 127) << 23)


def scaled(pair: Any, factors: Any) -> Any:
    """Two products of f16."""
    return cute.arch.inline_ptx(
        "mul.rn.f16x2 {$w0}, {$r0}, {$r1};", write_only_types=[I32], read_only_args=[pair, factors]
    )


def product(x: Any, y: Any) -> Any:
    """x y, rounded: the compiler may not fuse it with a later sum."""
    return cute.arch.inline_ptx(
        "mul.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[F32], read_only_args=[x, y]
    )


def exp2(x: Any) -> Any:
    """2^x; 0 below -126."""
    return cute.arch.inline_ptx(
        "ex2.approx.ftz.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x]
    )


def exp2_whole(x: Any) -> Any:
    """2^x, including subnormal results."""
    return cute.arch.inline_ptx("ex2.approx.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x])


def log2(x: Any) -> Any:
    return cute.arch.inline_ptx(
        "lg2.approx.ftz.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x]
    )


def greater(x: Any, y: Any) -> Any:
    """The maximum of two floats; of a number and a NaN the number."""
    return cute.arch.inline_ptx("max.f32 {$w0}, {$r0}, {$r1};", write_only_types=[F32], read_only_args=[x, y])


def lesser(x: Any, y: Any) -> Any:
    """The minimum of two floats; of a number and a NaN the number."""
    return cute.arch.inline_ptx("min.f32 {$w0}, {$r0}, {$r1};", write_only_types=[F32], read_only_args=[x, y])


def fused(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return cute.arch.inline_ptx(
        "fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[F32], read_only_args=[x, y, z]
    )


def greater_halves(x: Any, y: Any) -> Any:
    """The maximum of each of two unsigned 16-bit numbers."""
    return cute.arch.inline_ptx(
        "max.u16x2 {$w0}, {$r0}, {$r1};", write_only_types=[I32], read_only_args=[x, y]
    )


def round_up(x: Any) -> Any:
    """The smallest integer that is not below x, as a float."""
    return cute.arch.inline_ptx("cvt.rpi.f32.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x])


def mma(acc: cute.Tensor, first: int, a: Quad, b: Pair) -> None:
    """acc[first .. first + 3] += A B: A is 16 x 16 and B 16 x 8, both f16, sums f32."""
    sums = cute.arch.inline_ptx(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{$w0}, {$w1}, {$w2}, {$w3}},"
        " {{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[F32, F32, F32, F32],
        read_only_args=[*a, *b, *(acc[first + place] for place in range(4))],
    )
    for place in range(4):
        acc[first + place] = sums[place]


def greatest(values: list[Any]) -> Any:
    """The maximum of floats, ignoring NaN."""
    found = values[0]
    for value in values[1:]:
        found = greater(found, value)
    return found


def across(value: Any, lanes: int = 4) -> Any:
    """The maximum over the lanes that share a row."""
    for step in powers_of_two(lanes):
        value = greater(value, cute.arch.shuffle_sync_bfly(value, step))
    return value


def summed(value: Any, lanes: int = 4) -> Any:
    """The sum over the lanes that share a row."""
    for step in powers_of_two(lanes):
        value = value + cute.arch.shuffle_sync_bfly(value, step)
    return value


def sum_in_pairs(values: list[Any]) -> Any:
    """The sum in pairs, then pairs of pairs."""
    while len(values) > 1:
        values = [x + y for x, y in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def powers_of_two(below: int) -> list[int]:
    """1, 2, 4 ..., excluding `below`."""
    return [1 << place for place in range(below.bit_length() - 1)]
