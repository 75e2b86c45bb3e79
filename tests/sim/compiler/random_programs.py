# SPDX-License-Identifier: Apache-2.0
"""Random PTX programs whose whole register state is stored at the end, for comparing two engines bit for bit.

Registers begin as random bits in which floating-point corner cases are frequent. Programs are structured: ifs
and loops whose conditions differ from lane to lane, nested. Instructions that need the whole warp stand
outside of them. Shared memory has a private part for each thread, read and written anywhere, and a common
one that is only touched where the warp is together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
COUNTS = {"r": 12, "d": 6, "h": 6, "p": 4}
WIDTHS = {"r": 32, "d": 64, "h": 16}
THREADS = 64
PRIVATE = 32  # bytes a thread

_ROUND = ("rn", "rz", "rm", "rp")


def _each(template: str, *choices: str) -> list[str]:
    return [template.replace("*", choice) for choice in choices]


# {r} {d} {h} {p} are registers, {R} a 32-bit register or constant, {i} a small constant.
PLAIN = [
    *_each("*.s32 {r}, {r}, {R};", "add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem", "add.sat"),
    *_each("*.u32 {r}, {r}, {R};", "add", "mul.hi", "min", "max", "div", "rem"),
    "sad.u32 {r}, {r}, {r}, {R};",
    *_each("*.s64 {d}, {d}, {d};", "add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"),
    *_each("*.u64 {d}, {d}, {d};", "mul.hi", "min", "div", "rem"),
    *_each("*.s16 {h}, {h}, {h};", "add", "sub", "mul.lo", "mul.hi", "min", "max"),
    *_each("*.u16x2 {r}, {r}, {r};", "add", "min", "max"),
    *_each("mul.wide.*;", "s32 {d}, {r}, {R}", "u32 {d}, {r}, {R}", "s16 {r}, {h}, {h}", "u16 {r}, {h}, {h}"),
    *_each("mad.*;", "lo.s32 {r}, {r}, {r}, {r}", "hi.u32 {r}, {r}, {r}, {r}", "wide.s32 {d}, {r}, {r}, {d}"),
    *_each("*.b32 {r}, {r}, {R};", "and", "or", "xor"),
    *_each("*.b64 {d}, {d}, {d};", "and", "or", "xor"),
    *_each("*.pred {p}, {p}, {p};", "and", "or", "xor"),
    *_each("not.*;", "b32 {r}, {r}", "b64 {d}, {d}", "pred {p}, {p}", "b16 {h}, {h}"),
    *_each(
        "sh*;", "l.b32 {r}, {r}, {R}", "r.s32 {r}, {r}, {R}", "r.u32 {r}, {r}, {i}", "l.b64 {d}, {d}, {R}"
    ),
    *_each("sh*;", "r.s64 {d}, {d}, {i}", "r.u16 {h}, {h}, {R}", "f.l.wrap.b32 {r}, {r}, {r}, {R}"),
    *_each("*;", "lop3.b32 {r}, {r}, {r}, {r}, {b}", "prmt.b32 {r}, {r}, {r}, {r}", "brev.b32 {r}, {r}"),
    *_each("*;", "popc.b32 {r}, {r}", "clz.b64 {r}, {d}", "bfind.s32 {r}, {r}", "bfe.s32 {r}, {r}, {r}, {i}"),
    *_each(
        "*;",
        "bfi.b32 {r}, {r}, {r}, {i}, {i}",
        "bfe.u64 {d}, {d}, {i}, {i}",
        "dp4a.s32.u32 {r}, {r}, {r}, {r}",
    ),
    *_each("setp.*.s32 {p}, {r}, {R};", "lt", "ge", "eq"),
    *_each("setp.*.f32 {p}|{p}, {r}, {r};", "lt", "geu", "neu", "nan"),
    "setp.gt.and.u64 {p}, {d}, {d}, {p};",
    "setp.lt.bf16x2 {p}|{p}, {r}, {r};",
    *_each("selp.*;", "b32 {r}, {r}, {R}, {p}", "b64 {d}, {d}, {d}, {p}", "b16 {h}, {h}, {h}, {p}"),
    "slct.b32.f32 {r}, {r}, {r}, {r};",
    *_each(
        "mov.*;",
        "b64 {d}, {{{r}, {r}}}",
        "b32 {r}, {{{h}, {h}}}",
        "b64 {{{r}, {r}}}, {d}",
        "b32 {{{h}, {h}}}, {r}",
    ),
    *[f"{op}.{mode}.f32 {{r}}, {{r}}, {{r}};" for op in ("add", "sub", "mul", "div") for mode in _ROUND],
    *[f"{op}.{mode}.f64 {{d}}, {{d}}, {{d}};" for op in ("add", "mul") for mode in _ROUND],
    *[f"fma.{mode}.f32 {{r}}, {{r}}, {{r}}, {{r}};" for mode in _ROUND],
    *[f"fma.{mode}.f32x2 {{d}}, {{d}}, {{d}}, {{d}};" for mode in _ROUND],
    *_each("*.f32 {r}, {r}, {r};", "add.ftz", "mul.ftz.sat", "min", "max.NaN", "add.sat", "min.xorsign.abs"),
    *_each(
        "*.f32 {r}, {r};",
        "neg",
        "abs.ftz",
        "rcp.rn",
        "sqrt.rp",
        "sqrt.approx.ftz",
        "rsqrt.approx",
        "rcp.approx.ftz",
    ),
    *_each("*.approx.f32 {r}, {r};", "tanh"),
    *_each("*.approx.ftz.f32 {r}, {r};", "ex2", "lg2"),
    *_each(
        "add.*;",
        "rn.f32.bf16 {r}, {h}, {r}",
        "f16x2 {r}, {r}, {r}",
        "rn.bf16x2 {r}, {r}, {r}",
        "rp.f32.f16 {r}, {h}, {r}",
    ),
    *_each(
        "mul.*;",
        "bf16x2 {r}, {r}, {r}",
        "f16 {h}, {h}, {h}",
        "rn.f32x2 {d}, {d}, {d}",
        "ftz.f16x2 {r}, {r}, {r}",
    ),
    *_each("fma.rn.*;", "bf16x2 {r}, {r}, {r}, {r}", "f16 {h}, {h}, {h}, {h}", "f32.bf16 {r}, {h}, {h}, {r}"),
    *_each("fma.rn.*;", "relu.f16x2 {r}, {r}, {r}, {r}", "bf16 {h}, {h}, {h}, {h}"),
    *_each(
        "cvt.*;",
        "rn.bf16x2.f32 {r}, {r}, {r}",
        "rz.f16x2.f32 {r}, {r}, {r}",
        "f32.bf16 {r}, {h}",
        "f32.f16 {r}, {h}",
    ),
    *_each(
        "cvt.*;",
        "rn.f16.f32 {h}, {r}",
        "rzi.s32.f32 {r}, {r}",
        "rni.u16.f32 {h}, {r}",
        "rpi.s64.f64 {d}, {d}",
    ),
    *_each(
        "cvt.*;", "rn.f32.s32 {r}, {r}", "rp.f32.u64 {r}, {d}", "rm.f16.u32 {h}, {r}", "rn.f32.f64 {r}, {d}"
    ),
    *_each(
        "cvt.*;",
        "f64.f32 {d}, {r}",
        "s64.s32 {d}, {r}",
        "u32.u16 {r}, {h}",
        "sat.u16.s32 {h}, {r}",
        "rmi.f32.f32 {r}, {r}",
    ),
    *_each("cvt.rn.*;", "satfinite.e4m3x2.f32 {h}, {r}, {r}", "f16x2.e5m2x2 {r}, {h}", "bf16.f64 {h}, {d}"),
    *_each(
        "cvt.*;",
        "rna.tf32.f32 {r}, {r}",
        "rn.satfinite.relu.e5m2x2.f32 {h}, {r}, {r}",
        "rn.f16x2.e4m3x2 {r}, {h}",
    ),
]

# On the thread's own bytes of shared memory, at %mine.
PRIVATE_MEMORY = [
    *_each(
        "ld.shared.*;",
        "b32 {r}, [%mine+4]",
        "v2.b32 {{{r}, {r}}}, [%mine+8]",
        "s16 {r}, [%mine+6]",
        "b64 {d}, [%mine+16]",
    ),
    *_each(
        "ld.shared.*;",
        "v4.b32 {{{r}, {r}, {r}, {r}}}, [%mine]",
        "u8 {h}, [%mine+3]",
        "v2.b64 {{{d}, {d}}}, [%mine+16]",
    ),
    *_each(
        "st.shared.*;",
        "b32 [%mine], {r}",
        "v2.b16 [%mine+12], {{{h}, {h}}}",
        "b64 [%mine+24], {d}",
        "b8 [%mine+5], {h}",
    ),
    *_each("st.shared.*;", "v4.b32 [%mine+16], {{{r}, {r}, {r}, {r}}}", "v2.b64 [%mine], {{{d}, {d}}}"),
    *_each(
        "atom.shared.*;",
        "add.u32 {r}, [%mine], {r}",
        "cas.b32 {r}, [%mine+4], {r}, {r}",
        "max.s64 {d}, [%mine+8], {d}",
    ),
    "ld.b32 {r}, [%generic+12];",
    "st.b32 [%generic+8], {r};",
]

# Only where the warp is together. %common has 256 bytes a warp.
TOGETHER = [
    *_each("shfl.sync.*;", "bfly.b32 {r}, {r}, {i}, 31, -1", "idx.b32 {r}|{p}, {r}, {r}, 0x101f, -1"),
    *_each("shfl.sync.*;", "up.b32 {r}|{p}, {r}, {i}, 0, -1", "down.b32 {r}, {r}, {r}, 31, 0xffffffff"),
    *_each("vote.sync.*;", "ballot.b32 {r}, {p}, -1", "all.pred {p}, {p}, -1", "uni.pred {p}, {p}, -1"),
    *_each(
        "redux.sync.*;",
        "add.s32 {r}, {r}, -1",
        "max.NaN.f32 {r}, {r}, -1",
        "min.u32 {r}, {r}, -1",
        "xor.b32 {r}, {r}, -1",
    ),
    *_each("match.*;", "any.sync.b32 {r}, {r}, -1", "all.sync.b64 {r}|{p}, {d}, -1"),
    *_each("*;", "elect.sync {r}|{p}, -1", "activemask.b32 {r}", "bar.warp.sync -1"),
    "movmatrix.sync.aligned.m8n8.trans.b16 {r}, {r};",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {{{r}, {r}, {r}, {r}}}, {{{r}, {r}}}, {{{r}}}, "
    "{{{r}, {r}, {r}, {r}}};",
    "st.shared.b32 [%common], {r};\nld.shared.b16 {h}, [%common+2];",
    "red.shared.add.u32 [%counter], {r};\nbar.warp.sync -1;\nld.shared.b32 {r}, [%counter];",
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{{r}, {r}}}, [%row];",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%row], {{{r}, {r}, {r}, {r}}};",
    "bar.sync 0;",
]


@dataclass
class Writer:
    """Writes one program."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    labels: int = 0

    def fill(self, template: str) -> str:
        """Registers for the letters; destinations of one instruction are different registers."""
        fresh = {kind: iter(self.rng.sample(range(n), n)) for kind, n in COUNTS.items()}
        written = template.replace("{{", "\0").replace("}}", "\1")
        while "{" in written:
            at = written.index("{")
            letter = written[at + 1]
            if letter == "i":
                text = str(self.rng.choice((0, 1, 3, 7, 8, 15, 16, 31, 32, 40)))
            elif letter == "b":
                text = str(self.rng.randrange(256))
            elif letter == "R" and self.rng.random() < 0.4:
                text = str(self.rng.choice((0, 1, -1, 5, 31, 32, 0x7FFFFFFF, 0x80000000, 12345)))
            else:
                kind = letter.lower()
                chosen = next(fresh[kind], None)
                text = f"%{kind}{self.rng.randrange(COUNTS[kind]) if chosen is None else chosen}"
            written = written[:at] + text + written[at + 3 :]
        return written.replace("\0", "{").replace("\1", "}")

    def straight(self, count: int, *, together: bool) -> None:
        for _ in range(count):
            draw = self.rng.random()
            pool = TOGETHER if together and draw < 0.15 else PRIVATE_MEMORY if draw < 0.3 else PLAIN
            text = self.fill(self.rng.choice(pool))
            if pool is not TOGETHER and self.rng.random() < 0.15:
                text = f"@{'!' if self.rng.random() < 0.5 else ''}%p{self.rng.randrange(COUNTS['p'])} {text}"
            self.lines.append(text)

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def region(self, depth: int, *, together: bool) -> None:
        """Straight code, with ifs and loops inside until `depth` is used up."""
        self.straight(self.rng.randrange(2, 8), together=together)
        if depth == 0:
            return
        for _ in range(self.rng.randrange(1, 3)):
            self.rng.choice((self.branch, self.loop))(depth)
            self.straight(self.rng.randrange(1, 5), together=together)

    def branch(self, depth: int) -> None:
        other, end = self.label(), self.label()
        self.lines.append(self.fill("setp.lt.s32 {p}, {r}, {r};"))
        self.lines.append(f"@%p{self.rng.randrange(COUNTS['p'])} bra {other};")
        self.region(depth - 1, together=False)
        self.lines.append(f"bra.uni {end};" if self.rng.random() < 0.8 else f"bra {end};")
        self.lines.append(f"{other}:")
        self.region(depth - 1, together=False)
        self.lines.append(f"{end}:")

    def loop(self, depth: int) -> None:
        """As many turns as the lane's number and the data say, at most four."""
        top = self.label()
        counter = f"%n{self.labels}"
        self.lines.append(self.fill(f".reg .b32 {counter};\nand.b32 {counter}, {{r}}, 3;"))
        self.lines.append(f"{top}:")
        self.region(depth - 1, together=False)
        self.lines.append(f"add.s32 {counter}, {counter}, -1;\nsetp.ge.s32 %again, {counter}, 0;")
        self.lines.append(f"@%again bra {top};")


