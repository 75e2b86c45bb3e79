# SPDX-License-Identifier: Apache-2.0
"""wgmma: one warpgroup, one product, D as it lies in the registers of 128 threads.

The image of shared memory, A's fragments and C come from global memory. Operands are drawn as for mma.sync:
16 rows of A and 16 columns of B for each spread, so that every pair of spreads meets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.sim.silicon.microkernel import Array, Buffer, MicroKernel, entry
from tests.sim.silicon.mma import FORMATS, SPREADS, drawn, specials
from tests.sim.silicon.patterns import U32

THREADS, M = 128, 64
# Swizzle -> (code in bits 62..63, bytes of a row of the atom).
SWIZZLES = {"none": (0, 16), "128B": (1, 128), "64B": (2, 64), "32B": (3, 32)}
A_BYTES, B_BYTES = 8192, 32768


@dataclass(frozen=True, slots=True)
class Case:
    """What an instruction says. `repeats` of it run one after another on the same D."""

    d: str
    a: str
    b: str
    n: int
    a_registers: bool = False
    a_mn: bool = False
    b_mn: bool = False
    swizzle: str = "none"
    accumulate: bool = True
    negate_a: bool = False
    negate_b: bool = False
    repeats: int = 1

    @property
    def k(self) -> int:
        return 256 // FORMATS[self.a].bits

    @property
    def registers(self) -> int:
        """Of D, in each thread."""
        return self.n // 2 if self.d == "f32" else self.n // 4

    @property
    def spelling(self) -> str:
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{self.d}.{self.a}.{self.b}"

    @property
    def name(self) -> str:
        flags = ("a_registers", "a_mn", "b_mn", "negate_a", "negate_b")
        said = [flag for flag in flags if getattr(self, flag)] + ([] if self.accumulate else ["fresh"])
        parts = ("wgmma", f"n{self.n}", self.d, self.a, self.b, self.swizzle, f"x{self.repeats}", *said)
        return "_".join(parts)


def place(rows: int, k: int, mn_major: bool, swizzle: str) -> tuple[Array, int, int]:
    """(byte of element [row, k] before the swizzle, leading, stride byte offset): the densest canonical
    layout of 16-bit elements if M- or N-major, of 32 bytes a row if K-major; `k` counts elements."""
    width = SWIZZLES[swizzle][1]
    size = 32 // k
    row, column = np.arange(rows)[:, None], np.arange(k)[None, :]
    if not mn_major:
        byte = column * size
        if swizzle == "none":
            return row % 8 * 16 + row // 8 * 256 + byte // 16 * 128 + byte % 16, 128, 256
        return row % 8 * width + row // 8 * 8 * width + byte, 16, 8 * width
    if swizzle == "none":
        leading = 128 * (rows // 8)
        return row // 8 * 128 + row % 8 * 2 + column % 8 * 16 + column // 8 * leading, leading, 128
    across = width // 2
    return (
        row % across * 2 + row // across * 16 * width + column % 8 * width + column // 8 * 8 * width,
        16 * width,
        8 * width,
    )


def swizzled(byte: Array, swizzle: str) -> Array:
    """Address bits 7.. into bits 4.., as many as the width has chunks."""
    mask = SWIZZLES[swizzle][1] // 16 - 1
    return byte ^ (byte >> 7 & mask) << 4


def image(codes: Array, mn_major: bool, swizzle: str, room: int) -> tuple[Array, int]:
    """(`room` bytes of shared memory from a multiple of 1,024 on, the descriptor without its address)."""
    byte, leading, stride = place(*codes.shape, mn_major, swizzle)
    where = swizzled(byte, swizzle)
    size = codes.dtype.itemsize
    data = np.zeros(room, np.uint8)
    for part in range(size):
        data[where + part] = (codes >> codes.dtype.type(8 * part)).astype(np.uint8)
    bits = leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES[swizzle][0] << 62
    return data, bits


def a_fragments(codes: Array) -> U32:
    """A[64, k] as uint32[4, 128] (PTX ISA, figures of wgmma's A fragments)."""
    words = np.ascontiguousarray(codes).view(np.uint32)  # [64, 8]
    thread = np.arange(THREADS)
    row = thread // 32 * 16 + thread % 32 // 4
    return np.stack([words[row + 8 * (r % 2), thread % 4 + 4 * (r // 2)] for r in range(4)])


def d_place(case: Case) -> tuple[Array, Array, Array]:
    """(row, column, register) of D's elements [registers, 128, elements of a register]."""
    each = 2 if case.d == "f16" else 1
    register, thread, part = np.ogrid[: case.registers, :THREADS, :each]
    element = register * each + part  # columns fastest, then the rows 8 apart
    row = thread // 32 * 16 + thread % 32 // 4 + element // 2 % 2 * 8
    column = element // 4 * 8 + thread % 4 * 2 + element % 2
    return np.broadcast_arrays(row, column, register)


def d_fragments(case: Case, codes: Array) -> U32:
    row, column, _ = d_place(case)
    return np.ascontiguousarray(codes[row, column]).view(np.uint32)[..., 0]


def d_matrix(case: Case, words: U32) -> Array:
    """The inverse of `d_fragments`."""
    row, column, _ = d_place(case)
    kind = np.uint16 if case.d == "f16" else np.uint32
    d = np.zeros((M, case.n), kind)
    d[row, column] = np.ascontiguousarray(words).view(kind).reshape(row.shape)
    return d


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Codes: a[64, k], b[n, k], c[64, n]."""

    a: Array
    b: Array
    c: Array


def storage(name: str, codes: U32) -> Array:
    return codes.astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[FORMATS[name].bits])


def rows(name: str, seed: int, count: int, each: int) -> Array:
    """`count` rows, 16 at a time of one spread."""
    parts = [drawn(name, seed + 10 * i, 16 * each, SPREADS[i % 4]) for i in range(-(-count // 16))]
    return storage(name, np.concatenate(parts).reshape(-1, each)[:count])


def random_operands(case: Case, seed: int) -> Operands:
    c = storage(case.d, drawn(case.d, seed + 500, M * case.n, 20, 2)).reshape(M, case.n)
    c[np.arange(M) % 3 == 0] = 0
    return Operands(rows(case.a, seed, M, case.k), rows(case.b, seed + 200, case.n, case.k), c)


def special_operands(case: Case, seed: int) -> Operands:
    """Inf, NaN, zeros and subnormals strewn in."""
    a, b, c = (
        storage(name, specials(name, seed + 100 * i, count))
        for i, (name, count) in enumerate(
            ((case.a, M * case.k), (case.b, case.n * case.k), (case.d, M * case.n))
        )
    )
    return Operands(a.reshape(M, case.k), b.reshape(case.n, case.k), c.reshape(M, case.n))


def kernel(case: Case, operands: Operands, name: str) -> MicroKernel:
    """The launch of one warpgroup. Bytes that no element has are zero."""
    a_image, a_bits = image(operands.a, case.a_mn, case.swizzle, A_BYTES)
    b_image, b_bits = image(operands.b, case.b_mn, case.swizzle, B_BYTES)
    memory = np.concatenate([a_image, b_image]).view(np.uint32)
    d = ", ".join(f"%d{i}" for i in range(case.registers))
    a = "{%a0, %a1, %a2, %a3}" if case.a_registers else "%da"
    constants = [-1 if case.negate_a else 1, -1 if case.negate_b else 1]
    if FORMATS[case.a].bits == 16:
        constants += [int(case.b_mn)] if case.a_registers else [int(case.a_mn), int(case.b_mn)]
    said = ", ".join(map(str, constants))
    multiply = f"{case.spelling} {{{d}}}, {a}, %db, %p, {said};\n"
    body = f"""
.reg .b32 %t, %i, %word, %base, %d<{case.registers}>, %a<4>;
.reg .b64 %at, %from, %da, %db, %low;
.reg .pred %p, %more;
.shared .align 1024 .b8 memory[{memory.nbytes}];
mov.u32 %t, %tid.x;
mov.b32 %base, memory;
ld.param.b64 %from, [in_shared];
mov.u32 %i, %t;
FILL:
mad.wide.u32 %at, %i, 4, %from;
ld.global.b32 %word, [%at];
mad.lo.u32 %base, %i, 4, %base;
st.shared.b32 [%base], %word;
mov.b32 %base, memory;
add.u32 %i, %i, {THREADS};
setp.lt.u32 %more, %i, {memory.size};
@%more bra FILL;
ld.param.b64 %from, [in_a];
mad.wide.u32 %at, %t, 4, %from;
{"".join(f"ld.global.b32 %a{i}, [%at+{4 * THREADS * i}];" for i in range(4))}
ld.param.b64 %from, [in_c];
mad.wide.u32 %at, %t, 4, %from;
{"".join(f"ld.global.b32 %d{i}, [%at+{4 * THREADS * i}];" for i in range(case.registers))}
shr.u32 %base, %base, 4;
cvt.u64.u32 %low, %base;
add.s64 %da, %low, {a_bits};
add.s64 %db, %low, {b_bits + (A_BYTES >> 4)};
setp.eq.u32 %p, %t, {"%t" if case.accumulate else "-1"};
fence.proxy.async.shared::cta;
bar.sync 0;
wgmma.fence.sync.aligned;
{multiply * case.repeats}wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
ld.param.b64 %from, [out_4];
mad.wide.u32 %at, %t, 4, %from;
{"".join(f"st.global.b32 [%at+{4 * THREADS * i}], %d{i};" for i in range(case.registers))}
ret;
"""
    names = ("in_shared", "in_a", "in_c", "out_4")
    empty = np.full((case.registers, THREADS), 0xA5A5A5A5, np.uint32)
    buffers = (
        Buffer("in_shared", memory),
        Buffer("in_a", a_fragments(operands.a)),
        Buffer("in_c", d_fragments(case, operands.c)),
        Buffer("out_4", empty, tuple(f"{case.spelling} D register {i}" for i in range(case.registers))),
    )
    text = entry(name, ", ".join(f".param .b64 {each}" for each in names), body)
    return MicroKernel(name, text, buffers, 1, THREADS)


TYPES = (
    ("f32", "bf16", "bf16"),
    ("f32", "f16", "f16"),
    ("f16", "f16", "f16"),
    ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"),
    ("f32", "e5m2", "e5m2"),
    ("f32", "e4m3", "e5m2"),
    ("f32", "e5m2", "e4m3"),
    ("f16", "e4m3", "e4m3"),
    ("f16", "e5m2", "e5m2"),
)
LAYOUTS = (
    *(
        Case("f32", "f16", "f16", 64, a_mn=a_mn, b_mn=b_mn, swizzle=swizzle)
        for swizzle in SWIZZLES
        for a_mn in (False, True)
        for b_mn in (False, True)
    ),
    *(Case("f32", "e4m3", "e4m3", 64, swizzle=swizzle) for swizzle in SWIZZLES),
    *(Case("f32", "bf16", "bf16", n, a_registers=True, swizzle="128B") for n in (8, 24, 128, 256)),
    *(Case("f32", a, a, 16, a_registers=True) for a in ("tf32", "e4m3", "e5m2")),
    Case("f16", "f16", "f16", 40, a_registers=True, b_mn=True),
    Case("f32", "bf16", "bf16", 64, negate_a=True),
    Case("f32", "tf32", "tf32", 64, negate_b=True),
    Case("f32", "bf16", "bf16", 64, accumulate=False),
    Case("f32", "e4m3", "e4m3", 64, repeats=3),
)


# What is multiplied, and the seed of its operands.
RANDOM = tuple((Case(*types, n=96, repeats=2), 3000 + i) for i, types in enumerate(TYPES))
SPECIAL = tuple((Case(*types, n=64), 4000 + i) for i, types in enumerate(TYPES))
LAYOUT_SEEDS = tuple((case, 5000 + i) for i, case in enumerate(LAYOUTS))


def numbers(case: Case, seed: int) -> MicroKernel:
    return kernel(case, random_operands(case, seed), case.name)


def strange(case: Case, seed: int) -> MicroKernel:
    return kernel(case, special_operands(case, seed), f"{case.name}_specials")


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(numbers, *each) for each in RANDOM),
    *(partial(strange, *each) for each in SPECIAL),
    *(partial(numbers, *each) for each in LAYOUT_SEEDS),
)
