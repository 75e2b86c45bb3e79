# SPDX-License-Identifier: Apache-2.0
"""The instructions: a row for each form, in the syntax of the PTX ISA (9.2, chapter 9) as `forms` explains.

The parser refuses an instruction without a row by name. The parser, the engines, the profile, the checker and
the mutants read operands, types, effects and waits here. Each engine defines what an instruction computes.
Suffixes in `hint` change the speed of an instruction, never its result.

To add an instruction: add a row to `engine_instructions` with a function in each engine, or to
`machine_instructions` with a handler of the machine.
"""

from __future__ import annotations

from gdnbench.sim.ptx import engine_instructions, machine_instructions
from gdnbench.sim.ptx.forms import Row, Sync, row

# The names of sets of suffixes in rows.
SETS: dict[str, frozenset[str]] = {
    name: frozenset(members.split())
    for name, members in {
        "rnd": "rn rz rm rp",
        "irnd": "rni rzi rmi rpi",
        "int": "u16 u32 u64 s16 s32 s64",
        "unsigned": "u16 u32 u64",
        "signed": "s16 s32 s64",
        "bits": "b16 b32 b64",
        "moved": "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64",
        "loaded": "b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64",
        "half": "f16 f16x2 bf16 bf16x2",
        "small": "u8 u16 u32 u64 s8 s16 s32 s64",  # integers that cvt takes
        "cmp": "eq ne lt le gt ge",
        "ucmp": "eq ne lt le gt ge lo ls hi hs",
        "fcmp": "eq ne lt le gt ge equ neu ltu leu gtu geu num nan",
        "bool": "and or xor",
        "vec": "v2 v4 v8",
        "sem": "weak relaxed acquire release acq_rel volatile",
        "scope": "cta cluster gpu sys",
        "space": "global shared shared::cta shared::cluster local param param::entry const",
        "aspace": "global shared shared::cta shared::cluster",
        "sspace": "shared shared::cta shared::cluster",
        "wspace": "global shared shared::cta",
        "wshape": "m16n16k16 m32n8k16 m8n32k16",
        "ldcop": "ca cg cs lu cv",  # cache operators
        "policy": "L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged",
        "stcop": "wb cg cs wt",
        "hint": """L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate
            L2::cache_hint L2::evict_normal L2::evict_first L2::evict_last L2::64B L2::128B L2::256B""",
        "collector": "collector::a::discard collector::a::lastuse collector::a::fill collector::a::use",
        "bcollector": " ".join(
            f"collector::b{buffer}::{op}"
            for buffer in range(4)
            for op in ("fill", "use", "lastuse", "discard")
        ),
        "op": "add min max inc dec and or xor",
        "cta_group": "cta_group::1 cta_group::2",
        "kind": "kind::f16 kind::tf32 kind::f8f6f4 kind::i8",
        "mxkind": "kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4",
        "level::cache_hint": "L2::cache_hint",
        "completion_mechanism": "mbarrier::complete_tx::bytes",
        "multicast": "multicast::cluster",
        "dst": "shared::cta shared::cluster",
        "f8f6f4": "e4m3 e5m2 e3m2 e2m3 e2m1",
        "first_ctaid": "get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z",
        "reduced": "b32 u32 s32 b64 u64 s64 f32 f64 f16 bf16",
        "redtype": "u32 s32 b32 u64 s64 b64",
        "asynctype": "b32 b64 u32 u64 s32 s64 f32 f64",
        "float": "f16 bf16 tf32 e4m3 e5m2",
        "factor": "f16 bf16 tf32 e4m3 e5m2 u8 s8",
        "tilemode": "tile tile::gather4",
        "im2colmode": "im2col im2col::w im2col::w::128",
        "srcfmt": "b6x16_p32 b4x16_p64",
        "scale": "scale_vec::1X scale_vec::2X scale_vec::4X block16 block32",
        "multi": """b32 b64 u32 u64 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64
            e5m2 e5m2x2 e5m2x4 e4m3 e4m3x2 e4m3x4""",
        "dim": "1d 2d 3d 4d 5d",
        "loadmode": "tile tile::gather4 im2col im2col::w im2col::w::128",
        "storemode": "tile tile::scatter4 im2col_no_offs",
        "reducemode": "tile im2col_no_offs",
        "tshape": "16x64b 16x128b 16x256b 32x32b 16x32bx2",
        "num": "x1 x2 x4 x8 x16 x32 x64 x128",
        "rednum": "x2 x4 x8 x16 x32 x64 x128",
        "field": "global_address rank elemtype interleave_layout swizzle_mode swizzle_atomicity fill_mode",
        "ordfield": "box_dim global_dim global_stride element_stride",
        # K of a dense wgmma is 32 bytes, so its number of elements tells the types apart; that of single bits
        # is 256.
        "wgmma": " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32, 256)),
        "sparse": " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (16, 32, 64)),
    }.items()
}


def _rows() -> dict[str, tuple[Row, ...]]:
    found: dict[str, list[Row]] = {}
    for table in (engine_instructions.TABLE, machine_instructions.TABLE):
        for traits, text in table.items():
            for line in text.strip().splitlines():
                each = row(line, traits, SETS)
                found.setdefault(each.op, []).append(each)
    return {op: tuple(rows) for op, rows in found.items()}


ROWS = _rows()
"""The rows of each opcode."""


def opcodes(*syncs: Sync) -> tuple[str, ...]:
    """The opcodes that synchronise in one of these ways."""
    return tuple(op for op, rows in ROWS.items() if rows[0].traits.sync in syncs)


BARRIERS = opcodes(Sync.BARRIER_WAIT, Sync.BARRIER_ARRIVE, Sync.BARRIER_REDUCE)
"""The opcodes of named barriers."""
