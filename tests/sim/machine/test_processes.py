# SPDX-License-Identifier: Apache-2.0
"""CTAs over processes give what one process gives, and what goes wrong there arrives."""

from __future__ import annotations

import os
import select
import signal
import time

import numpy as np
import pytest

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError, WorkerError
from gdnbench.sim.machine import grid, processes
from gdnbench.sim.run import RunResult, run_ptx
from tests.messages import wording

# Thread i of CTA b, i < 32: out[32 b + i] = in[32 b + i] * 3 + b, after `spin` turns of a loop.
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 spin)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %d<6>;
    ld.param.b64 %d0, [in];
    ld.param.b64 %d1, [out];
    ld.param.b32 %r0, [spin];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.b32 %r3, 0;
LOOP:
    add.s32 %r3, %r3, 1;
    setp.lt.s32 %p0, %r3, %r0;
    @%p0 bra LOOP;
    mad.lo.s32 %r4, %r2, 32, %r1;
    mul.wide.s32 %d2, %r4, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    ld.global.b32 %r5, [%d3];
    mad.lo.s32 %r6, %r5, 3, %r2;
    st.global.b32 [%d4], %r6;
    EXTRA
    ret;
}
"""
CTAS = 40


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes from the first CTA on, however short they are."""
    monkeypatch.setattr(grid, "ALONE_SECONDS", -1.0)


def launch(
    out: np.ndarray,
    extra: str = "",
    spin: int = 1,
    threads: int = 3,
    engine: str = "compiled",
    **options: object,
) -> RunResult:
    given = np.arange(32 * CTAS, dtype=np.int32)
    text = PTX.replace("EXTRA", extra)
    return run_ptx(
        text, "k", (CTAS, 1, 1), (32, 1, 1), [given, out, spin], threads=threads, engine=engine, **options
    )  # type: ignore[arg-type]


def expected() -> np.ndarray:
    index = np.arange(32 * CTAS)
    return (index * 3 + index // 32).astype(np.int32)


@pytest.mark.every(2)
@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.parametrize("threads", [1, 2, 7, 100])
def test_results_and_counts_do_not_depend_on_the_processes(engine: str, threads: int) -> None:
    out = np.full(32 * CTAS, -1, np.int32)
    result = launch(out, threads=threads, engine=engine)
    assert np.array_equal(out, expected())
    assert result.counters.warp_instructions == CTAS * 17


def test_a_cta_goes_on_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first CTA has had one round of 4,096 instructions here when processes start."""
    answers = iter([False])
    monkeypatch.setattr(grid._Threads, "_late", lambda self: next(answers, True))
    begun: list[int] = []
    real = grid.run_in_processes

    def recorded(launch: object, run_unit: object, first: int, *rest: object) -> object:
        begun.append(first)
        return real(launch, run_unit, first, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(grid, "run_in_processes", recorded)
    out = np.full(32 * CTAS, -1, np.int32)
    result = launch(out, spin=3000, threads=2)
    assert begun == [0]
    assert np.array_equal(out, expected())
    assert result.counters.warp_instructions == CTAS * (17 + 3 * 2999)


def test_bytes_that_no_cta_writes_stay() -> None:
    """A view with gaps: what lies between its rows is in the same memory and keeps its value."""
    room = np.full((32 * CTAS, 2), 7, np.int32)
    given = np.ascontiguousarray(room[:, 0])
    out = np.zeros(32 * CTAS, np.int32)
    text = PTX.replace("mul.wide.s32 %d2, %r4, 4;", "mul.wide.s32 %d2, %r4, 4;\n    shl.b64 %d5, %d2, 1;")
    text = text.replace("add.s64 %d4, %d1, %d2;", "add.s64 %d4, %d1, %d5;").replace("EXTRA", "")
    run_ptx(text, "k", (CTAS, 1, 1), (32, 1, 1), [given, room[:, 0], 1], threads=2)
    assert (room[:, 1] == 7).all()
    assert np.array_equal(room[:, 0], 7 * 3 + np.arange(32 * CTAS) // 32)
    assert not out.any()


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    launch(np.zeros(32 * CTAS, np.int32), progress=lambda *at: seen.append(at))
    assert seen[-1] == (CTAS, CTAS)
    assert seen == sorted(seen)


def test_the_lowest_fault_arrives_whole() -> None:
    extra = "setp.ge.s32 %p1, %r2, 5; @!%p1 bra OK; st.global.b32 [%d4+1048576], %r6; OK:"
    for _ in range(3):
        with pytest.raises(KernelFault, match="CTA \\(5, 0, 0\\)") as caught:
            launch(np.zeros(32 * CTAS, np.int32), extra, spin=100)
        fault = caught.value
        assert fault.kind is FaultKind.OUT_OF_BOUNDS
        assert fault.place is not None
        assert "st.global.b32 [%d4+1048576]" in fault.place.text


def test_a_refusal_arrives_whole() -> None:
    with pytest.raises(UnsupportedError, match=r"tcgen05\.shift"):
        launch(np.zeros(32 * CTAS, np.int32), "tcgen05.shift.cta_group::1.down [%r1];")


def test_a_process_that_dies_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    real = processes._run_share

    def dies(*args: object) -> object:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(processes, "_run_share", dies)
    with pytest.raises(WorkerError, match=wording("sim.machine.worker-died")):
        launch(np.zeros(32 * CTAS, np.int32))


def test_an_interrupt_ends_every_process() -> None:
    """Ctrl-C reaches the parent, whose progress callback raises here; no process is left behind."""
    began = time.monotonic()

    def interrupt(done: int, of: int) -> None:
        if time.monotonic() - began > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(np.zeros(32 * CTAS, np.int32), "bra LOOP;", progress=interrupt)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_no_process_outlives_one_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers hold the write end of a pipe until they end."""
    read, write = os.pipe()
    real = processes._run_share

    def tells(*args: object) -> object:
        os.write(write, b".")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(processes, "_run_share", tells)
    child = os.fork()
    if child == 0:
        try:
            launch(np.zeros(32 * CTAS, np.int32), "bra LOOP;", threads=2)
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"."
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left = b"."
    while left and select.select([read], [], [], 20)[0]:
        left = os.read(read, 1)
    os.close(read)
    assert left == b""


def test_memory_that_is_too_large_to_copy_goes_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_BYTES", 1000)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    out = np.zeros(32 * CTAS, np.int32)
    launch(out)
    assert np.array_equal(out, expected())
