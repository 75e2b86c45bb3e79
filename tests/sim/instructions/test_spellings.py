# SPDX-License-Identifier: Apache-2.0
"""Both engines execute each row of the instruction table alike, and refuse the rows that the table marks as
not executed. Every suffix of an executed row changes a result."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.parser import parse
from tests.seeds import drawn
from tests.sim.instructions.one_instruction import Array, apply
from tests.sim.instructions.operands import float_bits, integers
from tests.sim.instructions.spellings import OPCODES, Case, cases, compiled, interpreted

RUN = 6  # cases of one opcode that are run
# No engine has these; both refuse them by name.
REFUSED = ("cvt.pack",)
TOGETHER = 30  # in one kernel
VALUES = 82 * 32  # at least as many as `_operands` has of any width
DTYPES = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}

# `rn` is the default; a carry shows in the next sum only (test_integer.py).
NEUTRAL = {"rn", "cc"}


def _neutral(case: Case, mod: str) -> bool:
    """True of a suffix that need not change any result."""
    if case.op in ("sin", "cos") or {"num", "nan"} & {*case.mods}:
        return mod == "ftz"  # near zero they are x, which the unit flushes, and 1; tiny numbers are numbers
    if case.op == "cvt":
        # Exact conversions round nowhere, integers clamp anyway, and tiny numbers vanish in narrow formats.
        return mod not in ("relu", "satfinite")
    return mod in NEUTRAL


def _seed() -> int:
    return int(os.environ.get("GDNBENCH_FUZZ_SEED", drawn("spellings")))


@pytest.mark.every(3)
@pytest.mark.parametrize("op", OPCODES)
def test_engines_take_the_same(op: str) -> None:
    every = list(cases(op))
    for case in every:
        taken, executed = (interpreted(case), compiled(case)), case.form.executed
        assert taken == (executed, executed), f"interpreter, compiler {taken}, table {executed}: {case}"
    assert any(case.form.executed for case in every) == (op not in REFUSED)


def _operands(width: int, place: int) -> Array:
    """All corners and random bits of everything that a register of this width may hold, in an order that
    depends on the operand's place."""
    every: dict[int, list[Array]] = {
        1: [np.array([False, True])],
        16: [float_bits("f16", place), float_bits("bf16", place), integers(np.uint16, place)],
        32: [
            float_bits("f32", place),
            integers(np.uint32, place),
            np.arange(64, dtype=np.uint32),
            np.linspace(-160, 160, 641, dtype=np.float32).view(np.uint32),
        ],
        64: [float_bits("f64", place), integers(np.uint64, place)],
    }
    pool = np.concatenate(every[width])
    assert pool.size <= VALUES
    return np.resize(np.random.default_rng(place).permutation(pool), VALUES)


def _results(engine: str, chosen: list[Case]) -> dict[Case, Array]:
    """What each case gives; cases with equal operands share a kernel."""
    alike: dict[tuple[int, tuple[int, ...]], list[Case]] = defaultdict(list)
    for case in chosen:
        alike[case.dest, case.sources].append(case)
    found: dict[Case, Array] = {}
    for (dest, widths), group in alike.items():
        sources = [_operands(width, place) for place, width in enumerate(widths)]
        names = [f"%s{i}" for i in range(len(widths))]
        for start in range(0, len(group), TOGETHER):
            part = group[start : start + TOGETHER]
            carries = any(case.op in ("addc", "subc", "madc") for case in part)
            # The carry that an instruction finds is the one that this leaves.
            ready = "add.cc.u32 %carry, %carry, 1;\n" if carries else ""
            text = ".reg .b32 %carry;\nmov.b32 %carry, -1;\n" if carries else ""
            for i, case in enumerate(part):
                text += ready + "mov.b32 %carry, -1;\n" * carries + case.text(f"%d{i}", names) + "\n"
            results = apply(engine, text, sources, [DTYPES[dest]] * len(part))
            found.update(zip(part, results, strict=True))
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("op", OPCODES)
def test_both_give_the_same_and_no_suffix_is_ignored(op: str) -> None:
    _no_suffix_is_ignored(op, RUN)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("op", OPCODES)
