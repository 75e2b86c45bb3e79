# SPDX-License-Identifier: Apache-2.0
"""The 64-bit shared-memory matrix descriptor and the 32-bit instruction descriptor of tcgen05, bit by bit.

PTX ISA 9.7.16.4 (tables 40 to 42); the names are those of CUTLASS's `mma_sm100_desc.hpp`. A value that the
ISA forbids raises KernelFault; a legal one that the simulator does not model raises UnsupportedError.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError


class Swizzle(IntEnum):
    """Layout type of a matrix descriptor. Each swizzle XORs address bits into others (see `PATTERNS`)."""

    NONE = 0
    B128_BASE32B = 1
    B128 = 2
    B64 = 4
    B32 = 6


@dataclass(frozen=True, slots=True)
class Pattern:
    """A swizzle in CuTe's notation, Swizzle<bits, base, shift>: address bits [base + shift, +bits) are XORed
    into bits [base, +bits). `width` is the row of the swizzle atom in bytes, `rows` its height, `period` its
    size."""

    bits: int
    base: int
    shift: int
    width: int
    rows: int

    @property
    def period(self) -> int:
        return 1 << (self.base + self.shift + self.bits)


PATTERNS = {
    Swizzle.NONE: Pattern(0, 4, 3, 16, 8),
    Swizzle.B32: Pattern(1, 4, 3, 32, 8),
    Swizzle.B64: Pattern(2, 4, 3, 64, 8),
    Swizzle.B128: Pattern(3, 4, 3, 128, 8),
    Swizzle.B128_BASE32B: Pattern(2, 5, 2, 128, 4),
}

_VERSION = 0b001


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """The layout of a matrix in shared memory, in bytes. `base_offset` counts 128-byte rows."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: Swizzle


@cache
def decode_matrix(bits: int) -> MatrixDescriptor:
    """Decode a shared-memory descriptor (table 40)."""
    for low, width in ((14, 2), (30, 2), (53, 8)):
        if bit_field(bits, low, width):
            raise _illegal(f"matrix descriptor 0x{bits:016x}: bits {low}..{low + width - 1} must be zero")
    if bit_field(bits, 46, 3) != _VERSION:
        raise _illegal(
            f"matrix descriptor 0x{bits:016x}: bits 46..48 must be 0b001, not {bit_field(bits, 46, 3):#05b}"
        )
    if bit_field(bits, 52, 1):
        # Only sm_103a has it, for a K of 48 bytes.
        raise _illegal(
            f"matrix descriptor 0x{bits:016x}: absolute leading-dimension addresses (bit 52) need sm_103a"
        )
    layout = bit_field(bits, 61, 3)
    if layout not in PATTERNS:
        raise _illegal(f"matrix descriptor 0x{bits:016x}: layout type {layout} does not exist")
    swizzle = Swizzle(layout)
    base_offset = bit_field(bits, 49, 3)
    if base_offset and swizzle is Swizzle.NONE:
        raise _illegal(f"matrix descriptor 0x{bits:016x}: base offset {base_offset} without a swizzle")
    return MatrixDescriptor(
        bit_field(bits, 0, 14) << 4,
        bit_field(bits, 16, 14) << 4,
        bit_field(bits, 32, 14) << 4,
        base_offset,
        swizzle,
    )


def encode_matrix(descriptor: MatrixDescriptor) -> int:
    """The inverse of `decode_matrix`."""
    return (
        (descriptor.start >> 4 & 0x3FFF)
        | (descriptor.leading >> 4 & 0x3FFF) << 16
        | (descriptor.stride >> 4 & 0x3FFF) << 32
        | _VERSION << 46
        | descriptor.base_offset << 49
        | descriptor.swizzle << 61
    )


# Element types by kind: code in bits 7..9 and 10..12 -> name.
_TYPES = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "i8": {0: "u8", 1: "s8"},
}
_RESULTS = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
_DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
_MAX_SHIFT = (0, 8, 16, 32)  # columns of B, by bits 30 and 31
SUB_BYTE = ("e2m3", "e3m2", "e2m1")


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """The element types, shape and negation of one tcgen05.mma; `*_mn_major` are the transpose bits.
    `stationary`: of tcgen05.mma.ws, which may shift B by `max_shift` columns where it uses it again. `ctas`:
    2 for the product of a pair, of which each CTA has half of the rows of A and D and half of the columns of
    B."""

    a: str
    b: str
    d: str
    m: int
    n: int
    k: int
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    saturate: bool = False
    stationary: bool = False
    max_shift: int = 0
    ctas: int = 1

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand element in shared memory and TMEM; a product's K is always 32 bytes."""
        return 32 // self.k


