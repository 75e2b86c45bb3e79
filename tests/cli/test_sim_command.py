# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim`: kernels from the command line, what is printed, saved and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench.trace.reader import open_trace
from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

Invoke = Callable[..., Any]  # the fixture `gdnbench`

KERNELS = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

print("imported")


@cute.kernel
def axpy_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, count: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * 32 + thread
    if index < count:
        y[index] = y[index] + x[index] * factor


@cute.jit
def axpy(
    x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, count: cutlass.Int32, stream: cuda.CUstream
):
    axpy_kernel(x, y, factor, count).launch(grid=[(count + 31) // 32, 1, 1], block=[32, 1, 1], stream=stream)


@cute.jit
def axpy_of(x: cute.Tensor, y: cute.Tensor, count: cutlass.Constexpr, factor: cutlass.Float32 = 2.0):
    axpy_kernel(x, y, factor, count).launch(grid=[(count + 31) // 32, 1, 1], block=[32, 1, 1])


class Axpy:
    def __init__(self, factor):
        self.factor = factor

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        count = cute.size(x)
        axpy_kernel(x, y, self.factor, count).launch(grid=[2, 1, 1], block=[32, 1, 1], stream=stream)


doubled = Axpy(2.0)


@cute.jit
def broken(x: cute.Tensor):
    raise ValueError("no such layout")


def compiled():
    flat = make_fake_tensor(cutlass.Float32, (cute.sym_int(),), (1,))
    return cute.compile(axpy, flat, flat, cutlass.Float32(1), cutlass.Int32(1), make_fake_stream())


def ready(count=40):
    return compiled(), (torch.ones(40), torch.full((40,), 3.0), 2.0, count)


def by_itself():
    compiled()(torch.ones(8), torch.zeros(8), 1.0, 8, cuda.CUstream(0))


def nothing():
    pass


PTX = '''.version 8.8
.target sm_100a
.address_size 64
.visible .entry k() {
    bar.sync 1, 96;
    ret;
}
'''


@cute.kernel
def endless_kernel(x: cute.Tensor):
    turn = cutlass.Int32(0)
    while turn >= 0:
        turn = (turn + 1) & 255
        x[turn & 7] = x[turn & 7] + 1.0


@cute.jit
def endless(x: cute.Tensor):
    endless_kernel(x).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def wide(x: cute.Tensor):
    axpy_kernel(x, x, 1.0, 0).launch(grid=[2147483647, 1, 1], block=[32, 1, 1])


def stuck():
    from gdnbench import sim
    return sim.run_ptx(PTX, "k", (1, 1, 1), (64, 1, 1), [])


def something_else():
    return 3
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "axpy.py"
    path.write_text(KERNELS)
    return path


def test_a_host_function_with_arguments(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    result = gdnbench(
        "sim", f"{kernels}:axpy", "--args", "f32[40]:arange", "f32[?40]:1", "0.5", "37", "--save", tmp_path
    )
    assert (result.code, result.err) == (0, "imported\n")
    lines = result.out.splitlines()
    settings = wording("sim.settings", engine="compiled", schedule="late", mma="hardware", checked="")
    assert re.fullmatch(settings, lines[0])
    assert lines[1].startswith("launch 0: kernel_cutlass_axpy_kernel")
    shared = re.compile(wording("sim.shared-bytes", bytes=0))
    size = wording("sim.launch-size", grid="2x1x1", block="32x1x1", shared=shared)
    assert re.fullmatch(rf"  {size}, \d+ registers", lines[2])
    assert re.fullmatch(r"  \d+ warp instructions, 0 MACs in \d+\.\d\d s", lines[3])
    assert lines[4:] == [
        "no error found",
        "tensor  dtype    shape  min  max  nonfinite",
        "x       float32  40       0   39",
        "y       float32  40       1   19",
    ]
    wanted = torch.ones(40)
    wanted[:37] += torch.arange(37.0) * 0.5
    assert torch.equal(torch.load(tmp_path / "y.pt", weights_only=True), wanted)


def test_arguments_by_name_and_what_is_compiled_in(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench(
        "sim",
        f"{kernels}:axpy_of",
        "f32[8]:ones",
        "count=8",
        "y=f32[8]:1",
        "--json",
        "--engine",
        "interpreter",
    )
    assert result.code == 0
    data = json.loads(result.out)
    assert data["calls"][0]["engine"] == "interpreter"
    assert [tensor["tensor"] for tensor in data["tensors"]] == ["x", "y"]
    assert data["tensors"][1] == {
        "tensor": "y",
        "dtype": "float32",
        "shape": [8],
        "min": 3.0,
        "max": 3.0,
        "nonfinite": 0,
    }


def test_an_object_that_is_called_as_a_host_function(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:doubled", "f32[40]:3", "f32[40]:1")
    assert (result.code, result.out.splitlines()[-1]) == (0, "y       float32  40       7    7")
    result = gdnbench("sim", f"{kernels}:doubled", "f32[40]:3")
    assert result.code == 2
    assert re.search(
        wording("sim.argument-names", function="Axpy", names="x, y", given="a tensor"), result.err
    )


@pytest.mark.parametrize("schedule", ["early", "late", "random:5"])
def test_a_function_that_returns_a_call(gdnbench: Invoke, kernels: Path, schedule: str) -> None:
    result = gdnbench("sim", f"{kernels}:ready", "--schedule", schedule)
    assert result.code == 0
    assert result.out.splitlines()[0] == f"engine compiled, schedule {schedule}, mma hardware"
    assert result.out.splitlines()[-1] == "y       float32  40       5    5"


def test_a_function_that_calls_a_kernel_itself(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:by_itself")
    assert (result.code, result.out.splitlines()[-1]) == (0, "no error found")


def test_an_illegal_act_is_reported(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:ready", "count=41")
    assert result.code == 1
    access = re.compile(wording("sim.machine.global-access", size=4))
    assert re.search(
        wording("sim.finding", severity="error", launch=0, kind="out-of-bounds access", message=access),
        result.out,
    )
    line = 1 + KERNELS.splitlines().index("        y[index] = y[index] + x[index] * factor")
    assert f"  {kernels}:{line}\n" in result.out
    assert "1 error found" in result.out


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (
            "endless",
            ["--max-instructions", "100000"],
            wording("sim.machine.instructions-over", most="100,000"),
        ),
        ("endless", ["--timeout", "0.5"], wording("sim.machine.seconds-over", most="0.5")),
        ("wide", [], wording("sim.machine.ctas-over", ctas="2,147,483,647")),
    ],
)
def test_a_launch_beyond_its_bounds(
    gdnbench: Invoke, kernels: Path, function: str, options: list[str], message: str
) -> None:
    for more in ([], ["--explore", "1"]):
        result = gdnbench("sim", f"{kernels}:{function}", "f32[8]:0", *options, *more)
        assert result.code == 1
        assert re.search("limit reached: .*" + message, result.out)
        option = "--timeout" if "--timeout" in options else "--max-instructions"
        assert f"(gdnbench sim {option})" in result.out


def test_bounds_hold_for_ptx_that_the_function_runs(gdnbench: Invoke, tmp_path: Path) -> None:
    ptx = (
        ".version 8.8\n.target sm_100a\n.address_size 64\n"
        ".visible .entry k() {\n.reg .b32 %r<2>;\nAGAIN:\nadd.u32 %r1, 1, 1;\nbra AGAIN;\n}\n"
    )
    (tmp_path / "loops.py").write_text(
        "from gdnbench.sim.run import run_ptx\n"
        f"def loops():\n    run_ptx({ptx!r}, 'k', (1, 1, 1), (32, 1, 1), [], engine='interpreter')\n"
    )
    for option, value, code in (
        ("--max-instructions", 5000, "sim.machine.instructions-over"),
        ("--timeout", 0.2, "sim.machine.seconds-over"),
    ):
        result = gdnbench("sim", f"{tmp_path / 'loops.py'}:loops", option, value)
        assert result.code == 1
        assert re.search(wording(code, most=f"{value:,}"), result.err)


def test_profile(gdnbench: Invoke, kernels: Path) -> None:
    result = gdnbench("sim", f"{kernels}:ready", "--profile", "--engine", "interpreter")
    assert re.search(r"^    registers to global +160$", result.out, re.MULTILINE)  # 40 f32 stored


def test_timeline(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    result = gdnbench("sim", f"{kernels}:ready", "--timeline", tmp_path / "t.json")
    assert result.code == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (process,) = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert process.startswith("launch 0: kernel_cutlass_axpy_kernel")
    result = gdnbench("sim", f"{kernels}:ready", "--timeline", tmp_path / "no" / "t.json")
    assert (result.code, result.out) == (2, "")
    result = gdnbench("sim", f"{kernels}:ready", "count=41", "--timeline", tmp_path / "u.json")
    assert (result.code, (tmp_path / "u.json").exists()) == (1, False)
    assert "1 error found" in result.out
    assert re.search(wording("cli.no-launch", path=tmp_path / "u.json"), result.err)


def test_values_of_one_warp(gdnbench: Invoke, kernels: Path, tmp_path: Path) -> None:
    path = tmp_path / "values.zarr"
    asked = ("sim", f"{kernels}:axpy", "f32[40]:arange", "f32[40]:1", "0.5", "40", "--trace")
    result = gdnbench(*asked, path, "--select", "cta=1 class=store")
    assert result.code == 0
    assert re.search(wording("cli.trace-written", events=1, launches="1 launch", path=path), result.err)
    with open_trace(path) as trace:
        (launch,) = trace.launches
        (event,) = launch.read()
    assert (event.cta, event.warp, event.lanes) == (1, 0, 0xFF)
    assert event.values[0, :8].astype(np.uint32).view(np.float32).tolist() == [17 + i / 2 for i in range(8)]
    refused = gdnbench(*asked, tmp_path / "other.zarr", "--select", "lane=3")
    assert refused.code == 2
    assert re.search(wording("sim.select-wrong", text="lane=3"), refused.err)
    assert not (tmp_path / "other.zarr").exists()
    again = gdnbench(*asked, path)
    assert again.code == 2
    assert "is there already" in again.err
    alone = gdnbench(*asked[:-1], "--select", "all")
    assert (alone.code, alone.out) == (2, "")
    assert re.search(wording("cli.trace-options-alone"), alone.err)


def test_random_arguments_come_from_the_seed(gdnbench: Invoke, kernels: Path) -> None:
    def run(seed: int) -> str:
        call = ("sim", f"{kernels}:axpy", "f32[40]", "f32[40]", "1.0", "40")
        return str(json.loads(gdnbench(*call, "--json", "--seed", seed).out)["tensors"])

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["{}:axpy", "f32[40]"],
            2,
            wording("sim.argument-names", function="axpy", names="x, y, factor, count", given="a tensor"),
        ),
        (
            ["{}:axpy", "f32[40]", "f32[40]", "1.0", "1.5"],
            2,
            wording("sim.host.argument-not-integer", name="count", value=1.5),
        ),
        (["{}:axpy", "f3[40]"], 2, "type 'f3'"),
        (
            ["{}:axpy", "f32[99999999999999]", "1"],
            2,
            wording("sim.tensor-not-made", dtype="f32", extents=99999999999999, strides=1, fill="randn"),
        ),
        (["{}:axpy", "x=1", "3"], 2, wording("cli.argument-order", text="3")),
        (["{}:axpy", "f32[40]", "f32[40]", "1.0", "1", "--engine", "fast"], 2, "engine 'fast'"),
        (["{}:axpy", "f32[40]", "f32[40]", "1.0", "1", "--mma", "fast"], 2, "mma 'fast'"),
        (["{}:axpy", "f32[40]", "f32[40]", "1.0", "1", "--schedule", "fast"], 2, "schedule 'fast'"),
        (["{}:axpy", "f32[40]", "f32[40]", "1.0", "1", "--arch", "sm_80"], 2, "arch 'sm_80'"),
        (
            ["{}:axpy", "f32[40]", "f32[40]", "1.0", "1", "--timeout", "0"],
            2,
            wording("sim.timeout-wrong", seconds=0.0),
        ),
        (
            ["{}:broken", "f32[4]"],
            1,
            wording("sim.host.not-compiled", function="broken", reason="ValueError: no such layout"),
        ),
        (
            ["{}:stuck"],
            1,
            r"can go on: 2 waits in CTA \(0, 0, 0\) at PTX line 5 `bar\.sync 1, 96;`; warps \[0, 1\] \(64",
        ),
        (["{}:nothing"], 2, wording("cli.nothing-launched")),
        (["{}:something_else"], 2, wording("sim.function-result", function="something_else", type="int")),
        (["{}:missing"], 2, wording("replay.function-missing", function="missing")),
        (["{}"], 2, wording("cli.function-wrong")),
        (["nosuch.py:f"], 2, wording("store.missing", path="nosuch.py")),
    ],
)
def test_refusals_in_one_line(
    gdnbench: Invoke, kernels: Path, arguments: list[str], code: int, message: str
) -> None:
    result = gdnbench("sim", *(argument.format(kernels) for argument in arguments))
    assert (result.code, result.out) == (code, "")
    assert re.search(message, result.err)
    said = [line for line in result.err.splitlines() if line != "imported"]
    assert len(said) == 1


def test_help_says_how_arguments_are_written(gdnbench: Invoke) -> None:
    text = gdnbench("sim", "--help-all").out
    assert "TYPE[EXTENTS" in text
    assert "random:SEED" in text
    assert "randn, rand, randint, zeros, ones, arange, nan" in " ".join(text.replace("│", " ").split())


def test_replay_on_sim_needs_a_kernel_for_it(gdnbench: Invoke, prefills: Path) -> None:
    result = gdnbench("replay", prefills, "--kernel", "torch", "--on", "sim")
    assert (result.code, result.out) == (3, "")
    assert re.search(wording("replay.not-sm100"), result.err)
