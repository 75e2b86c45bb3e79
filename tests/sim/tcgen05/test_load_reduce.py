# SPDX-License-Identifier: Apache-2.0
"""tcgen05.ld.red (PTX ISA 9.7.16.8.3): the registers of tcgen05.ld, and the extreme of each thread's."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gdnbench.sim import run_ptx
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.value_trace import instruction_class
from tests.messages import wording
from tests.sim.tcgen05.tensor_machine import Machine, instruction

SPECIAL = np.array(
    [0, 1 << 31, 1, 0x8000_0001, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0001, 0xFF80_0001], np.uint32
)


def reduced(words: np.ndarray, kind: str, largest: bool, absolute: bool, nan: bool) -> int:
    """The extreme of one thread's registers, by the rules of redux.sync."""
    choose = max if largest else min
    if kind != "f32":
        return int(choose(words.view(np.int32 if kind == "s32" else np.uint32).tolist())) & 0xFFFF_FFFF
    floats = (words & np.uint32(0x7FFF_FFFF) if absolute else words).view(np.float32)
    numbers = [number for number in floats if not np.isnan(number)]
    if not numbers or (nan and len(numbers) < len(floats)):
        return 0x7FFF_FFFF
    best = choose(numbers, key=lambda number: (float(number), not np.signbit(number)))
    return int(best.view(np.uint32))


FORMS = [
    (shape, repeat, mods, kind)
    for shape, repeat in (("32x32b", 2), ("32x32b", 32), ("32x32b", 128), ("16x32bx2", 8))
    for kind, mods in (
        ("u32", "min"), ("u32", "max"), ("s32", "min"), ("s32", "max"), ("f32", "max"), ("f32", "min"),
        ("f32", "max.abs"), ("f32", "min.abs"), ("f32", "max.NaN"), ("f32", "min.abs.NaN"),
    )
]  # fmt: skip


@pytest.mark.parametrize(("shape", "repeat", "mods", "kind"), FORMS)
def test_values(shape: str, repeat: int, mods: str, kind: str) -> None:
    rng = np.random.default_rng(repeat)
    machine = Machine()
    machine.alloc(512)
    cells = rng.integers(0, 1 << 32, machine.cta.tmem.cells.shape, np.uint32)
    special = rng.random(cells.shape) < 0.5
    cells[special] = rng.choice(SPECIAL, int(special.sum()))
    cells[32:64][rng.random(32) < 0.5] = SPECIAL[6]  # whole rows of NaN
    machine.cta.tmem.cells[:], machine.cta.tmem.valid[:] = cells, True
    tail = ", 64" if shape == "16x32bx2" else ""
    for warp in (0, 1):
        address = (32 * warp) << 16 | 8
        loaded = machine.load(shape, repeat, address, warp=warp, tail=tail)
        registers = ",".join(f"%o{i}" for i in range(repeat))
        text = f"tcgen05.ld.red.sync.aligned.{shape}.x{repeat}.{mods}.{kind} {{{registers}}}, %v, [%r]{tail};"
        *words, red = np.array(machine.issue(text, warp=warp, r=address)).astype(np.uint32)
        np.testing.assert_array_equal(np.array(words).T, loaded)
        flags = "max" in mods, "abs" in mods, "NaN" in mods
        assert red.tolist() == [reduced(row, kind, *flags) for row in loaded]


def test_suffixes_in_the_other_order() -> None:
    """The ISA's example has the type before the operation."""
    text = "tcgen05.ld.red.sync.aligned.16x32bx2.x2.u32.max {%a, %b}, %v, [%r], 16;"
    assert instruction(text) is not None
    assert instruction_class(instruction(text)) == "load"


KERNEL = """.version 8.8
.target sm_103a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .b32 %t, %r<8>, %v;
.reg .b64 %d<4>;
.shared .align 4 .b8 columns[4];
ld.param.u64 %d0, [out];
mov.u32 %t, %tid.x;
mov.u32 %r0, columns;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
ld.shared.b32 %r1, [columns];
mad.lo.s32 %r2, %t, -7, 100;
mul.lo.s32 %r3, %t, %t;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r1], {%r2, %r3};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.red.sync.aligned.32x32b.x2.max.s32 {%r4, %r5}, %v, [%r1];
tcgen05.wait::ld.sync.aligned; // wait
mul.wide.u32 %d1, %t, 12;
add.u64 %d1, %d0, %d1;
st.global.b32 [%d1], %r4;
st.global.b32 [%d1+4], %r5;
st.global.b32 [%d1+8], %v;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;
ret;
}
"""


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_in_a_kernel(engine: str) -> None:
    lanes = np.arange(32)
    want = np.stack((100 - 7 * lanes, lanes**2, np.maximum(100 - 7 * lanes, lanes**2)), axis=1)
    for threads in (32, 20):
        out = np.full((32, 3), -1, np.int32)
        checker = LaunchChecker(parse(KERNEL).kernels["k"])
        run_ptx(KERNEL, "k", (1, 1, 1), (threads, 1, 1), [out], engine=engine, checker=checker.begin)
        assert not checker.found()
        np.testing.assert_array_equal(out[:threads], want[:threads])
        assert (out[threads:] == -1).all()


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_a_use_of_the_reduction_before_the_wait_is_found(engine: str) -> None:
    text = KERNEL.replace("tcgen05.wait::ld.sync.aligned; // wait\n", "").replace(
        "st.global.b32 [%d1], %r4;\nst.global.b32 [%d1+4], %r5;\n", ""
    )
    checker = LaunchChecker(parse(text).kernels["k"])
    run_ptx(text, "k", (1, 1, 1), (32, 1, 1), [np.zeros(96, np.int32)], engine=engine, checker=checker.begin)
    found = checker.found()
    assert found
    assert all(one.missing.startswith("tcgen05.wait::ld") for one in found)


def test_what_no_gpu_has() -> None:
    with pytest.raises(UnsupportedError, match=wording("sim.ptx.target-refused", target="sm_100a")):
        parse(KERNEL.replace("sm_103a", "sm_100a"))
    for wrong in (".x1.max", ".x2.max.abs"):
        with pytest.raises(UnsupportedError, match=re.escape("tcgen05.ld.red")):
            parse(KERNEL.replace(".x2.max", wrong))
