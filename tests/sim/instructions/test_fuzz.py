# SPDX-License-Identifier: Apache-2.0
"""Both engines on random straight-line programs: all registers equal bit for bit at the end.

`--fresh-seeds` makes new programs; a failure names the GDNBENCH_FUZZ_SEED that repeats it.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from tests.seeds import drawn
from tests.sim.instructions.one_instruction import apply
from tests.sim.instructions.operands import float_bits, integers

# (template, result, sources): h b16, r b32, d b64, p predicate.
FORMS = [
    *((f"{op}.{t} {{}}, {{}}, {{}};", "r", "rr") for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max")
      for t in ("s32", "u32")),
    *((f"{op}.{t} {{}}, {{}}, {{}};", "d", "dd") for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max")
      for t in ("s64", "u64")),
    *((f"{op}.b32 {{}}, {{}}, {{}};", "r", "rr") for op in ("and", "or", "xor")),
    *((f"{op} {{}}, {{}}, {{}};", "r", "rr") for op in ("shl.b32", "shr.u32", "shr.s32")),
    *((f"{op} {{}}, {{}}, {{}};", "d", "dr") for op in ("shl.b64", "shr.u64", "shr.s64")),
    *((f"{op}.{m}.f32 {{}}, {{}}, {{}};", "r", "rr") for op in ("add", "sub", "mul", "div")
      for m in ("rn", "rz", "rm", "rp")),
    *((f"{op}.{m}.ftz.f32 {{}}, {{}}, {{}};", "r", "rr") for op in ("add", "mul") for m in ("rn", "rm")),
    *((f"fma.{m}{s}.f32 {{}}, {{}}, {{}}, {{}};", "r", "rrr") for m in ("rn", "rz", "rm", "rp")
      for s in ("", ".ftz", ".sat")),
    *((f"{op}.{m}.f32x2 {{}}, {{}}, {{}};", "d", "dd") for op in ("add", "sub", "mul") for m in ("rn", "rm")),
    ("fma.rn.f32x2 {}, {}, {}, {};", "d", "ddd"),
    *((f"{op}.{t} {{}}, {{}}, {{}};", "r", "rr") for op in ("add", "sub", "mul", "min", "max", "max.NaN")
      for t in ("f16x2", "bf16x2")),
    *((f"fma.rn.{t} {{}}, {{}}, {{}}, {{}};", "r", "rrr") for t in ("f16x2", "bf16x2")),
    *((f"fma.rn.f32.{t} {{}}, {{}}, {{}}, {{}};", "r", "hhr") for t in ("f16", "bf16")),
    *((f"cvt.{m}.{t}x2.f32 {{}}, {{}}, {{}};", "r", "rr") for m in ("rn", "rz") for t in ("f16", "bf16")),
    *((f"cvt.{m}.{t}.f32 {{}}, {{}};", "r", "r") for m in ("rni", "rzi", "rmi", "rpi")
      for t in ("s32", "u32")),
    *((f"cvt.{m}.f32.{t} {{}}, {{}};", "r", "r") for m in ("rn", "rz", "rm", "rp") for t in ("s32", "u32")),
    *((f"cvt.{m}.f32.{t} {{}}, {{}};", "r", "d") for m in ("rn", "rz", "rm", "rp") for t in ("s64", "u64")),
    *((f"cvt.rn.satfinite.{t}x2.f32 {{}}, {{}}, {{}};", "h", "rr") for t in ("e4m3", "e5m2")),
    ("cvt.u16.u32 {}, {};", "h", "r"), ("cvt.s64.s32 {}, {};", "d", "r"), ("cvt.u32.u64 {}, {};", "r", "d"),
    ("mov.b64 {}, {{{}, {}}};", "d", "rr"), ("mov.b32 {}, {{{}, {}}};", "r", "hh"),
    ("mad.lo.s32 {}, {}, {}, {};", "r", "rrr"), ("mad.wide.s32 {}, {}, {}, {};", "d", "rrd"),
    ("mul.wide.u32 {}, {}, {};", "d", "rr"),
    ("popc.b32 {}, {};", "r", "r"), ("clz.b32 {}, {};", "r", "r"), ("brev.b32 {}, {};", "r", "r"),
    ("bfe.u32 {}, {}, {}, {};", "r", "rrr"), ("bfe.s32 {}, {}, {}, {};", "r", "rrr"),
    ("bfi.b32 {}, {}, {}, {}, {};", "r", "rrrr"), ("prmt.b32 {}, {}, {}, {};", "r", "rrr"),
    ("shf.l.wrap.b32 {}, {}, {}, {};", "r", "rrr"), ("lop3.b32 {}, {}, {}, {}, 0xE8;", "r", "rrr"),
    ("abs.s32 {}, {};", "r", "r"), ("neg.f32 {}, {};", "r", "r"), ("abs.f32 {}, {};", "r", "r"),
    *((f"{op}{m}.f32 {{}}, {{}}, {{}};", "r", "rr") for op in ("min", "max") for m in ("", ".NaN", ".ftz")),
    ("sqrt.rn.f32 {}, {};", "r", "r"), ("rcp.rn.f32 {}, {};", "r", "r"),
    *((f"setp.{c}.{t} {{}}, {{}}, {{}};", "p", "rr") for c in ("eq", "ne", "lt", "ge")
      for t in ("s32", "u32", "f32")),
    *((f"setp.{c}.f32 {{}}, {{}}, {{}};", "p", "rr") for c in ("ltu", "neu", "nan", "num")),
    ("selp.b32 {}, {}, {}, {};", "r", "rrp"), ("selp.b64 {}, {}, {}, {};", "d", "ddp"),
    ("xor.pred {}, {}, {};", "p", "pp"), ("not.pred {}, {};", "p", "p"),
    ("shfl.sync.bfly.b32 {}, {}, {}, 31, -1;", "r", "rr"), ("redux.sync.add.s32 {}, {}, -1;", "r", "r"),
    ("vote.sync.ballot.b32 {}, {}, -1;", "r", "p"),
]  # fmt: skip
KINDS = {"h": np.uint16, "r": np.uint32, "d": np.uint64, "p": np.bool_}
EACH = 5
LENGTH = 120


def program(seed: int) -> str:
    """Random instructions on %s0.. (sources) and %d0.. (state), some of them guarded."""
    rng = random.Random(seed)
    names = {kind: [f"%d{EACH * i + j}" for j in range(EACH)] for i, kind in enumerate(KINDS)}
    lines = []
    for _ in range(LENGTH):
        template, result, sources = rng.choice(FORMS)
        line = template.format(rng.choice(names[result]), *(rng.choice(names[kind]) for kind in sources))
        collective = ".sync" in line
        guard = (
            f"@{rng.choice(('', '!'))}{rng.choice(names['p'])} "
            if not collective and rng.random() < 0.2
            else ""
        )
        lines.append(guard + line)
    return "\n".join(lines)


def state(seed: int) -> list[np.ndarray]:
    """What the registers hold at first: corner values and random ones."""
    rng = np.random.default_rng(seed)
    values = {
        "h": np.concatenate([float_bits("f16", seed), float_bits("bf16", seed)]),
        "r": np.concatenate([float_bits("f32", seed), integers(np.uint32, seed)]),
        "d": np.concatenate([float_bits("f64", seed), integers(np.uint64, seed)]),
        "p": np.array([False, True]),
    }
    return [rng.choice(values[kind], 256) for kind in KINDS for _ in range(EACH)]


def chosen(name: str) -> int:
    return int(os.environ.get("GDNBENCH_FUZZ_SEED", drawn(name)))


def same(seed: int) -> None:
    """Fail with the seed and the first register that differs."""
    sources = state(seed)
    types = [kind for kind in KINDS.values() for _ in range(EACH)]
    names = ["pred" if t is np.bool_ else f"b{8 * np.dtype(t).itemsize}" for t in types]
    moves = "".join(f"mov.{name} %d{i}, %s{i};\n" for i, name in enumerate(names))
    text = moves + program(seed)
    first, second = (apply(engine, text, sources, types) for engine in ("interpreter", "compiled"))
    for i, (x, y) in enumerate(zip(first, second, strict=True)):
        places = np.flatnonzero(x != y)
        at = places[0] if places.size else 0
        assert not places.size, f"GDNBENCH_FUZZ_SEED={seed}: %d{i} of thread {at}: {x[at]} and {y[at]}"


@pytest.mark.every(2)
@pytest.mark.parametrize("attempt", range(6))
def test_random_programs(attempt: int) -> None:
    same(chosen(f"fuzz {attempt}"))


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(100))
def test_many_random_programs(attempt: int) -> None:
    same(chosen(f"much fuzz {attempt}"))
