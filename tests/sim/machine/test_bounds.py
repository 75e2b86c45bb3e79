# SPDX-License-Identifier: Apache-2.0
"""A launch is stopped at its bounds: warp instructions, seconds and CTAs."""

from __future__ import annotations

import os
import re
import time

import numpy as np
import pytest

from gdnbench.errors import Exit, exit_code_of
from gdnbench.sim.errors import FaultKind, KernelFault, LaunchError
from gdnbench.sim.machine.bounds import (
    CTA_INSTRUCTIONS,
    FEW_CTAS,
    MAX_INSTRUCTIONS,
    TIMEOUT,
    Meter,
    check_grid,
)
from gdnbench.sim.machine.grid import MAX_LOCAL_BYTES
from gdnbench.sim.run import RunResult, run_ptx
from gdnbench.sim.simulate import Settings, active
from tests.messages import wording

ENGINES = ("interpreter", "compiled")
HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"

# The loop ends after `turns` turns, of three instructions each; never if that is 0.
LOOP = f"""{HEADER}
.visible .entry k(.param .u32 turns, .param .u64 out) {{
.reg .pred %p;
.reg .b32 %r<4>;
.reg .b64 %d<4>;
ld.param.u32 %r1, [turns];
ld.param.u64 %d1, [out];
AGAIN:
sub.u32 %r1, %r1, 1;
setp.ne.u32 %p, %r1, 0;
@%p bra AGAIN;
TALK
ret;
}}
"""
APART = LOOP.replace("TALK", "")
TOGETHER = LOOP.replace("TALK", "red.global.add.u32 [%d1], 1;")
TURNS = 1000
PER_WARP = 2 + 3 * TURNS + 1  # of APART
FOREVER = 0


