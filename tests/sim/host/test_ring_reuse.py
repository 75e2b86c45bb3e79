# SPDX-License-Identifier: Apache-2.0
"""The note of a checked launch in which no CTA of a persistent kernel took a second tile, or none came to use
a pipeline stage again."""

from __future__ import annotations

import functools
import re
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.utils import HardwareInfo

from gdnbench import sim
from gdnbench.sim.host.ptx_kernel import PtxKernel
from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.ring_reuse import reuse_note, tile_steps
from tests.messages import wording
from tests.sim.host import host_kernels

# What a kernel does with its tile after it has computed the grid's size in %r2 and its own number in %r1.
LOOPS = {
    "by the grid": "L: add.s32 %r1, %r1, %r2; setp.lt.s32 %p1, %r1, 100; @%p1 bra L;",
    "by the grid, with copies": (
        "mov.u32 %r3, %r1; L: mul.lo.s32 %r4, %r2, 2; add.s32 %r5, %r3, %r4; mov.u32 %r3, %r5;"
        "setp.lt.s32 %p1, %r3, 100; @%p1 bra L;"
    ),
    "by the grid, with mad": "L: mad.lo.s32 %r1, %r2, 2, %r1; setp.lt.s32 %p1, %r1, 100; @%p1 bra L;",
    "by a constant, the number of CTAs": "L: add.s32 %r1, %r1, 8; setp.lt.s32 %p1, %r1, 100; @%p1 bra L;",
    "by a parameter, the number of CTAs": (
        "ld.param.u32 %r3, [n]; L: add.s32 %r1, %r1, %r3; setp.lt.s32 %p1, %r1, 100; @%p1 bra L;"
    ),
}
LOOPS["by a multiple of the grid"] = (
    "mov.u32 %r4, 0; L: mad.lo.s32 %r5, %r4, %r2, %r1; add.s32 %r4, %r4, 1;"
    "setp.lt.s32 %p1, %r4, 9; @%p1 bra L;"
)
NO_LOOPS = {
    "by one, as often as there are CTAs": "L: add.s32 %r1, %r1, 1; setp.lt.s32 %p1, %r1, %r2; @%p1 bra L;",
    "from the grid's size": "L: add.s32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, 100; @%p1 bra L;",
    "a linear index": (
        "mad.lo.s32 %r3, %r1, %r2, %r1; L: add.s32 %r4, %r4, 1; setp.lt.s32 %p1, %r4, %r3; @%p1 bra L;"
    ),
    "once": "add.s32 %r1, %r1, %r2;",
    "by another constant": "L: add.s32 %r1, %r1, 7; setp.lt.s32 %p1, %r1, 100; @%p1 bra L;",
    "by that constant, of another number": "L: add.s32 %r4, %r4, 8; setp.lt.s32 %p1, %r4, 99; @%p1 bra L;",
    "a sum of tile numbers": (
        "L: add.s32 %r4, %r4, %r1; add.s32 %r1, %r1, 1; setp.lt.s32 %p1, %r1, %r2; @%p1 bra L;"
    ),
}


@pytest.mark.parametrize("loop", [*LOOPS, *NO_LOOPS])
def test_a_loop_that_advances_by_the_grid(loop: str) -> None:
    """In a launch of 8 CTAs whose parameter is 8."""
    text = (LOOPS | NO_LOOPS)[loop]
    module = parse(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u32 n)\n{\n"
        ".reg .b32 %r<9>; .reg .pred %p<3>; .reg .b64 %rd<3>;\n"
        f"mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r4, 0;\n{text}\nret;\n}}\n"
    )
    steps = tile_steps(module.kernels["k"], (8, 1, 1), [(8).to_bytes(4, "little")])
    assert [len(pcs) for pcs in steps] == ([1] if loop in LOOPS else [])