def _places() -> list[tuple[str, int, int]]:
    """(register, bits, offset in a thread's record) of everything that is loaded first and stored last."""
    places, offset = [], 0
    for kind in ("d", "r", "h"):
        for index in range(COUNTS[kind]):
            places.append((f"%{kind}{index}", WIDTHS[kind], offset))
            offset += WIDTHS[kind] // 8
    return places


RECORD = -(-(sum(WIDTHS[k] // 8 * COUNTS[k] for k in WIDTHS) + 4) // 8) * 8


def program(seed: int, *, depth: int, length: int = 0) -> str:
    """A kernel `k(in, out)`; `depth` 0 gives a straight line of `length` instructions."""
    writer = Writer(random.Random(seed))
    if depth == 0:
        writer.straight(length, together=True)
    else:
        writer.region(depth, together=True)
        writer.straight(4, together=True)
    loads = "\n".join(f"ld.global.b{bits} {name}, [%in+{at}];" for name, bits, at in _places())
    stores = "\n".join(f"st.global.b{bits} [%out+{at}], {name};" for name, bits, at in _places())
    truths = "\n".join(f"setp.gt.s32 %p{i}, %r{i}, %r{i + 1};" for i in range(COUNTS["p"]))
    flags = "mov.b32 %x, 0;\n" + "\n".join(
        f"selp.b32 %y, {1 << i}, 0, %p{i};\nor.b32 %x, %x, %y;" for i in range(COUNTS["p"])
    )
    body = "\n".join(writer.lines)
    declared = "".join(f".reg .b{WIDTHS[k]} %{k}<{COUNTS[k]}>;\n" for k in WIDTHS)
    return f"""{HEADER}
.visible .entry k(.param .b64 source, .param .b64 target)
{{
{declared}.reg .pred %p<{COUNTS["p"]}>, %again;
.reg .b32 %x, %y, %thread, %lane, %warp, %mine, %common, %row, %counter;
.reg .b64 %in, %out, %generic;
.shared .align 16 .b8 private[{THREADS * PRIVATE}];
.shared .align 16 .b8 common[{THREADS // 32 * 768}];
mov.u32 %thread, %tid.x;
mov.u32 %lane, %laneid;
shr.u32 %warp, %thread, 5;
ld.param.b64 %in, [source];
ld.param.b64 %out, [target];
mad.wide.u32 %in, %thread, {RECORD}, %in;
mad.wide.u32 %out, %thread, {RECORD}, %out;
mov.u32 %mine, private;
mad.lo.s32 %mine, %thread, {PRIVATE}, %mine;
cvt.u64.u32 %generic, %mine;
cvta.shared.u64 %generic, %generic;
mov.u32 %common, common;
mad.lo.s32 %common, %warp, 768, %common;
mad.lo.s32 %row, %lane, 16, %common;
add.s32 %counter, %common, 640;
mad.lo.s32 %common, %lane, 4, %common;
{loads}
st.shared.v2.b64 [%mine], {{%d0, %d1}};
st.shared.v2.b64 [%mine+16], {{%d2, %d3}};
st.shared.v4.b32 [%row], {{%r0, %r1, %r2, %r3}};
st.shared.b32 [%counter], %r0;
{truths}
bar.sync 0;
{body}
{stores}
{flags}
st.global.b32 [%out+{RECORD - 4}], %x;
ret;
}}
"""


_CORNERS = np.array(
    [
        *(
            0,
            1,
            0x80000000,
            0x3F800000,
            0xBF800000,
            0x7F800000,
            0xFF800000,
            0x7FC00000,
            0x7F7FFFFF,
            0x00800000,
        ),
        *(0x007FFFFF, 0x80000001, 0x3F7FFFFF, 0x33800000, 0x4B800000, 0xFFFFFFFF, 0x7FFFFFFF, 0x3C003C00),
        0x7C007BFF,
    ],
    np.uint32,
)


def operands(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The threads' first register contents: random bits, numbers near one, corner cases."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, (THREADS, RECORD // 4), np.uint64).astype(np.uint32)
    near_one = rng.normal(0, 4, words.shape).astype(np.float32).view(np.uint32)
    kind = rng.random(words.shape)
    words = np.where(kind < 0.4, near_one, words)
    words = np.where(kind > 0.7, rng.choice(_CORNERS, words.shape), words)
    return words.astype(np.uint32).view(np.uint8)
