# SPDX-License-Identifier: Apache-2.0
"""CTAs that are checked in several processes give the findings of one process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gdnbench.sim.checker.paged_cells import PAGE
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.machine import grid
from gdnbench.sim.run import ENGINES, RunResult, run_ptx
from tests.subset import quick

CTAS = 9

KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 g)
{
.reg .pred %p;
.reg .b32 %t, %c, %r<4>;
.reg .b64 %g, %a;
.shared .align 16 .b8 buffer[256];
ld.param.u64 %g, [g];
mov.u32 %t, %tid.x;
mov.u32 %r0, %ctaid.x;
and.b32 %r1, %t, 31;
shl.b32 %r1, %r1, 2;
mov.u32 %c, buffer;
add.s32 %c, %c, %r1;
st.shared.b32 [%c], %t;
mad.wide.u32 %a, %r0, 64, %g;
cvt.u64.u32 %g, %r1;
add.s64 %a, %a, %g;
setp.lt.u32 %p, %t, 32;
@%p st.global.b32 [%a], %t;
LAST
ret;
}
"""


@pytest.fixture(autouse=True)
def _no_cta_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "ALONE_SECONDS", 0.0)


PAGE_BYTES = 4 * PAGE
"""The global memory of one page of the shadow: this kernel's cells are words."""


def memory_across_pages(before: int) -> npt.NDArray[np.uint32]:
    """4 KiB, of which the first `before` bytes lie on one page of the shadow and the others on the next."""
    room = np.zeros((2 * PAGE_BYTES + 4096) // 4, np.uint32)
    boundary = -room.ctypes.data % PAGE_BYTES + PAGE_BYTES
    return room[(boundary - before) // 4 :][:1024]


def run(last: str, engine: str, threads: int, before: int = 0) -> RunResult:
    memory = memory_across_pages(before)
    text = KERNEL.replace("LAST", last)
    shape = (CTAS, 1, 1), (64, 1, 1)
    return run_ptx(text, "k", *shape, [memory], engine=engine, threads=threads, check=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("before", quick([0, 256 + 16, 1024], 1))
def test_findings_are_those_of_one_process(engine: str, before: int) -> None:
    """Both warps of each CTA store to the same words, and each CTA to 64 bytes of the next one's. A pair of
    stores whose bytes lie on two pages of the shadow is one pair."""
    alone, apart = (run("", engine, threads, before).found for threads in (1, 3))
    assert alone is not None
    assert {(one.cause, one.ctas) for one in alone} == {("race", CTAS), ("CTAs race", CTAS)}
    assert apart is not None
    assert {(one.cause, one.ctas, one.count) for one in apart} == {
        (one.cause, one.ctas, one.count) for one in alone
    }
    assert all(one.second is not None and one.second.role == "compute" for one in apart)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_found_before_a_fault_is_kept(engine: str, threads: int) -> None:
    with pytest.raises(KernelFault, match="trap") as caught:
        run("setp.eq.u32 %p, %r0, 5;\n@%p trap;", engine, threads)
    assert "race" in {one.cause for one in caught.value.found}