def test_no_suffix_is_ignored_in_any_spelling(op: str) -> None:
    _no_suffix_is_ignored(op, 1000)


def _no_suffix_is_ignored(op: str, run: int) -> None:
    seed = _seed()
    every = [case for case in cases(op) if interpreted(case)]
    chosen = every if len(every) <= run else random.Random(seed).sample(every, run)
    without = [case.without(mod) for case in chosen for mod in case.mods if not _neutral(case, mod)]
    shorter = [case for case in without if case is not None]
    chosen = list(dict.fromkeys([*chosen, *(case for case in shorter if interpreted(case))]))
    want, got = _results("interpreter", chosen), _results("compiled", chosen)
    for case in chosen:
        places = np.flatnonzero(want[case] != got[case])
        where = f"GDNBENCH_FUZZ_SEED={seed}: {case.opcode}"
        assert not places.size, f"{where} at {places[0]}: {want[case][places[0]]}, {got[case][places[0]]}"
        for mod in case.mods:
            rest = case.without(mod)
            if rest is not None and rest in want and not _neutral(case, mod):
                assert (want[case] != want[rest]).any(), f"{where}: .{mod} changes nothing"


@pytest.mark.parametrize(
    "opcode",
    [
        "add.rn.rz.f32",
        "add.rn.rn.f32",
        "add.v2.f32",
        "add.s32.v4",
        "mul.lo.hi.s32",
        "setp.lt.gt.s32",
        "shf.l.r.wrap.b32",
        "ld.shared.global.b32",
        "ld.relaxed.acquire.gpu.global.b32",
        "ld.relaxed.cta.gpu.global.b32",
        "ld.global.v2.v4.b32",
        "ld.global.f32.b32",
        "ld.global.e4m3",
        "mov.f16x2",
        "mov",
        "bra.u32",
        "bar.sync.u32",
        "bar.red.popc.f32",
        "mbarrier.init.shared.b32",
        "mbarrier.try_wait.parity.shared",
        "mbarrier.arrive.release.relaxed.cta.shared.b64",
        "tcgen05.ld.sync.aligned.32x32b.x1.x2.b32",
        "tcgen05.ld.sync.aligned.32x32b.x1.f32",
        "tcgen05.mma.cta_group::1.kind::f16.kind::tf32",
        "tcgen05.alloc.cta_group::1.cta_group::2.sync.aligned.shared::cta.b32",
        "cp.async.ca.cg.shared.global",
        "cp.async.bulk.tensor.1d.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes",
        "fence.acquire.release.cta",
        "fence.acq_rel.cta.u32",
        "setmaxnreg.inc.sync.aligned.b64",
        # What ptxas 13.0 refuses too.
        "set.le.f32.f16x2",
        "set.ftz.le.f32.f16x2",
        "set.le.f32.f16",
        "set.le.u16.f32",
        "set.le.f16.bf16",
        "set.le.ftz.bf16.f16",
        "set.le.bf16x2.f16x2",
        "mma.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "ldmatrix.sync.m8n8.x1.shared.b16",
        "stmatrix.m8n8.x1.shared.b16",
        "movmatrix.sync.m8n8.trans.b16",
        "setmaxnreg.dec.aligned.u32",
        "tcgen05.wait::ld.sync",
        "tcgen05.relinquish_alloc_permit.cta_group::1.aligned",
        "wgmma.fence.sync.aligned",
    ],
)
def test_contradictions_are_refused(opcode: str) -> None:
    text = f".version 8.8\n.target sm_100a\n.address_size 64\n.entry k() {{\n{opcode} 1;\n}}"
    with pytest.raises(UnsupportedError, match=opcode.split(".")[0]):
        parse(text)