def run(text: str, turns: int, *, grid: int = 1, block: int = 64, **settings: object) -> RunResult:
    out = np.zeros(1, np.uint32)
    return run_ptx(text, "k", (grid, 1, 1), (block, 1, 1), [turns, out], **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_launch_of_as_many_instructions_as_allowed_runs(engine: str) -> None:
    ran = run(APART, TURNS, grid=3, engine=engine, max_instructions=6 * PER_WARP)
    assert ran.counters.warp_instructions == 6 * PER_WARP


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", [APART, TOGETHER], ids=["apart", "together"])
def test_a_launch_of_one_instruction_more_is_stopped(text: str, threads: int, engine: str) -> None:
    own = PER_WARP + (text is TOGETHER)
    with pytest.raises(KernelFault) as caught:
        run(text, TURNS, grid=3, threads=threads, engine=engine, max_instructions=6 * own - 1)
    assert caught.value.kind is FaultKind.LIMIT
    assert re.search(wording("sim.machine.instructions-over", most=f"{6 * own - 1:,}"), str(caught.value))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", [APART, TOGETHER], ids=["apart", "together"])
def test_a_loop_without_end_is_named_with_its_line(text: str, engine: str) -> None:
    with pytest.raises(KernelFault) as caught:
        run(text, FOREVER, grid=2, engine=engine, max_instructions=20_000)
    fault = caught.value
    assert exit_code_of(fault) == Exit.MISMATCH
    assert fault.thread is not None
    assert re.fullmatch(r"CTA \([01], 0, 0\), warp [01]", fault.thread)
    assert fault.place is not None
    first = text.splitlines().index("AGAIN:") + 2  # lines count from 1
    assert first <= fault.place.line < first + 3
    assert "\n" not in str(fault)


@pytest.mark.every(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", [APART, TOGETHER], ids=["apart", "together"])
def test_a_launch_that_takes_too_long_is_stopped(text: str, threads: int, engine: str) -> None:
    start = time.monotonic()
    with pytest.raises(KernelFault, match=wording("sim.machine.seconds-over", most="0.2")):
        run(text, FOREVER, grid=4, threads=threads, engine=engine, timeout=0.2)
    assert time.monotonic() - start < 20


@pytest.mark.slow
def test_ctas_in_processes_count_together() -> None:
    """Each CTA alone is far below the bound; the first ones take long enough that processes begin."""
    settings = {"grid": 40, "block": 32, "engine": "interpreter", "threads": 2}
    ctas = 40 * (PER_WARP * 20 - 20 * 3 + 3)
    with pytest.raises(KernelFault, match=wording("sim.machine.instructions-over")):
        run(APART, TURNS * 20, **settings, max_instructions=ctas // 2)  # type: ignore[arg-type]


def test_the_slots_of_processes_are_summed() -> None:
    meter = Meter(10)
    meter.spend(4)
    meter.share(2)
    meter.use_slot(1, os.getppid())
    meter.spend(3)
    meter.use_slot(2, os.getppid())
    meter.spend(3)
    with pytest.raises(KernelFault):
        meter.spend(1)


def test_a_grid_of_too_many_ctas_is_refused_at_once() -> None:
    """Today's GPUs take such a grid; here it would run for days."""
    text = f"{HEADER}.visible .entry k() {{\nret;\n}}\n"
    start = time.monotonic()
    most = MAX_INSTRUCTIONS // CTA_INSTRUCTIONS
    for grid in ((2**31 - 1, 1, 1), (2**31 - 1, 65535, 65535), (1, 65535, 65535)):
        ctas = grid[0] * grid[1] * grid[2]
        with pytest.raises(KernelFault) as caught:
            run_ptx(text, "k", grid, (32, 1, 1), [], engine="interpreter")
        assert caught.value.kind is FaultKind.LIMIT
        message = wording("sim.machine.ctas-over", ctas=f"{ctas:,}", most=f"{most:,}")
        assert re.search(message, str(caught.value))
    assert time.monotonic() - start < 20


def test_how_many_ctas_are_allowed() -> None:
    check_grid((MAX_INSTRUCTIONS // CTA_INSTRUCTIONS, 1, 1), MAX_INSTRUCTIONS)
    check_grid((FEW_CTAS, 1, 1), 1)
    check_grid((2**31 - 1, 1, 1), CTA_INSTRUCTIONS << 31)
    with pytest.raises(KernelFault):
        check_grid((FEW_CTAS + 1, 1, 1), 1)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"max_instructions": 0}, "sim.max-instructions-wrong"),
        ({"max_instructions": 1.5}, "sim.max-instructions-wrong"),
        ({"timeout": 0}, "sim.timeout-wrong"),
        ({"timeout": float("nan")}, "sim.timeout-wrong"),
        ({"timeout": "60"}, "sim.timeout-wrong"),
    ],
)
def test_bounds_that_are_none(settings: dict[str, object], code: str) -> None:
    wanted = {
        "sim.max-instructions-wrong": wording("sim.max-instructions-wrong"),
        "sim.timeout-wrong": wording("sim.timeout-wrong"),
    }
    with pytest.raises(LaunchError, match=wanted[code]):
        run(APART, 1, engine="interpreter", **settings)


def test_an_infinite_timeout_is_allowed() -> None:
    run(APART, 1, engine="interpreter", timeout=float("inf"))
    assert TIMEOUT > 3600


def test_bounds_of_a_block_are_those_of_a_launch_in_it_that_gives_none() -> None:
    """As `gdnbench sim --max-instructions N --timeout S` runs a function that calls `run_ptx`."""
    with active(Settings(max_instructions=10_000, timeout=50.0)):
        assert (Settings().max_instructions, Settings().timeout) == (10_000, 50.0)
        with pytest.raises(KernelFault, match=wording("sim.machine.instructions-over", most="10,000")):
            run(APART, FOREVER, engine="interpreter")
        run(APART, TURNS, engine="interpreter", max_instructions=100_000)
        with active(Settings(engine="interpreter", timeout=0.1)):
            assert Settings().max_instructions == 10_000
            with pytest.raises(KernelFault, match=wording("sim.machine.seconds-over", most="0.1")):
                run(APART, FOREVER, engine="interpreter", max_instructions=MAX_INSTRUCTIONS)
    assert (Settings().max_instructions, Settings().timeout) == (MAX_INSTRUCTIONS, TIMEOUT)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("text", "ctas"), [(TOGETHER, 148), (APART, 4)], ids=["together", "apart"])
def test_local_memory_of_all_threads_at_once_is_bounded(text: str, ctas: int, engine: str) -> None:
    """A thread may have 512 KB; for 1,024 threads of a few CTAs the simulator has to have the bytes."""
    text = text.replace(".reg .pred %p;", ".local .align 8 .b8 l[524288];\n.reg .pred %p;")
    start = time.monotonic()
    with pytest.raises(KernelFault) as caught:
        run(text, 1, grid=ctas, block=1024, threads=4, engine=engine)
    assert time.monotonic() - start < 20
    assert caught.value.kind is FaultKind.LIMIT
    total, most = f"{ctas << 29:,}", f"{MAX_LOCAL_BYTES:,}"
    message = wording("sim.machine.local-over", ctas=ctas, size="524,288", total=total, most=most)
    assert re.search(message, str(caught.value))


def test_a_kernel_that_spills_registers_runs() -> None:
    """1 KB for each thread, more than any kernel that is served."""
    text = TOGETHER.replace(".reg .pred %p;", ".local .align 8 .b8 l[1024];\n.reg .pred %p;")
    ran = run(text, 1, grid=4, block=1024, engine="compiled")
    assert ran.ctas == 4
