# SPDX-License-Identifier: Apache-2.0
"""`gdnbench compile`: what is printed and written, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

Invoke = Callable[..., Any]  # the fixture `gdnbench`

SMALL = ("--heads", "1", "--value-heads", "2")
KERNELS = ["chunk_metadata", "chunk_uw", "chunk_state", "chunk_output"]
FIGURES = [
    "name",
    "registers",
    "spills",
    "stack",
    "smem",
    "tmem_columns",
    "threads",
    "cubin_bytes",
    "ptx_lines",
    "tcgen05_instructions",
    "tma_instructions",
    "compile_seconds",
]


@pytest.mark.slow
def test_json(gdnbench: Invoke) -> None:
    done = gdnbench("compile", "--arch", "sm_100a", "--json", *SMALL, "--initial-state", "none")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [found[name] for name in ("op", "kernel", "arch")] == ["gdn_prefill", "sm100", "sm_100a"]
    assert found["options"] == {
        "heads": 1,
        "value_heads": 2,
        "initial_state": None,
        "final_state": "float32",
        "tap": "none",
        "beta_max": 1.0,
    }
    assert [kernel["name"] for kernel in found["kernels"]] == [f"gdn_prefill.{name}" for name in KERNELS]
    for kernel in found["kernels"]:
        assert list(kernel) == FIGURES
        assert (kernel["spills"], kernel["stack"]) == (0, 0)
        assert 0 < kernel["registers"] * kernel["threads"] <= 65_536
        assert 0 < kernel["smem"] <= 232_448
        # Tensor memory is there to be multiplied into, from tiles that TMA brings.
        tensor_core = kernel["name"] != "gdn_prefill.chunk_metadata"
        for name in ("tmem_columns", "tcgen05_instructions", "tma_instructions"):
            assert (kernel[name] > 0) is tensor_core
        assert kernel["tmem_columns"] <= 512


def test_table(gdnbench: Invoke) -> None:
    done = gdnbench("compile", *SMALL)
    assert (done.code, done.err) == (0, "")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == FIGURES
    assert [line[0] for line in lines[1:]] == [f"gdn_prefill.{name}" for name in KERNELS]


def test_files(gdnbench: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert gdnbench("compile", *SMALL, "-o", folder).code == 0
    names = {
        "gdn_prefill_chunk_metadata",
        "gdn_prefill_chunk_uw_beta_max_1_heads_1_tap_none_value_heads_2",
        "gdn_prefill_chunk_state_final_state_float32_heads_1_initial_state_float32_value_heads_2",
        "gdn_prefill_chunk_output_heads_1_value_heads_2",
    }
    ends = ("o", "h", "cubin", "ptx", "json")
    assert {path.name for path in folder.iterdir()} == {f"{name}.{end}" for name in names for end in ends}
    for name in names:
        host_object = (folder / f"{name}.o").read_bytes()
        assert host_object[:4] == b"\x7fELF"
        assert host_object[18:20] in (b"\x3e\x00", b"\xb7\x00")  # x86-64 or AArch64
        header = (folder / f"{name}.h").read_text()
        assert f"cute_dsl_{name}_wrapper(" in header
        assert ".target sm_100a" in (folder / f"{name}.ptx").read_text()
        assert json.loads((folder / f"{name}.json").read_text())["symbol"] == name


def test_options_are_listed(gdnbench: Invoke) -> None:
    done = gdnbench("compile", "--options")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[:3] == [
        "--heads (default 16)",
        "--value-heads (default 32)",
        "--initial-state (default float32)",
    ]


def test_budget(gdnbench: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    file.write_text(gdnbench("compile", *SMALL, "--json").out)
    done = gdnbench("compile", *SMALL, "--budget", file)
    assert (done.code, done.err) == (0, "")
    budget = json.loads(file.read_text())
    budget["kernels"][1]["registers"] -= 1
    budget["kernels"][2]["ptx_lines"] += 1
    file.write_text(json.dumps(budget))
    done = gdnbench("compile", *SMALL, "--budget", file)
    new = budget["kernels"][1]["registers"] + 1
    assert done.code == 1
    assert done.err == f"gdnbench: gdn_prefill.chunk_uw: registers {new - 1} -> {new}\n"
    assert done.out.startswith("name")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "sm_100f"}, "is of arch sm_100f, not sm_100a"),
        ({"options": {"heads": 16}}, "is of heads 16, not 1"),
        ({"kernels": [{"name": "k"}]}, wording("kernel_figures.budget-wrong", error="KeyError")),
        ({"kernels": None}, wording("kernel_figures.budget-wrong", error="TypeError")),
    ],
)
def test_budget_of_something_else(
    gdnbench: Invoke, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "budget.json"
    file.write_text(json.dumps({"op": "gdn_prefill", "arch": "sm_100a", "kernels": [], **change}))
    done = gdnbench("compile", *SMALL, "--budget", file)
    assert (done.code, done.out) == (2, "")
    assert re.search(message, done.err)
    assert done.err.count("\n") == 1


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--beta-max", 3), 2, wording("kernels.beta-max-range", most=2, given=3)),
        (("--beta-max", "nan"), 2, wording("kernels.beta-max-range", most=2, given="nan")),
        (
            ("--arch", "sm_80"),
            2,
            wording("sim.host.arch-unknown", arch="sm_80", known="sm_90a, sm_100a, sm_100f, sm_103a"),
        ),
        (
            ("--arch", "sm_90a"),
            1,
            wording(
                "compile.fails",
                program="gdn_prefill.chunk_uw",
                arch="sm_90a",
                error="DSLUserCodeError",
                reason="expects arch",
            ),
        ),
        (("--heads", "3", "--value-heads", "4"), 2, wording("kernels.value-heads", value_heads=4, heads=3)),
        (("--heads", "0"), 2, wording("kernels.value-heads", value_heads=32, heads=0)),
        (
            ("--value-heads", "131072"),
            2,
            wording("kernels.head-limit", value_heads=131072, most=131071),
        ),
        (("-o", ""), 2, wording("cli.folder-empty")),
        (
            ("--heads", "x"),
            2,
            wording(
                "options.wrong", owner="gdn_prefill kernel sm100", name="heads", text="x", wanted="an integer"
            ),
        ),
        (("--initial-state", "float16"), 2, "is not float32 or bfloat16 or none"),
        (
            ("--colour", "red"),
            2,
            wording(
                "options.unknown",
                owner="gdn_prefill kernel sm100",
                kind="compile",
                name="colour",
                known="heads,",
            ),
        ),
        (("--op", "nothing"), 2, wording("ops.operation-unknown", name="nothing")),
        (
            ("--op", "gdn_decode", "--kernel", "fla"),
            2,
            wording("compile.not-ahead-of-time", op="gdn_decode", kernel="kernel 'fla'"),
        ),
        (
            ("--kernel", "torch"),
            2,
            wording("compile.not-ahead-of-time", op="kernel", kernel="'torch'", known="sm100"),
        ),
        (("--budget", "/nonexistent/b.json"), 2, r"--budget /nonexistent/b\.json: No such file"),
        (("--budget", __file__), 2, wording("cli.budget-not-json")),
    ],
)
def test_refused(gdnbench: Invoke, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = gdnbench("compile", *arguments)
    assert done.code == code
    assert re.search(message, done.err)
    assert done.err.startswith("gdnbench: ")
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_folder_that_cannot_be_made(gdnbench: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = gdnbench("compile", *SMALL, "-o", tmp_path / "file" / "b")
    assert done.code == 2
    assert "-o " in done.err


def test_without_the_compiler(gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gdnbench_kernels import compiling, source

    monkeypatch.setattr(compiling, "_programs", {})
    monkeypatch.setattr(source, "DSL", "no-such-distribution")
    done = gdnbench("compile")
    assert (done.code, done.out) == (3, "")
    assert re.fullmatch(
        "gdnbench: " + wording("kernels.cutedsl-missing", package="no-such-distribution\n"), done.err
    )


def test_kernel_that_does_not_compile(
    gdnbench: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gdnbench_kernels import compiling
    from gdnbench_kernels.gdn_prefill import sources

    def broken() -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(compiling, "_programs", {})
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sources, "build_metadata", broken)
    done = gdnbench("compile")
    assert (done.code, done.out) == (1, "")
    fails = wording(
        "compile.fails",
        program="gdn_prefill.chunk_metadata",
        arch="sm_100a",
        error="RuntimeError",
        reason="first line",
    )
    assert re.fullmatch(f"gdnbench: {fails}\n", done.err)


@pytest.mark.slow
def test_a_kernel_for_one_gpu_alone_is_compiled_for_that(gdnbench: Invoke) -> None:
    small = ("--op", "swa_decode", "--kernel", "wgmma", "--heads", "8", "--rows", "16")
    done = gdnbench("compile", "--json", *small)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["arch"] == "sm_90a"
    refused = gdnbench("compile", "--arch", "sm_100a", *small)
    assert (refused.code, refused.out) == (2, "")
    assert re.fullmatch(
        wording(
            "compile.arch-refused",
            op="gdnbench: swa_decode",
            kernel="wgmma",
            archs="sm_90a",
            given="sm_100a",
            arch="sm_90a\n",
        ),
        refused.err,
    )
