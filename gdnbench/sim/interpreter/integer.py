# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic (PTX ISA 9.7.1), on 32 lanes of two's complement that wraps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gdnbench.sim.interpreter.operation import Operation, bits_kind
from gdnbench.sim.interpreter.registers import Array
from gdnbench.sim.ptx.ir import Instruction

_U32 = np.uint32
_U64 = np.uint64


def _wide(kind: str) -> str:
    """The type of twice the width."""
    return f"{kind[0]}{2 * int(kind[1:])}"


def bit_length(value: Array) -> Array:
    """Position of the highest set bit, plus one; 0 for 0. `value` is uint64."""
    smeared = value.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        smeared |= smeared >> _U64(shift)
    return np.bitwise_count(smeared)


def _widen(value: Array) -> Array:
    """To 64 bits by sign or zero extension, as bits."""
    return value.astype(np.int64 if value.dtype.kind == "i" else np.uint64).view(np.uint64)


def _high_u64(a: Array, b: Array) -> Array:
    """Upper half of the 128-bit product, from products of 32-bit halves."""
    low, half = _U64(0xFFFF_FFFF), _U64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    high: Array = a1 * b1 + (middle >> half) + (other >> half)
    return high


def multiply_high(a: Array, b: Array) -> Array:
    """Upper half of the product, in the type of the operands."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{bits // 4}")
        high: Array = np.right_shift(a.astype(wide) * b.astype(wide), wide.type(bits)).astype(a.dtype)
        return high
    if a.dtype.kind == "u":
        return _high_u64(a, b)
    # Two's complement: a negative factor counts 2^64 less than its bits say.
    ua, ub = np.ascontiguousarray(a).view(np.uint64), np.ascontiguousarray(b).view(np.uint64)
    high = _high_u64(ua, ub) - np.where(a < 0, ub, _U64(0)) - np.where(b < 0, ua, _U64(0))
    return high.view(np.int64)


def multiply_wide(a: Array, b: Array) -> Array:
    """The whole product in twice the width."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    product: Array = a.astype(wide) * b.astype(wide)
    return product


def _saturating(combine: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def compute(a: Array, b: Array) -> Array:
        return np.clip(combine(a.astype(np.int64), b.astype(np.int64)), -(2**31), 2**31 - 1).astype(np.int32)

    return compute


def _sum(combine: Callable[[Array, Array], Array]) -> Callable[[Instruction], Operation]:
    """`add` and `sub`."""

    def define(ins: Instruction) -> Operation:
        kind = ins.types[0]
        return Operation((kind, kind), (kind,), _saturating(combine) if ins.has("sat") else combine)

    return define


def _mul(ins: Instruction) -> Operation:
    part = ins.choice("lo", "hi", "wide")
    kind = ins.types[0]
    if part == "wide":
        return Operation((kind, kind), (_wide(kind),), multiply_wide)
    return Operation((kind, kind), (kind,), np.multiply if part == "lo" else multiply_high)


def _mad(ins: Instruction) -> Operation:
    part = ins.choice("lo", "hi", "wide")
    saturate = ins.has("sat")
    kind = ins.types[0]
    if saturate:
        plus = _saturating(np.add)
        return Operation((kind,) * 3, (kind,), lambda a, b, c: plus(multiply_high(a, b), c))
    if part == "wide":
        wide = _wide(kind)
        return Operation((kind, kind, wide), (wide,), lambda a, b, c: multiply_wide(a, b) + c)
    product = np.multiply if part == "lo" else multiply_high
    return Operation((kind,) * 3, (kind,), lambda a, b, c: product(a, b) + c)


def _product24(part: str) -> Callable[[Array, Array], Array]:
    """`lo`: bits 31..0 of the 48-bit product of the operands' low 24 bits; `hi`: bits 47..16."""
    shift = np.int64(0 if part == "lo" else 16)

    def compute(a: Array, b: Array) -> Array:
        signed = a.dtype.kind == "i"
        left, right = (
            ((x.astype(np.int64) << np.int64(40)) >> np.int64(40))
            if signed
            else (x.astype(np.int64) & 0xFFFFFF)
            for x in (a, b)
        )
        return (left * right >> shift).astype(a.dtype)

    return compute


def _mul24(ins: Instruction) -> Operation:
    part = ins.choice("lo", "hi")
    kind = ins.types[0]
    return Operation((kind, kind), (kind,), _product24(part))


def _mad24(ins: Instruction) -> Operation:
    part = ins.choice("lo", "hi")
    saturate = ins.has("sat")
    kind = ins.types[0]
    product, plus = _product24(part), _saturating(np.add) if saturate else np.add
    return Operation((kind,) * 3, (kind,), lambda a, b, c: plus(product(a, b), c))


def _sad(ins: Instruction) -> Operation:
    kind = ins.types[0]
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    return Operation(
        (kind,) * 3, (kind,), lambda a, b, c: c + np.where(a < b, b - a, a - b).astype(dtype, copy=False)
    )


def quotient(a: Array, b: Array) -> Array:
    """Toward zero. Division by zero is unspecified by the PTX ISA; all bits set, as GPUs give. MIN / -1
    wraps."""
    special = (b == 0) | ((b == -1) if b.dtype.kind == "i" else False)
    safe = np.where(special, b.dtype.type(1), b)
    exact = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, ~a.dtype.type(0), np.where(special, a.dtype.type(0) - a, exact))


