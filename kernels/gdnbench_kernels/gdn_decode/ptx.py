"""Inline PTX of the decode kernel: loads and stores with cache hints, and float arithmetic with explicit
rounding. CuTe DSL, sm_90 and later.

Addresses are integers, 64 bits for global and 32 bits for shared memory; `offset` is in bytes. A product and
a sum are either one `fma` or two instructions with `.rn`, which ptxas does not contract. So the bits are
those of the simulator.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from gdnbench_kernels.warp_values import bfloats as bfloats
from gdnbench_kernels.warp_values import float_of as float_of
from gdnbench_kernels.warp_values import reciprocal as reciprocal
from gdnbench_kernels.warp_values import select_value as select_value
from gdnbench_kernels.warp_values import widened as widened

I32, F32 = cutlass.Int32, cutlass.Float32

EVICT_FIRST = 0x12F0000000000000
"""The cache policy that `createpolicy.fractional.L2::evict_first` makes for the whole of an access."""

Words = list[Any]


def load_if(given: Any, address: Any, offset: int, advice: str, kind: Any) -> Words:
    """16 bytes of global memory as four words of `kind`; zeros, and no load, where `given` is negative.
    Predicated, not branched: ptxas could sink other loads below a branch."""
    modifier, policy = _advice(advice)
    zeros = " ".join(f"mov.b32 {{$w{place}}}, 0;" for place in range(4))
    return list(
        cute.arch.inline_ptx(
            f"{{ .reg .pred p; setp.ge.s32 p, {{$r1}}, 0; {zeros} @p ld.global{modifier}.v4.{_type(kind)}"
            f" {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}}+{offset}]{policy}; }}",
            write_only_types=[kind] * 4,
            read_only_args=[address, given],
        )
    )


def store(address: Any, offset: int, words: Words, advice: str) -> None:
    """1, 2 or 4 words to global memory."""
    modifier, policy = _advice(advice)
    vector, text = _vector(words)
    cute.arch.inline_ptx(
        f"st.global{modifier}{vector}.{_type(type(words[0]))} [{{$r0}}+{offset}], {text}{policy};",
        read_only_args=[address, *words],
    )


def store_if(given: Any, address: Any, words: Words) -> None:
    """1, 2 or 4 words to global memory, unless `given` is negative. Predicated: the address is computed in
    either case."""
    count = len(words)
    vector = "" if count == 1 else f".v{count}"
    names = ", ".join(f"{{$r{place + 2}}}" for place in range(count))
    cute.arch.inline_ptx(
        f"{{ .reg .pred p; setp.ge.s32 p, {{$r1}}, 0; @p st.global{vector}.{_type(type(words[0]))} [{{$r0}}],"
        f" {names if count == 1 else '{' + names + '}'}; }}",
        read_only_args=[address, given, *words],
    )


def store_bf16_if(given: Any, address: Any, value: Any) -> None:
    """As `store_if`, a float rounded to bf16."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; .reg .b16 x; .reg .b16 y; mov.b32 {x, y}, {$r2}; setp.ge.s32 p, {$r1}, 0;"
        " @p st.global.b16 [{$r0}], x; }",
        read_only_args=[address, given, bfloats(value, value)],
    )


def load_index(address: Any) -> Any:
    """A word of global memory. Not `ld.global.nc`: ptxas reorders that freely."""
    return cute.arch.inline_ptx(
        "ld.global.b32 {$w0}, [{$r0}];", write_only_types=[I32], read_only_args=[address]
    )


