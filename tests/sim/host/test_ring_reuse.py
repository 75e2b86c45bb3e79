"""The note of a checked launch in which no CTA of a persistent kernel came to use a pipeline stage again."""

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
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.ring_reuse import advances_by_grid
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
}
NO_LOOPS = {
    "by one, as often as there are CTAs": "L: add.s32 %r1, %r1, 1; setp.lt.s32 %p1, %r1, %r2; @%p1 bra L;",
    "from the grid's size": "L: add.s32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, 100; @%p1 bra L;",
    "a linear index": (
        "mad.lo.s32 %r3, %r1, %r2, %r1; L: add.s32 %r4, %r4, 1; setp.lt.s32 %p1, %r4, %r3; @%p1 bra L;"
    ),
    "once": "add.s32 %r1, %r1, %r2;",
}


@pytest.mark.parametrize("loop", [*LOOPS, *NO_LOOPS])
def test_a_loop_that_advances_by_the_grid(loop: str) -> None:
    text = (LOOPS | NO_LOOPS)[loop]
    module = parse(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\n"
        ".reg .b32 %r<9>; .reg .pred %p<3>; .reg .b64 %rd<3>;\n"
        f"mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mov.u32 %r4, 0;\n{text}\nret;\n}}\n"
    )
    assert advances_by_grid(module.kernels["k"]) == (loop in LOOPS)


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


def test_each_cta_takes_one_tile() -> None:
    (note,) = notes(1, 6)
    assert re.fullmatch(wording("sim.ring-reuse", ctas=6, sms=3), note)


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
    assert note.endswith("--sms 1")


def test_it_is_not_said_without_cause() -> None:
    assert notes(1, 6, check=False) == []
    assert notes(1, 6, asks=False) == []  # not a number of CTAs that follows from the device's
    assert notes(1, 1) == []  # no fewer than one
    assert notes(1, 7, 6) == []  # one CTA takes two