@cache
def decode_instruction(
    bits: int, kind: str, stationary: bool = False, ctas: int = 1
) -> InstructionDescriptor:
    """Decode an instruction descriptor (table 42) for `kind::f16`, `kind::tf32`, `kind::f8f6f4` or
    `kind::i8`, of a tcgen05.mma that works on `ctas` CTAs or, if `stationary`, of tcgen05.mma.ws."""
    name = f"instruction descriptor 0x{bits:08x}"
    if bit_field(bits, 2, 1):
        raise UnsupportedError(f"sparse matrices ({name}, bit 2)")
    saturate = bool(bit_field(bits, 3, 1))
    if saturate and kind != "i8":
        raise _illegal(f"{name}: saturation (bit 3) is for kind::i8 only")
    for low, width in ((0, 2), (6, 1), (23, 1), (29, 1)):
        if bit_field(bits, low, width):
            raise _illegal(f"{name}: bits {low}..{low + width - 1} must be zero for a dense product")
    max_shift = _MAX_SHIFT[bit_field(bits, 30, 2)]
    if max_shift and not stationary:
        raise _illegal(f"{name}: the maximum shift (bits 30..31) is for .ws only")
    types = []
    for low, table, what in ((7, _TYPES, "A"), (10, _TYPES, "B"), (4, _RESULTS, "D")):
        code = bit_field(bits, low, 2 if what == "D" else 3)
        if code not in table[kind]:
            raise _illegal(f"{name}: kind::{kind} has no type {code} of {what}")
        types.append(table[kind][code])
    a, b, d = types
    if kind == "f16" and d == "f16" and (a, b) != ("f16", "f16"):
        raise _illegal(f"{name}: an f16 result needs f16 operands, not {a} and {b}")
    if kind == "f16" and a != b:
        # Table 39 writes one column for both types; CUTLASS instantiates equal ones only.
        raise UnsupportedError(f"kind::f16 of {a} by {b} ({name})")
    negate_a, negate_b, a_mn_major, b_mn_major = (bool(bit_field(bits, low, 1)) for low in range(13, 17))
    if kind == "i8" and (negate_a or negate_b):
        raise _illegal(f"{name}: kind::i8 cannot negate A or B (bits 13 and 14)")
    m, n = bit_field(bits, 24, 5) << 4, bit_field(bits, 17, 6) << 3
    descriptor = InstructionDescriptor(
        a,
        b,
        d,
        m,
        n,
        _DEPTH[kind],
        negate_a,
        negate_b,
        a_mn_major,
        b_mn_major,
        saturate,
        stationary,
        max_shift,
        ctas,
    )
    _check_shape(descriptor, name)
    return descriptor


def _check_shape(descriptor: InstructionDescriptor, name: str) -> None:
    """Check table 39 and, for eight-bit N-major B, table 52. Majorness of sub-byte types follows CUTLASS."""
    sizes = (32, 64, 128) if descriptor.stationary else (64 * descriptor.ctas, 128 * descriptor.ctas)
    if descriptor.m not in sizes:
        what = ".ws" if descriptor.stationary else f"cta_group::{descriptor.ctas}"
        raise _illegal(f"{name}: M = {descriptor.m}; {what} has M = {_listed(sizes)}")
    _check_columns(descriptor, name)
    for operand, mn_major, what in (
        (descriptor.a, descriptor.a_mn_major, "A"),
        (descriptor.b, descriptor.b_mn_major, "B"),
    ):
        if operand in SUB_BYTE and mn_major:
            raise _illegal(f"{name}: {operand} operand {what} cannot be MN-major")


def _check_columns(descriptor: InstructionDescriptor, name: str) -> None:
    n = descriptor.n
    if descriptor.stationary:
        if n not in (64, 128, 256):
            raise _illegal(f"{name}: N = {n}; .ws has N = 64, 128 and 256")
        return
    # Both CTAs of a pair have half of the columns of B.
    step = (16 if descriptor.b_mn_major and descriptor.element_bytes == 1 else 8) * descriptor.ctas
    if descriptor.d == "s32" and descriptor.ctas == 2:
        step = 32
    if not step <= n <= 256 or n % step:
        raise _illegal(f"{name}: N = {n}; a multiple of {step} from {step} to 256 is needed")
    if descriptor.d == "s32" and n > 32 and n % 16:
        raise _illegal(f"{name}: N = {n}; above 32, kind::i8 has multiples of 16")


def _listed(sizes: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


def check_majorness(swizzle: Swizzle, mn_major: bool, element_bytes: int, operand: str) -> None:
    """Check which swizzles a major-ness allows (table 54, section 9.7.16.10.1)."""
    if mn_major and (element_bytes == 4) != (swizzle is Swizzle.B128_BASE32B):
        raise _illegal(
            f"MN-major {operand} of {8 * element_bytes}-bit elements with layout {swizzle.name}: "
            "32-bit elements need 128B_BASE32B, others must not have it"
        )
    if not mn_major and swizzle is Swizzle.B128_BASE32B:
        # Table 54 allows it, table 55 shows no such layout and CUTLASS excludes it.
        raise UnsupportedError(f"K-major {operand} with layout 128B_BASE32B")


def bit_field(bits: int, low: int, width: int) -> int:
    return bits >> low & (1 << width) - 1


def _illegal(message: str) -> KernelFault:
    return KernelFault(FaultKind.DESCRIPTOR, message)