def remainder(a: Array, b: Array) -> Array:
    """With the sign of the dividend. By zero it is unspecified; the dividend, as a - quotient * 0 would
    be."""
    special = (b == 0) | ((b == -1) if b.dtype.kind == "i" else False)
    exact = np.fmod(a, np.where(special, b.dtype.type(1), b))
    return np.where(b == 0, a, exact)


def _plain(compute: Callable[..., Array], count: int) -> Callable[[Instruction], Operation]:
    """An instruction without modifiers whose operands all have its type."""

    def define(ins: Instruction) -> Operation:
        kind = ins.types[0]
        return Operation((kind,) * count, (kind,), compute)

    return define


def _extremum(choose: Callable[[Array, Array], Array]) -> Callable[[Instruction], Operation]:
    """`min` and `max`; `.relu` clamps a negative result to zero."""

    def define(ins: Instruction) -> Operation:
        kind = ins.types[0]
        if ins.has("relu"):
            return Operation((kind, kind), (kind,), lambda a, b: np.maximum(choose(a, b), a.dtype.type(0)))
        return Operation((kind, kind), (kind,), choose)

    return define


def _count(compute: Callable[[Array, int], Array]) -> Callable[[Instruction], Operation]:
    """`popc` and `clz`: bits in, a 32-bit count out."""

    def define(ins: Instruction) -> Operation:
        kind = bits_kind(ins.types[0])
        width = int(kind[1:])
        return Operation((kind,), ("u32",), lambda a: compute(a.astype(np.uint64), width).astype(_U32))

    return define


def _bfind(ins: Instruction) -> Operation:
    shift_amount = ins.has("shiftamt")
    kind = ins.types[0]
    width = int(kind[1:])

    def compute(a: Array) -> Array:
        magnitude = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        length = bit_length(_widen(magnitude)).astype(np.int64)
        found = width - length if shift_amount else length - 1
        return np.where(length == 0, -1, found).astype(np.int32).view(_U32)

    return Operation((kind,), ("u32",), compute)


def _brev(ins: Instruction) -> Operation:
    kind = bits_kind(ins.types[0])
    size = int(kind[1:]) // 8

    def compute(a: Array) -> Array:
        octets = np.ascontiguousarray(a).view(np.uint8).reshape(-1, size)
        flipped = np.packbits(np.unpackbits(octets, axis=1, bitorder="little"), axis=1, bitorder="big")
        return np.ascontiguousarray(flipped[:, ::-1]).view(a.dtype).reshape(a.shape)

    return Operation((kind,), (kind,), compute)


def _fns(ins: Instruction) -> Operation:

    def one(mask: int, base: int, offset: int) -> int:
        step = -1 if offset < 0 else 1
        order = range(base, 32) if step > 0 else range(base, -1, -1)
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFF_FFFF
        hits = [p for p in order if mask >> p & 1]
        return hits[abs(offset) - 1] if len(hits) >= abs(offset) else 0xFFFF_FFFF

    def compute(mask: Array, base: Array, offset: Array) -> Array:
        rows = zip(mask.tolist(), (base & _U32(31)).tolist(), offset.tolist(), strict=True)
        return np.array([one(*row) for row in rows], _U32)

    return Operation(("u32", "u32", "s32"), ("u32",), compute)


def _bfe(ins: Instruction) -> Operation:
    kind = ins.types[0]
    width = int(kind[1:])

    def compute(a: Array, start: Array, count: Array) -> Array:
        position = (start & _U32(0xFF)).astype(np.int64)
        length = (count & _U32(0xFF)).astype(np.int64)
        bits = _widen(a)
        top = np.minimum(position + length - 1, width - 1)
        sign = np.where(length == 0, 0, bits >> top.clip(0).astype(_U64) & _U64(1)).astype(np.bool_)
        kept = np.clip(np.minimum(length, width - position), 0, 64)  # bits that come from `a`
        mask = _mask(kept)
        field = np.where(position < width, bits >> np.minimum(position, 63).astype(_U64), _U64(0)) & mask
        if kind[0] == "s":
            field = np.where(sign, field | ~mask, field)
        return field.astype(np.dtype(f"u{width // 8}")).view(a.dtype)

    return Operation((kind, "u32", "u32"), (kind,), compute)


def _mask(count: Array) -> Array:
    """`count` low bits set, 0 <= count <= 64."""
    every = ~_U64(0)
    return np.where(count == 0, _U64(0), every >> (64 - np.maximum(count, 1)).astype(_U64))