def load_index_if(given: Any, address: Any, other: int) -> Any:
    """As `load_index`; `other`, and no load, where `given` is negative."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ge.s32 p, {$r1}, 0; mov.b32 {$w0}, "
        f"{other}; @p ld.global.b32 {{$w0}}, [{{$r0}}]; }}",
        write_only_types=[I32],
        read_only_args=[address, given],
    )


def load_float(address: Any, kind: Any) -> Any:
    """An element of f32, bf16 or f16 of global memory."""
    if kind is cutlass.Float32:
        return float_of(load_index(address))
    # A bf16 is the high half of a float.
    widen = "mov.b16 y, 0; mov.b32 {$w0}, {y, x};" if kind is cutlass.BFloat16 else "cvt.f32.f16 {$w0}, x;"
    return cute.arch.inline_ptx(
        f"{{ .reg .b16 x; .reg .b16 y; ld.global.b16 x, [{{$r0}}]; {widen} }}",
        write_only_types=[F32],
        read_only_args=[address],
    )


def load_words(address: Any, words: int, kind: Any = I32) -> Words:
    """2 or 4 words of global memory. Not `ld.global.nc`, as above."""
    names = ", ".join(f"{{$w{place}}}" for place in range(words))
    return list(
        cute.arch.inline_ptx(
            f"ld.global.v{words}.{_type(kind)} {{{names}}}, [{{$r0}}];",
            write_only_types=[kind] * words,
            read_only_args=[address],
        )
    )


def floats_of(words: Words, kind: Any) -> list[Any]:
    """The elements of words of f32, bf16 or f16, as floats."""
    if kind is cutlass.Float32:
        return [float_of(word) for word in words]
    if kind is cutlass.BFloat16:
        return [value for word in words for value in widened(word)]
    return [
        cute.arch.inline_ptx(
            f"{{ .reg .b16 x; .reg .b16 y; mov.b32 {{x, y}}, {{$r0}}; cvt.f32.f16 {{$w0}}, {half}; }}",
            write_only_types=[F32],
            read_only_args=[word],
        )
        for word in words
        for half in "xy"
    ]


def false_dependency(value: Any, floats: list[Any]) -> Any:
    """`value` with a false dependency on `floats`: a load from an address made of the result is issued only
    after they have arrived. Adds popc(x) >> 6 of the floats' bits: always 0, which ptxas does not know."""
    mixed = "mov.b32 x, {$r1};" + "".join(
        f" mov.b32 y, {{$r{place}}}; xor.b32 x, x, y;" for place in range(2, len(floats) + 1)
    )
    return cute.arch.inline_ptx(
        f"{{ .reg .b32 x; .reg .b32 y; {mixed} popc.b32 x, x; shr.u32 x, x, 6;"
        " add.s32 {$w0}, {$r0}, x; }",
        write_only_types=[I32],
        read_only_args=[value, *floats],
    )


def cp_async_16B(shared: Any, source: Any) -> None:
    """cp.async of 16 bytes from global to shared memory. It is issued here: ptxas does not move cp.async."""
    cute.arch.inline_ptx("cp.async.cg.shared.global [{$r0}], [{$r1}], 16;", read_only_args=[shared, source])


def cp_async_16B_if(given: Any, shared: Any, source: Any) -> None:
    """As `cp_async_16B`, unless `given` is negative."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ge.s32 p, {$r2}, 0; @p cp.async.cg.shared.global [{$r0}], [{$r1}], 16; }",
        read_only_args=[shared, source, given],
    )


def cp_async(shared: Any, source: Any, size: int) -> None:
    """As `cp_async_16B`, 4, 8 or 16 bytes."""
    cute.arch.inline_ptx(
        f"cp.async.ca.shared.global [{{$r0}}], [{{$r1}}], {size};", read_only_args=[shared, source]
    )


def cp_async_arrive(barrier: Any) -> None:
    """Arrive at `barrier` when this thread's earlier cp.async have landed: one counted arrival (.noinc)."""
    cute.arch.inline_ptx("cp.async.mbarrier.arrive.noinc.shared.b64 [{$r0}];", read_only_args=[barrier])


def load_shared(address: Any, offset: int, words: int, kind: Any = I32) -> Words:
    """1, 2 or 4 words of shared memory."""
    vector = "" if words == 1 else f".v{words}"
    names = ", ".join(f"{{$w{place}}}" for place in range(words))
    found = cute.arch.inline_ptx(
        f"ld.shared{vector}.{_type(kind)} {names if words == 1 else '{' + names + '}'}, [{{$r0}}+{offset}];",
        write_only_types=[kind] * words,
        read_only_args=[address],
    )
    return [found] if words == 1 else list(found)


def load_shared_bf16(address: Any, offset: int) -> Any:
    """A bf16 of shared memory as a float."""
    return cute.arch.inline_ptx(
        f"{{ .reg .b16 x; .reg .b16 y; ld.shared.b16 x, [{{$r0}}+{offset}];"
        " mov.b16 y, 0; mov.b32 {$w0}, {y, x}; }",
        write_only_types=[F32],
        read_only_args=[address],
    )


