# SPDX-License-Identifier: Apache-2.0
"""`gdnbench sim FILE.cu:kernel`: CUDA C++ through NVRTC, run against NumPy, and what is refused.

NVRTC is a wheel of tests/sim/third_party/requirements.txt; where GDNBENCH_THIRD_PARTY names the folder of
these, NVRTC has to be there.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gdnbench.sim.cuda_source import compile_cuda
from gdnbench.sim.errors import CudaCompileError, CudaRefusedError, LaunchError
from tests.cli.kernel_files import FACTOR, SUMS
from tests.docs import session
from tests.messages import wording
from tests.seeds import drawn
from tests.sim.cuda_kernels import use_nvrtc

Invoke = Callable[..., Any]  # the fixture `gdnbench`


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC of the folder of third-party packages, or else of this environment."""
    use_nvrtc(monkeypatch)


@pytest.fixture
def sums(nvrtc: None, tmp_path: Path) -> Path:
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "factor.h").write_text(FACTOR)
    path = tmp_path / "sums.cu"
    path.write_text(SUMS)
    return path


@pytest.fixture
def included(sums: Path) -> Iterator[list[str]]:
    return ["-I", str(sums.parent / "headers")]


def test_a_template_with_shared_memory_and_atomics(
    gdnbench: Invoke, sums: Path, included: list[str], tmp_path: Path
) -> None:
    x = np.random.default_rng(drawn("sim cuda")).integers(-8, 8, 1000).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    result = gdnbench(
        *("sim", f"{sums}:sums::sum<__half, 6>", *included, "-D", "TILE=64", "--grid", "1000/64"),
        *("--block", "64", "--check", "--save", tmp_path, "--json"),
        *(f"x=@{tmp_path / 'x.npy'}", "total=f32[1]:0", "1000"),
    )
    assert (result.code, result.err) == (0, "")
    (launch,) = json.loads(result.out)["calls"][0]["launches"]
    assert (launch["grid"], launch["block"]) == ([16, 1, 1], [64, 1, 1])
    assert 0 < launch["registers"] <= 255  # the cubin has ptxas's count
    # Sums of small integers are exact in every order.
    expected = 6 * 0.5 * x.astype(np.float64).sum()
    assert torch.load(tmp_path / "total.pt", weights_only=True).item() == expected


def test_a_finding_names_the_line_of_the_source(
    gdnbench: Invoke, sums: Path, included: list[str], tmp_path: Path
) -> None:
    call = (*included, "-D", "RACE", "--grid", "1", "--block", "128", "--check", "--json")
    result = gdnbench("sim", f"{sums}:sum<float, 1>", *call, "f32[500]", "f32[1]:0", "500")
    # A template is named with its namespace: without an instance NVRTC has nothing to search.
    assert result.code == 2
    result = gdnbench("sim", f"{sums}:sums::sum<float, 1>", *call, "f32[500]", "f32[1]:0", "500")
    assert result.code == 1
    findings = json.loads(result.out)["calls"][0]["findings"]
    line = 1 + [text.strip()[:23] for text in SUMS.splitlines()].index("if (threadIdx.x < width")
    assert {(one["kind"], Path(one["file"]).name, one["line"]) for one in findings} == {
        ("race", "sums.cu", line)
    }


def test_a_kernel_outside_templates(
    gdnbench: Invoke, sums: Path, included: list[str], tmp_path: Path
) -> None:
    x = np.random.default_rng(drawn("sim cuda histogram")).integers(0, 32, 500).astype(np.int32)
    np.save(tmp_path / "x.npy", x)
    call = ("--grid", "1", "--block", "32", "--shared", "128", "--check", "--save", tmp_path)
    given = (f"@{tmp_path / 'x.npy'}", "counts=i32[32]:1", "500")
    for name in (":histogram", ":sums::histogram", ""):  # the only one outside templates
        result = gdnbench("sim", f"{sums}{name}", *included, *call, *given)
        assert (result.code, result.err) == (0, "")
        counts = torch.load(tmp_path / "counts.pt", weights_only=True).numpy()
        assert np.array_equal(counts, 1 + np.bincount(x, minlength=32))


def test_schedules_with_a_macro_for_each_shape(gdnbench: Invoke, sums: Path, included: list[str]) -> None:
    call = ("-D", "TILE={T}", "--grid", "1", "--block", "{T}", "--explore", "2", "--vary", "T=32,64")
    result = gdnbench("sim", f"{sums}:sums::sum<int, 1>", *included, *call, "i32[99]:1", "f32[1]:0", "99")
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()[2:4]] == [
        [f"T={size}", "2", "equal", "pass"] for size in (32, 64)
    ]


