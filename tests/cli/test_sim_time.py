# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim FILE.py:function --time`: predicted times of a kernel of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.smooth_kernel import SMOOTH, written
from tests.messages import wording
from tests.sim.predict.tools import toolkit

Invoke = Callable[..., Any]  # the fixture `gdnbench`

VECTORS = ("f32[128]", "f32[128]:nan")
CLOCK = 1.98e9
DEPENDENT_FMA = 4
"""Cycles until the next FMA that needs the result may issue, on Volta and later (arXiv 1804.06826, 4.1)."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    return f"{written(tmp_path / 'smooth.py', SMOOTH)}:smooth"


def test_a_longer_loop_takes_longer(gdnbench: Invoke, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of the loop is an FMA that needs the one before, and at most some ten instructions more."""
    toolkit(monkeypatch)
    times = []
    for rounds in (100, 1100):
        result = gdnbench("sim", file, *VECTORS, rounds, "--machine", "h200", "--time", "--json")
        assert result.code == 0, result.err
        (launch,) = json.loads(result.out)["predicted"]
        assert launch["low"] < launch["seconds"] < launch["high"]
        times.append(launch["seconds"])
    cycles = (times[1] - times[0]) / 1000 * CLOCK
    assert DEPENDENT_FMA <= cycles <= 10 * DEPENDENT_FMA


@pytest.mark.parametrize("machine", [(), ("--machine", "h100")])
def test_a_gpu_with_a_model_is_needed(gdnbench: Invoke, file: str, machine: tuple[str, ...]) -> None:
    result = gdnbench("sim", file, *VECTORS, 1, "--time", *machine)
    assert result.code == 2
    assert result.err == f"gdnbench: {wording('cli.no-time-model', machines='h200, b200, b300')}\n"


def kernel_of(folder: Path, body: str) -> str:
    """A PTX file whose kernel k has the address of its tensor in %d0 and then does `body`."""
    file = folder / "kernel.ptx"
    file.write_text(
        f""".version 8.8
        .target sm_90a
        .address_size 64
        .visible .entry k(.param .u64 out)
        {{
        .reg .b64 %d<2>;
        ld.param.u64 %d0, [out];
        {body}
        ret;
        }}"""
    )
    return f"{file}:k"


def test_what_the_model_does_not_cover_is_said(
    gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch runs, and has no predicted time."""
    toolkit(monkeypatch)
    kernel = kernel_of(tmp_path, "red.global.add.u32 [%d0], 1;")
    options = ("--grid", "2", "--block", "32", "--machine", "h200", "--time")
    result = gdnbench("sim", kernel, "u32[1]:0", *options)
    assert result.code == 3
    assert "no error found" in result.out
    assert "not predicted: the time of a kernel whose CTAs may wait for one another" in result.err


def test_a_fault_is_that_of_the_launch(
    gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CTAs 0 and up write outside; the middle of the grid, which is predicted first, does too."""
    toolkit(monkeypatch)
    kernel = kernel_of(tmp_path, "mov.u64 %d0, 64; st.global.u32 [%d0], 1;")
    arguments = (kernel, "u32[1]:0", "--grid", "200", "--block", "32", "--machine", "h200")
    result = gdnbench("sim", *arguments, "--time")
    assert result.code == 1
    assert "out-of-bounds access" in result.out
    assert "in CTA (0, 0, 0)" in result.out


def test_the_critical_path_and_its_timeline(
    gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of 200 rounds in which nothing waits for memory: its issue is most of the path, and of its time
    the launch has the rest. Slices of the path follow one another from 0 to the end of the SM."""
    toolkit(monkeypatch)
    loop = """.reg .b32 %r<2>; .reg .pred %p<2>;
        mov.u32 %r0, 0;
        again: add.u32 %r0, %r0, 1;
        setp.lt.u32 %p1, %r0, 200;
        @%p1 bra again;
        st.global.u32 [%d0], %r0;"""
    kernel = kernel_of(tmp_path, loop)
    options = (
        "--grid",
        "1",
        "--block",
        "32",
        "--machine",
        "h200",
        "--time",
        "--timeline",
        tmp_path / "t.json",
    )
    result = gdnbench("sim", kernel, "u32[1]:0", *options, "--json")
    assert result.code == 0, result.err
    (launch,) = json.loads(result.out)["predicted"]
    assert sum(launch["path"].values()) == launch["cycles"]
    assert launch["path"]["warp 0 compute: issue"] > 0.9 * launch["cycles"]
    assert launch["of_floor"] == launch["seconds"] / launch["floor"]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    path = [event for event in events if event.get("cat") == "critical path"]
    assert path[0]["ts"] == 0
    assert path[-1]["ts"] + path[-1]["dur"] == pytest.approx(launch["cycles"] / CLOCK * 1e6)
    assert "critical path: launch 0: 9" in gdnbench("sim", kernel, "u32[1]:0", *options).out


def test_where_no_timeline_can_be_written(gdnbench: Invoke, tmp_path: Path) -> None:
    """Told before anything runs: the PTX file is not even there."""
    call = ("sim", "no.ptx:k", "--grid", "1", "--machine", "h200", "--time", "--timeline")
    result = gdnbench(*call, tmp_path)
    assert (result.code, result.err) == (2, f"gdnbench: --timeline {tmp_path}: Is a directory\n")
    result = gdnbench(*call, tmp_path / "no" / "t.json")
    assert result.err == f"gdnbench: --timeline {tmp_path}/no/t.json: No such file or directory\n"