# Adds 1 to x[tile], and once more for each of 4 inner iterations. An mbarrier completes a phase in each.
WORK = """
    mul.wide.s32 %rd2, {tile}, 4; add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r7, 0;
INNER{name}:
    ld.global.u32 %r6, [%rd3]; add.s32 %r6, %r6, 1; st.global.u32 [%rd3], %r6;
    mbarrier.arrive.shared.b64 _, [barrier];
WAIT{name}:
    mbarrier.try_wait.parity.shared.b64 %p2, [barrier], %r9; @!%p2 bra WAIT{name};
    xor.b32 %r9, %r9, 1;
    add.s32 %r7, %r7, 1; setp.lt.s32 %p2, %r7, 4; @%p2 bra INNER{name};
"""
ONE, FIRST, SECOND = (
    WORK.format(tile=tile, name=name) for tile, name in (("%r1", "0"), ("%r1", "1"), ("%r5", "2"))
)
FORMS = {
    "the test before the tile": (
        f"L: setp.ge.s32 %p1, %r1, %r3; @%p1 bra E; {ONE} add.s32 %r1, %r1, %r2; bra L;"
    ),
    "the test after the tile": (
        "setp.ge.s32 %p1, %r1, %r3; @%p1 bra E;"
        f"L: {ONE} add.s32 %r1, %r1, %r2; setp.lt.s32 %p1, %r1, %r3; @%p1 bra L;"
    ),
    "the test between the tile and a copy": (
        f"setp.ge.s32 %p1, %r1, %r3; @%p1 bra E; L: {ONE} add.s32 %r4, %r1, %r2;"
        "setp.ge.s32 %p1, %r4, %r3; @%p1 bra E; mov.u32 %r1, %r4; bra L;"
    ),
    "a number of turns": (
        "sub.s32 %r8, %r3, %r1; add.s32 %r8, %r8, %r2; sub.s32 %r8, %r8, 1; div.s32 %r8, %r8, %r2;"
        "mov.u32 %r4, 0; mov.u32 %r5, %r1; setp.ge.s32 %p1, %r4, %r8; @%p1 bra E;"
        f"L: mad.lo.s32 %r1, %r4, %r2, %r5; {ONE} add.s32 %r4, %r4, 1; setp.lt.s32 %p1, %r4, %r8; @%p1 bra L;"
    ),
    "two tiles an iteration": (
        f"shl.b32 %r8, %r2, 1; L: setp.ge.s32 %p1, %r1, %r3; @%p1 bra E; {FIRST} add.s32 %r5, %r1, %r2;"
        f"setp.ge.s32 %p1, %r5, %r3; @%p1 bra E; {SECOND} add.s32 %r1, %r1, %r8; bra L;"
    ),
    "each CTA one tile": f"setp.ge.s32 %p1, %r1, %r3; @%p1 bra E; {ONE}",
    "each CTA a row of tiles": (
        f"mul.lo.s32 %r1, %r1, 2; add.s32 %r4, %r1, 2; L: {ONE} add.s32 %r1, %r1, 1;"
        "setp.ge.s32 %p1, %r1, %r3; @%p1 bra E; setp.lt.s32 %p1, %r1, %r4; @%p1 bra L;"
    ),
}


@functools.cache
def persistent(form: str) -> Module:
    return parse(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u32 n)\n"
        "{\n.reg .b32 %r<10>; .reg .pred %p<3>; .reg .b64 %rd<4>; .shared .align 8 .b64 barrier;\n"
        "ld.param.u64 %rd1, [x]; ld.param.u32 %r3, [n]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x;\n"
        f"mbarrier.init.shared.b64 [barrier], 1; mov.u32 %r9, 0;\n{FORMS[form]}\nE: ret;\n}}\n"
    )


def notes_of(form: str, tiles: int, sms: int, engine: str = "compiled", *, asks: bool = True) -> list[str]:
    """The notes on `tiles` tiles for at most `sms` CTAs, where the program asked for `sms`."""
    x = torch.zeros(tiles + 1, dtype=torch.int32)
    kernel = PtxKernel(persistent(form), "k", (min(sms, tiles), 1, 1), (1, 1, 1))
    with sim.settings_apply(
        sim.Settings(engine=engine), check=True, sms=sms, questions=sim.Questions(multiprocessors=asks)
    ):
        report = sim.launch(kernel, x, tiles)
    assert report.ok
    return [finding.message for finding in report.findings if finding.kind == "ring reuse"]