def test_a_source_that_does_not_compile(gdnbench: Invoke, sums: Path, included: list[str]) -> None:
    sums.write_text(SUMS.replace("float mine = 0;", "float mine = none;"))
    call = ("--grid", "1", "--block", "32", "f32[9]", "f32[1]", "9")
    result = gdnbench("sim", f"{sums}:sums::sum<float, 1>", *included, *call)
    assert (result.code, result.out) == (1, "")
    lines = result.err.splitlines()
    line = 1 + SUMS.splitlines().index("    float mine = 0;")
    error = f'{sums}({line}): error: identifier "none" is undefined'
    assert lines[0] == error
    assert re.fullmatch(
        "gdnbench: " + wording("sim.cuda-not-compiled", file=sums, arch="sm_100a", error=error), lines[-1]
    )
    sums.write_text(SUMS)
    without = gdnbench("sim", f"{sums}:histogram", *call)  # factor.h is not found
    assert without.code == 1
    assert "factor.h" in without.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "options", "code", "message"),
    [
        ("sums::sum", [], 2, wording("sim.cuda-kernel-unknown", name="sums::sum", kernels="sums::histogram")),
        ("gone", [], 2, wording("sim.cuda-kernel-unknown", name="gone", kernels="sums::histogram")),
        ("histogram", ["--arch", "sm_1"], 3, wording("sim.cuda-option-wrong")),
        ("histogram", ["--std", "c++1"], 3, wording("sim.cuda-option-wrong")),
    ],
)
def test_refusals(
    gdnbench: Invoke,
    sums: Path,
    included: list[str],
    name: str,
    options: list[str],
    code: int,
    message: str,
) -> None:
    result = gdnbench("sim", f"{sums}:{name}", *included, *options, "--grid", "1", "--block", "32")
    assert (result.code, result.out) == (code, "")
    assert re.search(message, result.err.splitlines()[-1])


OVERLOADS = "template <class T> struct S {}; __global__ void f(int* x) {} __global__ void f(S<int> x) {}"


def test_overloads_by_their_mangled_names(nvrtc: None) -> None:
    with pytest.raises(LaunchError, match=wording("sim.cuda-kernels-several", name="f")) as refused:
        compile_cuda(OVERLOADS, name="f")
    assert "_Z1fPi, which is f(int*)" in str(refused.value)
    assert compile_cuda(OVERLOADS, name="_Z1f1SIiE").entry == "_Z1f1SIiE"
    assert compile_cuda(OVERLOADS, name="f(int *)").entry == "_Z1fPi"


def test_an_error_has_the_whole_log(nvrtc: None) -> None:
    with pytest.raises(CudaCompileError, match=wording("sim.cuda-not-compiled")) as refused:
        compile_cuda("__global__ void f() { a; b; }", file="bad.cu")
    assert refused.value.log.count("bad.cu(1): error: ") == 2


def test_headers_with_host_code(nvrtc: None) -> None:
    """As CUTLASS has it: a function that says nothing of where it runs."""
    source = "int twice(int x) { return 2 * x; } __global__ void f(int* y) { y[0] = twice(21); }"
    with pytest.raises(CudaRefusedError, match="default-device"):
        compile_cuda(source)
    assert compile_cuda(source, name="f", default_device=True).entry == "_Z1fPi"


@pytest.mark.slow
def test_headers_of_cuda_and_for_hopper(nvrtc: None) -> None:
    source = "#include <cuda_bf16.h>\n#include <cuda/barrier>\n__global__ void f(__nv_bfloat16* x) {}"
    program = compile_cuda(source, arch="sm_90a", defines={"A": None, "B": 3})
    assert ".target sm_90a" in program.ptx
    assert (program.entry, program.log) == (None, "")


def test_the_page(gdnbench: Invoke, nvrtc: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/sim_files.md: tests of pages have no NVRTC."""
    text = (Path(__file__).parents[2] / "docs" / "sim_files.md").read_text(encoding="utf-8")
    (source,) = [block.text for block in session.blocks(text) if block.file == "rowsum.cu"]
    (command,) = [line for line in text.splitlines() if line.startswith("    gdnbench sim rowsum.cu")]
    (tmp_path / "rowsum.cu").write_text(source)
    monkeypatch.chdir(tmp_path)
    result = gdnbench(*shlex.split(command)[1:])
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1].split() == ["sums", "float32", "8", "100", "100"]


def test_without_nvrtc(gdnbench: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdnbench.sim.cuda_source._candidates", lambda: iter([("/nowhere/libnvrtc.so", [])]))
    (tmp_path / "k.cu").write_text("__global__ void k() {}")
    result = gdnbench("sim", tmp_path / "k.cu", "--grid", "1", "--block", "1")
    assert (result.code, result.out) == (3, "")
    assert re.search(wording("sim.nvrtc-missing", install='pip install "gdnbench[nvrtc]"'), result.err)