def store_shared(address: Any, offset: int, words: Words) -> None:
    """1, 2 or 4 words to shared memory."""
    vector, text = _vector(words)
    cute.arch.inline_ptx(
        f"st.shared{vector}.{_type(type(words[0]))} [{{$r0}}+{offset}], {text};",
        read_only_args=[address, *words],
    )


def bulk_load(shared: Any, source: Any, size: int, barrier: Any, advice: str) -> None:
    """cp.async.bulk of `size` bytes, a multiple of 16, from global to shared memory, counted by `barrier`."""
    hint, policy = _bulk_advice(advice)
    cute.arch.inline_ptx(
        f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{hint}"
        f" [{{$r0}}], [{{$r1}}], {size}, [{{$r2}}]{policy};",
        read_only_args=[shared, source, barrier],
    )


def bulk_store(target: Any, shared: Any, size: int, advice: str) -> None:
    """cp.async.bulk of `size` bytes, a multiple of 16, from shared to global memory, as a bulk group."""
    hint, policy = _bulk_advice(advice)
    cute.arch.inline_ptx(
        f"cp.async.bulk.global.shared::cta.bulk_group{hint} [{{$r0}}], [{{$r1}}], {size}{policy};"
        " cp.async.bulk.commit_group;",
        read_only_args=[target, shared],
    )


def bulk_wait_read() -> None:
    """Wait until this thread's bulk stores have read shared memory."""
    cute.arch.inline_ptx("cp.async.bulk.wait_group.read 0;")


def bulk_wait() -> None:
    """Wait until this thread's bulk stores are complete."""
    cute.arch.inline_ptx("cp.async.bulk.wait_group 0;")


def _advice(advice: str) -> tuple[str, str]:
    """(suffix of ld.global or st.global, operand after the others)."""
    if advice == "evict_first":
        return ".L1::no_allocate.L2::cache_hint", f", {EVICT_FIRST:#x}"
    return {"none": "", "no_allocate": ".L1::no_allocate"}[advice], ""


def _bulk_advice(advice: str) -> tuple[str, str]:
    """As `_advice`, for a bulk copy, which bypasses L1."""
    return (".L2::cache_hint", f", {EVICT_FIRST:#x}") if advice == "evict_first" else ("", "")


def _type(kind: Any) -> str:
    return "f32" if kind is F32 else "b32"


def _vector(words: Words) -> tuple[str, str]:
    names = ", ".join(f"{{$r{place + 1}}}" for place in range(len(words)))
    return ("", names) if len(words) == 1 else (f".v{len(words)}", f"{{{names}}}")


def fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return _float("fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", x, y, z)


def multiply(x: Any, y: Any) -> Any:
    return _float("mul.rn.f32 {$w0}, {$r0}, {$r1};", x, y)


def add(x: Any, y: Any) -> Any:
    return _float("add.rn.f32 {$w0}, {$r0}, {$r1};", x, y)


def greater(x: Any, y: Any) -> Any:
    """The maximum of two; NaN if one is NaN."""
    return _float("max.NaN.f32 {$w0}, {$r0}, {$r1};", x, y)


def less(x: Any, y: Any) -> Any:
    """The minimum of two; NaN if one is NaN."""
    return _float("min.NaN.f32 {$w0}, {$r0}, {$r1};", x, y)


def negative(x: Any) -> Any:
    return _float("neg.f32 {$w0}, {$r0};", x)


def nearest_whole(x: Any) -> Any:
    """The nearest integer, as a float; ties to even."""
    return _float("cvt.rni.f32.f32 {$w0}, {$r0};", x)


def reciprocal_root(x: Any) -> Any:
    """x ** -0.5 to within two ulps."""
    return _float("rsqrt.approx.f32 {$w0}, {$r0};", x)


def whole(x: Any) -> Any:
    """The integer of an integral float; 0 for NaN."""
    return cute.arch.inline_ptx("cvt.rni.s32.f32 {$w0}, {$r0};", write_only_types=[I32], read_only_args=[x])


def summed(value: Any, lanes: int) -> Any:
    """The sum over neighbouring lanes, in pairs, then pairs of pairs; all lanes get the same bits."""
    step = 1
    while step < lanes:
        value = add(value, cute.arch.shuffle_sync_bfly(value, step))
        step *= 2
    return value


def _float(text: str, *arguments: Any) -> Any:
    return cute.arch.inline_ptx(text, write_only_types=[F32], read_only_args=list(arguments))
