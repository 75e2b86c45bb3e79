# SPDX-License-Identifier: Apache-2.0
"""tcgen05.dealloc that nothing orders after another warp's last use of the columns."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench import sim
from gdnbench.sim.errors import FaultKind, KernelFault
from tests.messages import wording
from tests.sim.fault_cases import FREE, GLOBAL_BYTES, ptx

BODY = """
setp.ge.u32 %p1, %r0, 32;
mov.u32 %r1, columns;
@%p1 bra allocated;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;
allocated:
bar.sync 0;
ld.shared.b32 %r2, [columns];
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0};
tcgen05.wait::st.sync.aligned;
bar.sync 1;
@@
"""
READ = """
mul.wide.u32 %d1, %r0, 4;
add.u64 %d1, %d0, %d1;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2];
tcgen05.wait::ld.sync.aligned;
st.global.b32 [%d1], %r4;
"""
# The first warp frees the columns after its own use of them; whether the second has used them too is open.
UNORDERED = f"{READ}\n@%p1 bra kept;\n{FREE}\nkept:"
ORDERED = f"{READ}\nbar.sync 2;\n@%p1 bra kept;\n{FREE}\nkept:"


def run(text: str, engine: str, schedule: str) -> tuple[np.ndarray, list[str]]:
    data = np.zeros(GLOBAL_BYTES // 4, np.uint32)
    result = sim.run_ptx(
        ptx(BODY, line=text), "k", (1, 1, 1), (64, 1, 1), [data], engine=engine, schedule=schedule
    )
    return data[:64], [note.message for note in result.notes]


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_the_late_schedule_shows_it_as_a_note(engine: str) -> None:
    values, notes = run(UNORDERED, engine, "late")
    np.testing.assert_array_equal(values, np.arange(64))
    (note,) = notes
    assert "warp 0 could free the columns" in note
    assert "tcgen05.ld" in note


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_the_early_schedule_shows_it_as_a_fault(engine: str) -> None:
    with pytest.raises(KernelFault, match=wording("sim.machine.tmem-unallocated")) as caught:
        run(UNORDERED, engine, "early")
    assert caught.value.kind is FaultKind.TMEM_ACCESS
    assert caught.value.place is not None
    assert "tcgen05.ld" in caught.value.place.text


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.parametrize("schedule", ["late", "early", "random:1", "random:2"])
def test_a_barrier_orders_it(engine: str, schedule: str) -> None:
    values, notes = run(ORDERED, engine, schedule)
    np.testing.assert_array_equal(values, np.arange(64))
    assert notes == []
