# SPDX-License-Identifier: Apache-2.0
"""The size of the shadow of global memory: at most 8 bytes for each byte that a launch touches."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from gdnbench.sim.machine import grid
from gdnbench.sim.run import run_ptx

LIMIT = 8
CTAS, PER_CTA = 9, 64 * 1024

# Each CTA writes 64 KiB, a vector a thread, and reads them again. A store of a byte, which none does, has the
# checker tell bytes apart.
KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 data)
{
.reg .pred %more, %never;
.reg .b32 %t, %c, %i, %r<4>;
.reg .b64 %a;
ld.param.u64 %a, [data];
mov.u32 %t, %tid.x;
mov.u32 %c, %ctaid.x;
mad.wide.u32 %a, %c, 65536, %a;
mad.wide.u32 %a, %t, 16, %a;
mov.u32 %i, 8;
LOOP:
st.global.v4.b32 [%a], {%t, %t, %t, %t};
ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%a];
add.s64 %a, %a, 8192;
add.s32 %i, %i, -1;
setp.ne.s32 %more, %i, 0;
@%more bra LOOP;
setp.eq.u32 %never, %t, 512;
@%never st.global.b8 [%a], %t;
LAST
ret;
}
"""


@pytest.mark.parametrize("last", ["", "@%never red.global.add.u32 [%a], %t;"], ids=["alone", "that talk"])
def test_global_memory(last: str) -> None:
    text = KERNEL.replace("LAST", last)

    def run(ctas: int) -> int:
        """The most that was allocated at once."""
        data = np.zeros(ctas * PER_CTA, np.uint8)
        tracemalloc.start()
        try:
            found = run_ptx(text, "k", (ctas, 1, 1), (512, 1, 1), [data], threads=1, check=True).found
            assert found == ()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    run(1)
    assert run(CTAS) - run(1) <= LIMIT * (CTAS - 1) * PER_CTA


def test_ctas_that_touch_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launch over processes: cells are kept once, whoever touched them."""
    from gdnbench.sim.checker import grid as checked

    made: list[checked.LaunchChecker] = []

    class Kept(checked.LaunchChecker):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr("gdnbench.sim.run.LaunchChecker", Kept)
    monkeypatch.setattr(grid, "ALONE_SECONDS", 0.0)
    text = KERNEL.replace("mad.wide.u32 %a, %c, 65536, %a;\n", "").replace("LAST", "")
    text = text.replace("st.global.v4.b32 [%a], {%t, %t, %t, %t};\n", "")
    data = np.zeros(PER_CTA, np.uint8)
    assert run_ptx(text, "k", (8, 1, 1), (512, 1, 1), [data], threads=3, check=True).found == ()
    cross_cta = made[0].cross_cta
    assert cross_cta is not None
    page = 4096
    assert cross_cta.memory.cells.nbytes <= LIMIT * (PER_CTA + 2 * page)
