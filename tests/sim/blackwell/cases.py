# SPDX-License-Identifier: Apache-2.0
"""The assumptions, one or several micro-kernels each. An assumption is what no test without a Blackwell GPU
can show.

Layouts: the image holds random small integers and the product's descriptors point into it, so that the answer
depends on which bytes the tensor core reads, and on nothing else. Numbers: operands over many binades, as the
mma.sync vectors recorded on a Hopper GPU have them.

Special functions: the simulator has a Hopper GPU's tables; a change of any shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.sim.blackwell.block_scales import block_scales
from tests.sim.blackwell.tensor_kernel import (
    COLUMNS,
    IMAGE_BYTES,
    THREADS,
    Fill,
    Image,
    index_fill,
    matrix_descriptor,
    registers,
    tensor_kernel,
)
from tests.sim.silicon.microkernel import MicroKernel
from tests.sim.silicon.mma import drawn, specials
from tests.sim.silicon.patterns import below, random_u32

N = 16
# D in columns 0..15, A, if it lies in TMEM, in 16..23.
A_COLUMN = 16
B_AT = 16 * 1024

CODE = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
KIND = {"f16": "f16", "bf16": "f16", "tf32": "tf32"}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4}
NONE, BASE32B, B128, B64, B32 = 0, 1, 2, 4, 6
SWIZZLES = {"none": NONE, "32B": B32, "64B": B64, "128B": B128}
WIDTH = {NONE: 16, B32: 32, B64: 64, B128: 128, BASE32B: 128}


@dataclass(frozen=True, slots=True)
class Assumption:
    """A claim, with the micro-kernels whose answers it decides."""

    name: str
    claim: str
    kernels: tuple[MicroKernel, ...]


def instruction(
    a: str, b: str, m: int, n: int = N, *, d_f32: bool = True, a_mn: bool = False, b_mn: bool = False,
    negate_a: bool = False, negate_b: bool = False,
) -> int:  # fmt: skip
    """Table 42 of PTX ISA 9.7.16.4.2."""
    return (
        int(d_f32) << 4 | CODE[a] << 7 | CODE[b] << 10 | int(negate_a) << 13 | int(negate_b) << 14
        | int(a_mn) << 15 | int(b_mn) << 16 | n >> 3 << 17 | m >> 4 << 24
    )  # fmt: skip


def mma(
    kind: str, idesc: int, a: list[str], b: list[str], *, d: str = "%taddr", a_in_tmem: bool = False,
    accumulate: bool = False, mask: tuple[int, ...] = (), scale: int | None = None,
) -> list[str]:  # fmt: skip
    """PTX of one product; `a` leaves %d0 (or the TMEM address %r1), `b` leaves %d1."""
    source = "[%r1]" if a_in_tmem else "%d0"
    lanes = f"{{{', '.join(hex(word) for word in mask)}}}, " if mask else ""
    lines = []
    if mask:
        lines = [f"mov.b32 %r{4 + i}, {word:#x};" for i, word in enumerate(mask)]
        lanes = "{%r4, %r5, %r6, %r7}, "
    tail = "" if scale is None else f", {scale}"
    return [
        *a,
        *b,
        *lines,
        f"mov.b32 %r2, {idesc:#x};",
        f"setp.ne.u32 %p0, {int(accumulate)}, 0;",
        f"tcgen05.mma.cta_group::1.kind::{kind} [{d}], {source}, %d1, %r2, {lanes}%p0{tail};",
    ]


@cache
def integers(name: str, seed: int = 1) -> Image:
    """The whole image as integers in -3..3."""
    table = {
        "bf16": [0xC040, 0xC000, 0xBF80, 0, 0x3F80, 0x4000, 0x4040],
        "f16": [0xC200, 0xC000, 0xBC00, 0, 0x3C00, 0x4000, 0x4200],
        "tf32": [0xC0400000, 0xC0000000, 0xBF800000, 0, 0x3F800000, 0x40000000, 0x40400000],
        "e4m3": [0xC4, 0xC0, 0xB8, 0, 0x38, 0x40, 0x44],
    }[name]
    size = {"e4m3": 1}.get(name, BYTES.get(name, 0))
    codes = np.array(table, f"u{size}")[below(seed, IMAGE_BYTES // size, 7)]
    return codes.view(np.uint8)


def k_major(offset: int, layout: int, register: str) -> list[str]:
    """A tile whose 8-row groups follow each other."""
    width = WIDTH[layout]
    leading = 4096 if layout == NONE else 16
    return matrix_descriptor(register, offset, leading, 8 * width, layout)


def mn_major(offset: int, layout: int, register: str) -> list[str]:
    """Blocks along MN 2048 bytes apart, groups of eight (four) columns next to each other."""
    if layout == NONE:
        return matrix_descriptor(register, offset, 128, 512, layout)
    rows = 4 if layout == BASE32B else 8
    return matrix_descriptor(register, offset, 2048, rows * WIDTH[layout], layout)


def layouts() -> Iterator[Assumption]:
    for name, layout in SWIZZLES.items():
        for major, place in (("K", k_major), ("MN", mn_major)):
            kernels = []
            for offset in (0, 128, 256, 512):
                mn = major == "MN"
                body = mma(
                    "f16", instruction("bf16", "bf16", 64, a_mn=mn, b_mn=mn),
                    place(offset, layout, "%d0"), place(B_AT + offset, layout, "%d1"),
                )  # fmt: skip
                kernels.append(
                    tensor_kernel(f"layout_{major}_{name}_{offset}", body, integers("bf16"), index_fill())
                )
            yield Assumption(
                f"layout-{major}-{name}",
                f"{major}-major operands, swizzle {name} by absolute address, 0 to 512 bytes past 1024",
                tuple(kernels),
            )
    body = mma(
        "tf32", instruction("tf32", "tf32", 64, a_mn=True, b_mn=True),
        mn_major(256, BASE32B, "%d0"), mn_major(B_AT, BASE32B, "%d1"),
    )  # fmt: skip
    yield Assumption(
        "layout-MN-128B-base32B",
        "transposed tf32: Swizzle<2,5,2>, four columns a group",
        (tensor_kernel("layout_tf32_MN", body, integers("tf32"), index_fill()),),
    )
    for layout, name in ((NONE, "none"), (B128, "128B")):
        for mn in (False, True):
            place = mn_major if mn else k_major
            body = mma(
                "f8f6f4", instruction("e4m3", "e4m3", 64, a_mn=mn, b_mn=mn),
                place(0, layout, "%d0"), place(B_AT, layout, "%d1"),
            )  # fmt: skip
            major = "MN" if mn else "K"
            yield Assumption(
                f"layout-e4m3-{major}-{name}",
                f"{major}-major eight-bit operands, swizzle {name}",
                (tensor_kernel(f"layout_e4m3_{major}_{name}", body, integers("e4m3"), index_fill()),),
            )
    kernels = []
    for layout, name in ((B32, "32B"), (B64, "64B"), (B128, "128B")):
        for base in (1, 4, 7):
            a = matrix_descriptor("%d0", 128 * base, 16, 8 * WIDTH[layout], layout, base)
            body = mma("f16", instruction("bf16", "bf16", 64), a, k_major(B_AT, layout, "%d1"))
            kernels.append(tensor_kernel(f"base_offset_{name}_{base}", body, integers("bf16"), index_fill()))
    yield Assumption(
        "base-offset", "a base offset is subtracted from the 128-byte row before the XOR", tuple(kernels)
    )


def tensor_memory() -> Iterator[Assumption]:
    for m, lane in ((128, 0), (64, 0), (64, 16)):
        shifted = [f"add.u32 %r3, %taddr, {lane << 16:#x};"]
        operands = k_major(0, B32, "%d0"), [*k_major(B_AT, B32, "%d1"), *shifted]
        body = mma("f16", instruction("bf16", "bf16", m), *operands, d="%r3")
        kernel = tensor_kernel(f"d_m{m}_lane{lane}", body, integers("bf16"), index_fill())
        yield Assumption(
            f"d-layout-M{m}-lane{lane}",
            "D: lane = row"
            if m == 128
            else f"D: lane = 32 (row/16) + row%16 + {lane}; other lanes untouched",
            (kernel,),
        )
        a = [f"add.u32 %r1, %taddr, {lane << 16 | A_COLUMN:#x};"]
        kernels = []
        for name in ("bf16", "tf32", "e4m3"):
            fill = integers(name, 9)[: 4 * THREADS * COLUMNS].view(np.uint32).reshape(THREADS, COLUMNS)
            body = mma(
                KIND.get(name, "f8f6f4"), instruction(name, name, m), a,
                [*k_major(B_AT, B32, "%d1"), *shifted], d="%r3", a_in_tmem=True,
            )  # fmt: skip
            kernels.append(tensor_kernel(f"a_tmem_m{m}_lane{lane}_{name}", body, integers(name), fill))
        yield Assumption(
            f"a-layout-M{m}-lane{lane}", "A in TMEM: rows as in D, elements packed, low first", tuple(kernels)
        )
    body = mma("f16", instruction("bf16", "bf16", 128, 8), k_major(0, B32, "%d0"), k_major(B_AT, B32, "%d1"))
    yield Assumption(
        "N8-M128",
        "N = 8 is legal for M = 128",
        (tensor_kernel("n8_m128", body, integers("bf16"), index_fill()),),
    )
    mask = (0x0000_F00F, 0xFFFF_FFFF, 0, 0x8000_0001)
    kernels = []
    for m in (64, 128):
        body = mma(
            "f16",
            instruction("bf16", "bf16", m),
            k_major(0, B32, "%d0"),
            k_major(B_AT, B32, "%d1"),
            mask=mask,
        )
        kernels.append(tensor_kernel(f"disabled_m{m}", body, integers("bf16"), index_fill()))
    yield Assumption("disabled-lanes", "disable-output-lane: bit i is lane i of TMEM", tuple(kernels))


def operand_image(a: str, b: str, seed: int, spread: int, m: int, special: bool = False) -> Image:
    """A at 0 and B at B_AT, K-major without swizzle: codes of one format each; chunk c of a row 4096 c
    further."""
    image = np.zeros(IMAGE_BYTES, np.uint8)
    for name, at, rows, salt in ((a, 0, m, 0), (b, B_AT, N, 50)):
        size = 1 if name.startswith("e") else BYTES[name]
        count = rows * 32 // size
        make = specials if special else drawn
        codes = make(name, seed + salt, count, *(() if special else (spread,))).astype(f"u{size}")
        halves = codes.view(np.uint8).reshape(2, rows * 16)
        for half in (0, 1):
            image[at + 4096 * half : at + 4096 * half + rows * 16] = halves[half]
    return image


def accumulators(seed: int, spread: int) -> Fill:
    return drawn("f32", seed, THREADS * COLUMNS, spread).reshape(THREADS, COLUMNS)


def numeric(
    name: str,
    a: str,
    b: str,
    seed: int,
    spread: int,
    *,
    special: bool = False,
    fill: Fill | None = None,
    **options: object,
) -> MicroKernel:
    idesc_options = {key: options.pop(key) for key in ("d_f32", "negate_a", "negate_b") if key in options}
    body = mma(
        KIND.get(a, "f8f6f4"), instruction(a, b, 64, **idesc_options),
        k_major(0, NONE, "%d0"), k_major(B_AT, NONE, "%d1"), **options,
    )  # fmt: skip
    start = accumulators(seed + 7, spread) if fill is None else fill
    return tensor_kernel(name, body, operand_image(a, b, seed, spread, 64, special), start)


def numbers() -> Iterator[Assumption]:
    reach = {
        "f16": (0, 6, 14),
        "bf16": (0, 6, 20, 40),
        "tf32": (0, 6, 20, 40),
        "e4m3": (0, 4, 12),
        "e5m2": (0, 6, 24),
    }
    pairs = [(name, name) for name in reach] + [("e4m3", "e5m2")]
    for a, b in pairs:
        kernels = [
            numeric(f"sum_{a}_{b}_{spread}", a, b, 100 + spread, spread, accumulate=True)
            for spread in reach[a]
        ]
        kernels.append(numeric(f"sum_{a}_{b}_no_c", a, b, 300, reach[a][-1]))
        yield Assumption(
            f"sum-{a}-{b}",
            "one fused sum of all K products and C, cut at 25 fraction bits, D cut toward zero",
            tuple(kernels),
        )
        yield Assumption(
            f"specials-{a}-{b}",
            "Inf, NaN (0x7fffffff), subnormals and zeros of either sign",
            (numeric(f"special_{a}_{b}", a, b, 400, 4, special=True, accumulate=True),),
        )
    yield Assumption(
        "half-result",
        "f16 D: rounded to nearest even, in the low half of a column whose upper half becomes zero",
        (
            numeric("half_sum", "f16", "f16", 500, 6, d_f32=False),
            numeric("half_wide", "f16", "f16", 510, 14, d_f32=False),
            numeric("half_accumulate", "f16", "f16", 520, 6, d_f32=False, accumulate=True, fill=half_fill()),
            numeric("half_e4m3", "e4m3", "e4m3", 530, 12, d_f32=False),
        ),
    )
    yield Assumption(
        "negation",
        "negation flips the operand's sign bit",
        (
            numeric("negate_a", "bf16", "bf16", 540, 6, negate_a=True),
            numeric("negate_b", "e4m3", "e4m3", 550, 6, negate_b=True, accumulate=True),
        ),
    )
    tiny = (random_u32(5, THREADS * COLUMNS) & 0x80FF_FFFF).reshape(THREADS, COLUMNS)
    yield Assumption(
        "scale-input-d",
        "D 2^-s enters exactly; a subnormal D 2^-s is rounded to nearest even first",
        (
            numeric("scale_1", "bf16", "bf16", 560, 20, accumulate=True, scale=1),
            numeric("scale_15", "tf32", "tf32", 570, 6, accumulate=True, scale=15),
            scaled_only("scale_tiny", tiny),
        ),
    )
    yield Assumption(
        "narrow-formats",
        "e2m1, e2m3, e3m2 in shared memory: 16 codes at the start of 16 bytes, low bits first",
        (*(narrow(name, name) for name in ("e2m1", "e2m3", "e3m2")), narrow("e2m1", "e3m2")),
    )
    yield Assumption(
        "narrow-formats-in-tmem",
        "A in TMEM: a byte a code, e2m1 in bits 2..5, e2m3 and e3m2 in bits 1..6, other bits ignored",
        tuple(narrow(name, "e2m3", a_in_tmem=True) for name in ("e2m1", "e2m3", "e3m2")),
    )
    body = mma(
        "f16", instruction("bf16", "bf16", 64), k_major(0, NONE, "%d0"), k_major(B_AT, NONE, "%d1"),
        accumulate=True,
    )  # fmt: skip
    yield Assumption(
        "one-product-a-warp",
        "a product that all lanes of a warp issue with equal operands happens once",
        (tensor_kernel("whole_warp", body, integers("bf16"), index_fill(), whole_warp=True),),
    )


def half_fill() -> Fill:
    """f16 numbers in the low halves; what the upper halves hold must not matter."""
    low = drawn("f16", 77, THREADS * COLUMNS, 6)
    return (low | random_u32(78, THREADS * COLUMNS) << 16).astype(np.uint32).reshape(THREADS, COLUMNS)


def scaled_only(name: str, fill: Fill) -> MicroKernel:
    """Operands zero: D = 0 + D 2^-15."""
    body = mma(
        "f16", instruction("bf16", "bf16", 64), k_major(0, NONE, "%d0"), k_major(B_AT, NONE, "%d1"),
        accumulate=True, scale=15,
    )  # fmt: skip
    return tensor_kernel(name, body, np.zeros(16, np.uint8), fill)


def narrow(a: str, b: str, *, a_in_tmem: bool = False) -> MicroKernel:
    """Random bytes are codes of formats whose codes are all finite."""
    image = random_u32(600 + CODE[a], IMAGE_BYTES // 4).view(np.uint8)
    fill = random_u32(620 + CODE[a], THREADS * COLUMNS).reshape(THREADS, COLUMNS)
    source = [f"add.u32 %r1, %taddr, {A_COLUMN};"] if a_in_tmem else k_major(0, NONE, "%d0")
    body = mma("f8f6f4", instruction(a, b, 64), source, k_major(B_AT, NONE, "%d1"), a_in_tmem=a_in_tmem)
    where = "tmem" if a_in_tmem else "shared"
    return tensor_kernel(f"narrow_{a}_{b}_{where}", body, image, fill if a_in_tmem else index_fill())


def fragments() -> Iterator[Assumption]:
    nothing = np.zeros(16, np.uint8)
    for shape, wide, repeat in (("32x32b", 1, 8), ("16x64b", 1, 8), ("16x128b", 2, 4), ("16x256b", 4, 4)):
        count = wide * repeat
        kernels = []
        for mods, lane in (
            (("", 0), ("", 16), (".pack::16b", 0)) if shape[:2] == "16" else (("", 0), (".pack::16b", 0))
        ):
            times = repeat // 2 if mods else repeat
            names = registers(count // 2 if mods else count)
            body = [
                f"add.u32 %r0, %taddr, {lane << 16:#x};",
                "add.u32 %r0, %r0, %lane0;",
                f"tcgen05.ld.sync.aligned.{shape}.x{times}{mods}.b32 {{{names}}}, [%r0];",
                "tcgen05.wait::ld.sync.aligned;",
            ]
            label = f"ld_{shape}_{lane}{'_pack' if mods else ''}"
            kernels.append(
                tensor_kernel(label, body, nothing, index_fill(), per_warp=count // 2 if mods else count)
            )
        yield Assumption(
            f"fragment-{shape}", f"registers of tcgen05.ld.{shape}, plain and packed", tuple(kernels)
        )
    body = [
        "add.u32 %r0, %taddr, %lane0;",
        f"tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {{{registers(4)}}}, [%r0], 16;",
        "tcgen05.wait::ld.sync.aligned;",
    ]
    yield Assumption(
        "fragment-16x32bx2",
        "threads 16..31 read at the address plus immHalfSplitoff columns",
        (tensor_kernel("ld_16x32bx2", body, nothing, index_fill(), per_warp=4),),
    )
    body = [
        f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {{{registers(4)}}}, [%taddr];",
        "tcgen05.wait::ld.sync.aligned;",
    ]
    yield Assumption(
        "relative-lanes",
        "lane 0 in the address of a load means the first lane of the warp's own quarter",
        (tensor_kernel("ld_relative", body, nothing, index_fill(), per_warp=4),),
    )
    body = [
        "add.u32 %r0, %taddr, %lane0;",
        *(f"mad.lo.u32 %o{i}, %thread, 0x01010101, {0xA0B0C0D0 + 0x111 * i:#x};" for i in range(4)),
        f"tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [%r0], {{{registers(4)}}};",
        "tcgen05.wait::st.sync.aligned;",
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{registers(8)}}}, [%r0];",
        "tcgen05.wait::ld.sync.aligned;",
    ]
    yield Assumption(
        "unpack",
        "tcgen05.st.unpack::16b: low half to the even column, high half to the odd one, upper halves zero",
        (tensor_kernel("st_unpack", body, nothing, index_fill(), per_warp=8),),
    )


def copies() -> Iterator[Assumption]:
    image = np.arange(IMAGE_BYTES // 4, dtype=np.uint32).view(np.uint8)
    shapes = (
        "128x256b",
        "128x128b",
        "64x128b.warpx2::02_13",
        "64x128b.warpx2::01_23",
        "32x128b.warpx4",
        "4x256b",
    )
    for shape in shapes:
        kernels = []
        for name, layout in (("none", NONE), ("128B", B128)):
            lane = 5 << 16 if shape == "4x256b" else 0
            body = [
                *k_major(128, layout, "%d0"),
                f"add.u32 %r1, %taddr, {lane | 4:#x};",
                f"tcgen05.cp.cta_group::1.{shape} [%r1], %d0;",
            ]
            label = f"cp_{shape.replace('.', '_').replace('::', '_')}_{name}"
            kernels.append(tensor_kernel(label, body, image, index_fill()))
        yield Assumption(f"cp-{shape}", "rows to lanes, 16-byte chunks to four columns each", tuple(kernels))


def special_functions() -> Iterator[Assumption]:
    """Each function where its tables' intervals begin, and at three places within, with all, alternate and
    few bits of x: another table or squarer shows. Thread i takes the first number and i steps."""
    octave = 1 << 23
    spans = {  # first number as f32 bits, how many octaves
        "ex2.approx.ftz.f32": (0x3F800000, 1),
        "lg2.approx.ftz.f32": (0x3F000000, 2),
        "rcp.approx.ftz.f32": (0x3F800000, 1),
        "rsqrt.approx.ftz.f32": (0x3F800000, 2),
        "sqrt.approx.ftz.f32": (0x3F800000, 2),
        "sin.approx.ftz.f32": (0x3F000000, 4),
        "cos.approx.ftz.f32": (0x3F000000, 4),
        "tanh.approx.f32": (0x3B800000, 11),
    }
    for spelling, (first, octaves) in spans.items():
        step = octaves * octave // THREADS
        body = []
        for i, within in enumerate((0, 0xFFFF, 0x5555, 0x8421)):
            body += [
                f"mad.lo.u32 %r0, %thread, {step:#x}, {first + within:#x};",
                f"{spelling} %o{i}, %r0;",
            ]
        name = spelling.split(".")[0]
        kernel = tensor_kernel(f"mufu_{name}", body, np.zeros(16, np.uint8), index_fill(), per_warp=4)
        yield Assumption(
            f"special-function-{name}", f"{spelling} is that of sm_90, from the same tables", (kernel,)
        )


def block_scaled_products() -> Iterator[Assumption]:
    for name, claim, kernels in block_scales():
        yield Assumption(name, claim, kernels)


GROUPS: tuple[Callable[[], Iterator[Assumption]], ...] = (
    layouts,
    tensor_memory,
    numbers,
    block_scaled_products,
    fragments,
    copies,
    special_functions,
)


@cache
def assumptions() -> tuple[Assumption, ...]:
    found = tuple(assumption for group in GROUPS for assumption in group())
    names = [kernel.name for assumption in found for kernel in assumption.kernels]
    assert len(set(names)) == len(names), "two micro-kernels have one name"
    return found
