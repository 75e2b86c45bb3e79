# SPDX-License-Identifier: Apache-2.0
"""`keep_going`: faults that can be skipped are reported and the launch goes on; all others end it as before.

What follows a fault is read off docs: README of `gdnbench.sim`, "Going on after a fault"."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gdnbench import sim
from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.report import AFTER_A_FAULT
from gdnbench.sim.run import RunResult
from tests.messages import wording
from tests.sim.fault_cases import ALLOCATE, FREE, GLOBAL_BYTES, PAIRS, Pair, ptx
from tests.sim.kernels import faulty
from tests.sim.kernels.compiling import compiled, fake
from tests.sim.test_faults import ENGINES, engines_of, line_of

Array = npt.NDArray[Any]
# The pairs of fault_cases.py after which a launch goes on.
SKIPPED = {
    *("global load", "global store of a vector", "one lane of a warp", "shared store", "atomic"),
    *("used before it is allocated", "used after it is freed", "beyond what is allocated", "never freed"),
    "the lanes of another warp",
    *("freed with another size", "freed twice", "allocated after the permit is given up"),
    *("shared memory", "a register", "a register computed from another", "TMEM"),
}


def skips(pair: Pair) -> bool:
    return pair.name in SKIPPED and pair.kind is not FaultKind.MISALIGNED


def run(text: str, engine: str, data: Array, threads: int = 32, **settings: Any) -> RunResult:
    block = (threads, 1, 1)
    return sim.run_ptx(
        text, "k", (1, 1, 1), block, [data], engine=engine, keep_going=True, threads=1, **settings
    )


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("pair", "engine"),
    [
        pytest.param(pair, engine, id=f"{pair.kind.name}-{pair.name}-{engine}")
        for pair in PAIRS
        for engine in engines_of(pair)
    ],
)
def test_every_fault_is_skipped_or_refused(pair: Pair, engine: str) -> None:
    """The same fault at the same line as without `keep_going`."""
    bad, good = pair.texts()
    data = np.ones(GLOBAL_BYTES // 4, np.float32)
    if not skips(pair):
        with pytest.raises(KernelFault, match=wording("sim.machine.not-skipped")) as caught:
            run(bad, engine, data, pair.threads)
        assert caught.value.kind is pair.kind
        return
    found = run(bad, engine, data, pair.threads).skipped
    fault, count = found[0]
    assert fault.kind is pair.kind
    assert count == 1
    assert pair.says in fault.message
    assert fault.thread is not None or pair.kind is FaultKind.TMEM_LEAK
    assert fault.place is not None
    assert (pair.at or pair.bad.splitlines()[0]) in bad.splitlines()[fault.place.line - 1]
    assert not run(good, engine, data, pair.threads).skipped


# One access a lane, at an address that only lanes 0 to 9 may use; %r5 is what a load gives.
ACCESSES = {
    "global load": ("ld.global.b32 %r5, [%d2];", 1),
    "generic load": ("ld.b32 %r5, [%d2];", 1),
    "global store": ("st.global.b32 [%d2], %r6; mov.b32 %r5, 7;", 7),
    "global atomic": ("atom.global.add.u32 %r5, [%d2], 4;", 1),
    "global reduction": ("red.global.add.u32 [%d2], 4; mov.b32 %r5, 7;", 7),
    "shared load": ("ld.shared.b32 %r5, [%r2];", 3),
    "shared store": ("st.shared.b32 [%r2], %r6; mov.b32 %r5, 7;", 7),
    "shared atomic": ("atom.shared.exch.b32 %r5, [%r2], %r6;", 3),
    "local load": ("ld.local.b32 %r5, [%r3];", 5),
    "local store": ("st.local.b32 [%r3], %r6; ld.local.b32 %r5, [room];", 6),
}


def lanes_outside(access: str) -> str:
    """Lanes 10 on are beyond memory; all write %r5 to word 64 + lane, and lane 0 word 63 to word 128."""
    body = f"""
.local .align 4 .b8 room[64];
mov.b32 %r6, 6; mov.b32 %r7, 3; mov.b32 %r8, 5; st.shared.b32 [buffer], %r7; st.local.b32 [room], %r8;
setp.gt.u32 %p1, %r0, 9;
mov.u32 %r2, buffer; @%p1 mov.b32 %r2, 400000;
mov.u32 %r3, room; @%p1 mov.b32 %r3, 9000;
add.u64 %d2, %d0, 252; @%p1 add.u64 %d2, %d0, 90000000;
mov.b32 %r5, 99;
{access}
mad.wide.u32 %d3, %r0, 4, %d0; st.global.b32 [%d3+256], %r5;
ld.global.b32 %r9, [%d0+252]; st.global.b32 [%d0+512], %r9;"""
    return ptx(body)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ACCESSES)
def test_only_the_lanes_outside_are_skipped(engine: str, name: str, checked: bool) -> None:
    access, inside = ACCESSES[name]
    data = np.ones(GLOBAL_BYTES // 4, np.uint32)
    result = run(lanes_outside(access), engine, data, check=checked)
    ((fault, count),) = result.skipped
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert count == 1
    assert fault.place is not None
    assert access.split(";")[0] in fault.place.text
    outside = {"local store": 5}.get(name, 7 if "mov.b32" in access else 0)  # 7: %r5 after the access
    got = data[64 : 64 + 32]
    if "atom" in access and name != "shared atomic":
        assert got[:10].tolist() == [1 + 4 * lane for lane in range(10)]
    elif name == "shared atomic":
        assert got[:10].tolist() == [3] + [6] * 9
    else:
        assert (got[:10] == inside).all()
    assert (got[10:] == outside).all()
    last = {"global store": 6, "global atomic": 41, "global reduction": 41}.get(name, 1)
    assert data[63] == data[128] == last


@pytest.mark.parametrize("engine", ENGINES)
def test_vectors_and_matrix_rows(engine: str) -> None:
    """A vector that ends beyond memory is skipped whole; a row of `ldmatrix` too."""
    data = np.arange(GLOBAL_BYTES // 4, dtype=np.uint32)
    body = """