PERSISTENT = [form for form in FORMS if not form.startswith("each CTA")]


@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
@pytest.mark.parametrize("form", PERSISTENT)
def test_no_cta_took_a_second_tile(form: str, engine: str) -> None:
    """Whatever the loop looks like, and although the mbarrier completes four phases in each tile. The number
    that the note names gives CTAs a second tile."""
    (note,) = notes_of(form, 6, 8, engine)
    assert re.fullmatch(wording("sim.no-second-tile", busy=6, ctas=6, sms=3), note)
    assert notes_of(form, 6, 3, engine) == []


@pytest.mark.parametrize("form", PERSISTENT)
@pytest.mark.parametrize(("tiles", "sms"), [(2, 1), (7, 6), (3, 1)])
def test_one_cta_took_a_second_tile(form: str, tiles: int, sms: int) -> None:
    assert notes_of(form, tiles, sms) == []


def test_no_number_of_sms_gives_a_single_tile_a_second_one() -> None:
    (note,) = notes_of("the test after the tile", 1, 8)
    assert re.fullmatch(wording("sim.one-tile"), note)


def test_of_other_kernels_nothing_is_said() -> None:
    assert notes_of("each CTA one tile", 6, 8) == []
    assert notes_of("each CTA a row of tiles", 6, 3) == []
    assert notes_of("the test after the tile", 6, 8, asks=False) == []


@functools.cache
def tiles(stages: int) -> Any:
    example = make_fake_tensor(cutlass.Float32, (cute.sym_int(), 32), (32, 1), assumed_align=16)
    return sim.compile(host_kernels.tiles, example, stages, cutlass.Int32(1), make_fake_stream())


def notes(
    stages: int, count: int, sms: int | None = None, *, check: bool = True, asks: bool = True
) -> list[str]:
    """The notes on `count` tiles with a ring of `stages`."""
    x = torch.zeros(count, 32)
    with sim.active(check=check, sms=sms) as session:
        most = HardwareInfo().get_max_active_clusters(1) if asks else 148
        tiles(stages)(x, most, 0)
    assert (x == 1).all()
    assert session.reports[0].ok
    return [finding.message for finding in session.reports[0].findings if finding.kind == "ring reuse"]


# One use of each stage a tile: tile `stages + 1` of a CTA is the first to use a stage again.
@pytest.mark.parametrize(("stages", "count"), [(1, 2), (1, 5), (2, 9), (3, 12), (3, 4)])
def test_the_number_that_it_names_exercises_the_ring(stages: int, count: int) -> None:
    (note,) = notes(stages, count)
    few = int(note.rpartition(" ")[2])
    assert -(-count // few) > stages
    assert notes(stages, count, few) == []


def test_some_stages_were_used_and_none_twice() -> None:
    """Two of three stages, by each of 3 CTAs."""
    (note,) = notes(3, 6, 3)
    assert re.fullmatch(wording("sim.ring-reuse", ctas=3, sms=1), note)


def test_it_is_not_said_without_cause() -> None:
    assert notes(1, 6, check=False) == []
    assert notes(1, 6, asks=False) == []  # not a number of CTAs that follows from the device's
    assert notes(1, 7, 6) == []  # one CTA takes two


def test_the_number_can_run_a_cluster() -> None:
    """Eight CTAs, one to an SM, of a ring that is used again from the second tile on."""
    (kernel,) = parse(".version 8.8\n.target sm_100a\n.entry k() { ret; }").kernels.values()

    def note(busy: int, cluster: int) -> str | None:
        return reuse_note(kernel, ((0,),), Counters(most_tiles=1, busy_ctas=busy), 8, 8, 1, cluster)

    for busy, cluster, sms in ((8, 1, 4), (8, 2, 4), (4, 4, 4)):
        told = wording("sim.no-second-tile", busy=busy, ctas=8, sms=sms)
        assert re.fullmatch(told, note(busy, cluster) or "")
    assert note(8, 8) is None
