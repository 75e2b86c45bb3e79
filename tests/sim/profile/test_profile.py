# SPDX-License-Identifier: Apache-2.0
"""Counts, waits and timelines of a launch whose instructions were counted by hand."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gdnbench.sim.machine.counters import counted_as
from gdnbench.sim.profile.classes import counter_class
from gdnbench.sim.profile.roles import OTHER as COMPUTE
from gdnbench.sim.profile.roles import role
from gdnbench.sim.profile.table import by_class, profile_table, waits_by_role
from gdnbench.sim.profile.trace import write_trace
from gdnbench.sim.ptx.forms import OTHER, Owner
from gdnbench.sim.ptx.instructions import ROWS
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.run import RunResult, run_ptx

# Warp 0 copies 512 bytes with the copy engine and signals; warp 1 waits, then adds 1 to its 32 floats.
PTX = """.version 8.8
.target sm_100a
.address_size 64
.file 1 "copy.py"
.visible .entry k(.param .u64 source, .param .u64 sink)
{
    .shared .align 128 .b8 buffer[512];
    .shared .align 8 .b8 full[8];
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    .loc 1 10 0
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r1, buffer;
    mov.u32 %r2, full;
    @%p0 bra READY;
    mbarrier.init.shared.b64 [%r2], 1;
READY:
    bar.sync 0;
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra WAIT;
    @%p0 bra END;
    ld.param.b64 %d0, [source];
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d0], 512, [%r2];
    bra END;
WAIT:
    .loc 1 20 0
    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0;
    @!%p2 bra WAIT;
    shl.b32 %r3, %r0, 2;
    sub.s32 %r3, %r3, 128;
    add.s32 %r4, %r1, %r3;
    ld.shared.f32 %r5, [%r4];
    add.f32 %r5, %r5, 0f3F800000;
    ld.param.b64 %d1, [sink];
    cvt.u64.u32 %d2, %r3;
    add.s64 %d1, %d1, %d2;
    st.global.f32 [%d1], %r5;
END:
    ret;
}
"""
CTAS = 3
# Warp instructions of one CTA, counted off the text: what both warps do, what one does.
ONE_CTA = {
    "mov.u32": 6,
    "setp.u32": 4,
    "bra": 7,
    "mbarrier.init": 1,
    "bar.sync": 2,
    "ld.b64": 2,
    "mbarrier.arrive.expect_tx": 1,
    "cp.async.bulk": 1,
    "mbarrier.try_wait": 1,
    "shl.b32": 1,
    "sub.s32": 1,
    "add.s32": 1,
    "ld.f32": 1,
    "add.f32": 1,
    "cvt.u64": 1,
    "add.s64": 1,
    "st.f32": 1,
    "ret": 3,  # lane 0 of warp 0 is still copying when the others exit
}


@pytest.fixture(params=["interpreter", "compiled"])
def run(request: pytest.FixtureRequest) -> RunResult:
    source = np.arange(128, dtype=np.float32)
    sink = np.zeros(32, dtype=np.float32)
    result = run_ptx(PTX, "k", (CTAS, 1, 1), (64, 1, 1), [source, sink], profile=True, engine=request.param)
    assert np.array_equal(sink, np.arange(32) + 1)
    return result


def test_instructions_are_counted(run: RunResult) -> None:
    assert run.counters.instructions == {name: CTAS * count for name, count in ONE_CTA.items()}
    assert run.counters.warp_instructions == CTAS * sum(ONE_CTA.values())


def test_bytes_are_counted(run: RunResult) -> None:
    traffic = run.counters.traffic
    assert traffic["global to shared"] == CTAS * 512
    assert traffic["shared to registers"] == CTAS * 128
    assert traffic["registers to global"] == CTAS * 128


def test_waits_are_summed_by_role(run: RunResult) -> None:
    assert run.record is not None
    waits = waits_by_role(run.record)
    # Under the late schedule the copy lands when warp 1 has nothing else to do: it waits once in each CTA.
    warps, count, _ = waits[COMPUTE, "mbarrier.try_wait"]
    assert (warps, count) == (1, CTAS)
    assert not any(name == "bulk copy" and op == "mbarrier.try_wait" for name, op in waits)


def test_the_table_says_it(run: RunResult) -> None:
    assert run.record is not None
    counters = run.counters
    table = profile_table(counters.instructions, counters.traffic, counters.mma_macs, run.record)
    rows = {line.rsplit("  ", 1)[0].strip() for line in table.splitlines()}
    assert any(row.startswith("bulk copy") for row in rows)
    assert f"global to shared{'':<16}{CTAS * 512:>16,}" in table
    assert by_class(counters.instructions)["integer arithmetic"] == 3 * CTAS
    assert by_class(counters.instructions)["float arithmetic"] == CTAS


def test_the_trace_is_what_perfetto_reads(run: RunResult, tmp_path: Path) -> None:
    assert run.record is not None
    write_trace(tmp_path / "trace.json", [("k", run.record)])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {"warp 0: bulk copy", f"warp 1: {COMPUTE}"}
    (wait,) = [e for e in events if e["ph"] == "X" and e["name"].startswith("wait: mbarrier.try_wait")]
    assert (wait["tid"], wait["args"]["source"]) == (1, "copy.py:20")
    # Slices of a warp neither overlap nor run backwards.
    for warp in (0, 1):
        slices = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == warp)
        assert all(
            start + length <= following for (start, length), (following, _) in itertools.pairwise(slices)
        )
    # Every operation in flight lands once, not before it was issued.
    flights = Counter((e["id"], e["ph"]) for e in events if e["ph"] in "be")
    assert flights == {(0, "b"): 1, (0, "e"): 1}
    start, end = (next(e["ts"] for e in events if e["ph"] == phase) for phase in "be")
    assert start <= end


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("add.f32", "float arithmetic"),
        ("fma.bf16x2", "float arithmetic"),
        ("add.s32", "integer arithmetic"),
        ("tcgen05.mma", "tcgen05.mma"),
        ("tcgen05.ld", "TMEM load and store"),
        ("tcgen05.commit", "tcgen05, other"),
        ("cp.async.bulk.tensor", "TMA"),
        ("cp.async.bulk.commit_group", "bulk copy"),
        ("cp.async.commit_group", "cp.async"),
        ("bar.warp.sync", "warp collective"),
        ("bar.sync", "CTA barrier"),
        ("mbarrier.arrive.expect_tx", "mbarrier"),
        ("nanosleep", OTHER),
    ],
)
def test_classes(opcode: str, name: str) -> None:
    assert counter_class(opcode) == name


def test_every_engine_opcode_has_a_class() -> None:
    engine = [op for op, rows in ROWS.items() if rows[0].traits.owner is Owner.ENGINE]
    assert [op for op in engine if counter_class(op) == OTHER] == []


def test_what_is_counted_keeps_the_type_of_arithmetic_only() -> None:
    text = PTX.replace("k(", "k2(")
    names = {counted_as(ins) for ins in parse(text).kernels["k2"].instructions}
    assert {"add.f32", "add.s32", "mbarrier.init", "bra", "cp.async.bulk"} <= names


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        ({"tcgen05.mma": 4, "tcgen05.ld": 1}, "MMA"),
        ({"cp.async.bulk.tensor load": 2}, "TMA load"),
        ({"tcgen05.ld": 3, "cp.async.bulk.tensor store": 1}, "TMEM load + TMA store"),
        ({"bar.sync": 1}, COMPUTE),
    ],
)
def test_roles(ops: dict[str, int], name: str) -> None:
    assert role(ops) == name