def _bfi(ins: Instruction) -> Operation:
    kind = bits_kind(ins.types[0])
    width = int(kind[1:])

    def compute(a: Array, b: Array, start: Array, count: Array) -> Array:
        position = (start & _U32(0xFF)).astype(np.int64)
        length = (count & _U32(0xFF)).astype(np.int64)
        kept = np.clip(np.minimum(length, width - position), 0, 64)
        shift = np.minimum(position, 63).astype(_U64)
        mask = np.where(kept > 0, _mask(kept) << shift, _U64(0))
        return (b.astype(_U64) & ~mask | (a.astype(_U64) << shift) & mask).astype(a.dtype)

    return Operation((kind, kind, "u32", "u32"), (kind,), compute)


def _szext(ins: Instruction) -> Operation:
    clamp = ins.choice("clamp", "wrap") == "clamp"
    kind = ins.types[0]

    def compute(a: Array, count: Array) -> Array:
        whole = (count >= 32) & clamp
        low = (count & _U32(31)).astype(np.int64)
        mask = np.where(whole, _U64(0xFFFF_FFFF), _mask(low))
        bits = _widen(a) & _U64(0xFFFF_FFFF)
        field = bits & mask
        if kind == "s32":
            negative = (low > 0) & ~whole & (bits >> np.maximum(low - 1, 0).astype(_U64) & _U64(1) == 1)
            field = np.where(negative, field | ~mask, field)
        return field.astype(_U32).view(a.dtype)

    return Operation((kind, "u32"), (kind,), compute)


def _bmsk(ins: Instruction) -> Operation:
    clamp = ins.choice("clamp", "wrap") == "clamp"

    def compute(start: Array, count: Array) -> Array:
        position = (start & _U32(31)).astype(np.int64)
        length = (count & _U32(31)).astype(np.int64)
        to_the_top = (count >= 32) if clamp else np.zeros(count.shape, np.bool_)
        mask = _mask(np.where(to_the_top, 32, length)) << position.astype(_U64)
        return np.where(clamp & (start >= 32), _U64(0), mask).astype(_U32)

    return Operation(("u32", "u32"), ("u32",), compute)


def _elements(value: Array, signed: bool, dtype: str) -> Array:
    """Bytes or halves of 32-bit registers: int64[lanes, elements]."""
    kind = np.dtype(f"{'i' if signed else 'u'}{dtype}")
    return np.ascontiguousarray(value).view(kind).reshape(*value.shape, -1).astype(np.int64)


def _dot(ins: Instruction) -> Operation:
    """`dp4a` and `dp2a`: a dot product of small integers plus a 32-bit one."""
    halves = ins.op == "dp2a"
    part = ins.choice("lo", "hi") if halves else ""
    a_signed, b_signed = (kind == "s32" for kind in ins.types)
    kind = "s32" if a_signed or b_signed else "u32"

    def compute(a: Array, b: Array, c: Array) -> Array:
        left = _elements(a, a_signed, "2" if halves else "1")
        right = _elements(b, b_signed, "1")
        if halves:
            right = right[..., :2] if part == "lo" else right[..., 2:]
        total: Array = c.astype(np.int64) + (left * right).sum(axis=-1)
        return total.astype(c.dtype)

    return Operation(("u32", "u32", kind), (kind,), compute)


def _absolute_differences(ins: Instruction) -> Operation:
    """`vabsdiff2` and `vabsdiff4`: |a - b| of each half or byte; `.add` adds them all to c."""
    part = np.dtype(np.uint16 if ins.op == "vabsdiff2" else np.uint8)
    adds = ins.has("add")

    def compute(a: Array, b: Array, c: Array) -> Array:
        left, right = (np.ascontiguousarray(x).view(part).astype(np.int64) for x in (a, b))
        apart = np.abs(left - right)
        packed: Array = apart.astype(part).view(np.uint32)
        total: Array = c + apart.reshape(a.size, -1).sum(axis=1).astype(np.uint32)
        return total if adds else packed

    return Operation(("u32", "u32", "u32"), ("u32",), compute)


def _negative(a: Array) -> Array:
    return np.negative(a)


OPERATIONS: dict[str, Callable[[Instruction], Operation]] = {
    "add": _sum(np.add),
    "sub": _sum(np.subtract),
    "mul": _mul,
    "mad": _mad,
    "mul24": _mul24,
    "mad24": _mad24,
    "sad": _sad,
    "div": _plain(quotient, 2),
    "rem": _plain(remainder, 2),
    "abs": _plain(np.abs, 1),
    "neg": _plain(_negative, 1),
    "min": _extremum(np.minimum),
    "max": _extremum(np.maximum),
    "popc": _count(lambda a, width: np.bitwise_count(a)),
    "clz": _count(lambda a, width: width - bit_length(a).astype(np.int64)),
    "bfind": _bfind,
    "brev": _brev,
    "fns": _fns,
    "bfe": _bfe,
    "bfi": _bfi,
    "szext": _szext,
    "bmsk": _bmsk,
    "dp4a": _dot,
    "vabsdiff2": _absolute_differences,
    "vabsdiff4": _absolute_differences,
    "dp2a": _dot,
}