setp.eq.u32 %p1, %r0, 3;
mad.wide.u32 %d2, %r0, 16, %d0; @%p1 add.u64 %d2, %d0, 1008; @%p1 add.u64 %d2, %d2, 16;
ld.global.v2.b32 {%r5, %r6}, [%d2];
mov.u32 %r2, buffer; mad.lo.u32 %r2, %r0, 16, %r2; mov.b32 %r7, 0x00030002;
st.shared.v4.b32 [%r2], {%r7, %r7, %r7, %r7};
bar.warp.sync -1;
@%p1 mov.b32 %r2, 400000;
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r2];
mad.wide.u32 %d3, %r0, 4, %d0;
st.global.b32 [%d3+256], %r6; st.global.b32 [%d3+512], %r8;"""
    result = run(ptx(body), engine, data)
    assert [count for _, count in result.skipped] == [1, 1]
    lanes = np.arange(32)
    whole = np.arange(GLOBAL_BYTES // 4)
    assert (data[64:96] == np.where(lanes == 3, 0, whole[4 * lanes + 1])).all()
    assert (data[128:160] == np.where(lanes // 4 == 3, 0, 0x00030002)).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_repeated_faults_are_counted(engine: str) -> None:
    body = """
mov.b32 %r1, 0; mov.b32 %r5, 5;
again: ld.global.b32 %r5, [%d0+4096]; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 50; @%p1 bra again;
st.global.b32 [%d0], %r5;"""
    data = np.ones(GLOBAL_BYTES // 4, np.uint32)
    ((fault, count),) = run(ptx(body), engine, data, threads=96).skipped
    assert count == 150
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert data[0] == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", ["late", "early"])
def test_tensor_memory_that_was_freed_keeps_its_contents(engine: str, schedule: str) -> None:
    body = f"""{ALLOCATE}
add.u32 %r9, %r0, 1000;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r9}};
tcgen05.wait::st.sync.aligned;
{FREE}
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r10}}, [%r2];
tcgen05.wait::ld.sync.aligned;
mad.wide.u32 %d1, %r0, 4, %d0; st.global.b32 [%d1], %r10;"""
    data = np.ones(GLOBAL_BYTES // 4, np.uint32)
    ((fault, _),) = run(ptx(body), engine, data, schedule=schedule).skipped
    assert fault.kind is FaultKind.TMEM_ACCESS
    assert data[:32].tolist() == list(range(1000, 1032))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_that_ends_the_launch_brings_those_before_it(engine: str) -> None:
    data = np.ones(GLOBAL_BYTES // 4, np.uint32)
    with pytest.raises(KernelFault, match=wording("sim.machine.not-skipped")) as caught:
        run(ptx("ld.global.b32 %r5, [%d0+4096];\ntrap;"), engine, data)
    assert caught.value.kind is FaultKind.TRAP
    assert len(caught.value.skipped) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_bring_their_faults(engine: str) -> None:
    """CTAs in other processes, or in threads where memory is large."""
    text = ptx("ld.global.b32 %r5, [%d0+4096];")
    data = np.ones(GLOBAL_BYTES // 4, np.uint32)
    result = sim.run_ptx(text, "k", (60, 1, 1), (32, 1, 1), [data], engine=engine, keep_going=True, threads=2)
    assert [count for _, count in result.skipped] == [60]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_goes_on_and_its_report_says_so(engine: str) -> None:
    """The kernel writes what is in bounds; a later call of the same program runs, and by default does not."""
    x = torch.arange(100, dtype=torch.float32)
    fakes = [fake(torch.float32, (None,), align=4) for _ in range(2)]
    program = compiled(faulty.OutOfBounds(True), *fakes)
    y = torch.full_like(x, torch.nan)
    report = sim.launch(program, x, y, engine=engine, keep_going=True)
    assert torch.equal(y, x)
    (launch,) = report.launches
    assert launch.finished
    assert not report.ok
    errors = [finding for finding in report.findings if finding.skipped]
    assert {finding.kind for finding in errors} == {FaultKind.OUT_OF_BOUNDS.value}
    assert all(finding.line == line_of("# here", "OutOfBounds") for finding in errors[:1])
    assert AFTER_A_FAULT in str(report)
    assert "keep_going: the lanes outside load 0 and store nothing" in str(report)
    assert report.as_json()["findings"][0]["skipped"] is True
    with sim.active(sim.Settings(engine=engine, keep_going=True)) as session:
        sim.launch(program, x, y)
        sim.launch(program, x, y)
    assert [report.ok for report in session.reports] == [False, False]
    with pytest.raises(KernelFault):
        sim.launch(program, x, y, engine=engine)
