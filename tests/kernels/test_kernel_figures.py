# SPDX-License-Identifier: Apache-2.0
"""What kernels take of the hardware: against the words of the assembler itself, and against a budget."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.errors import BadInputError
from gdnbench.kernel_figures import (
    NUMBERS,
    Figures,
    _example,
    figures,
    limits,
    problems,
    ptx_lines,
    tmem_columns,
)
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.ptx import parse
from gdnbench_kernels.compiling import program
from gdnbench_kernels.source import Source

AFFINE = Source.create("tests.affine", "tests.kernels.compiled_kernels:affine", with_bias=True)
SPILLING = Source.create("tests.spilling", "tests.kernels.compiled_kernels:spilling")

GOOD = Figures(
    name="k",
    registers=128,
    spills=0,
    stack=0,
    smem=200_000,
    tmem_columns=256,
    threads=352,
    cubin_bytes=50_000,
    ptx_lines=2_000,
    tcgen05_instructions=40,
    tma_instructions=10,
    compile_seconds=1.0,
)


@pytest.fixture(autouse=True)
def _kernels_of_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_spills_registers_and_stack_are_what_ptxas_says(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """CuTe DSL prints the assembler's own account of a kernel that spills. All its values are 4 bytes wide,
    and nothing but spills lies in local memory, so bytes are four times the loads and stores counted."""
    import cutlass.cute as cute

    host, examples = SPILLING.build()
    cute.compile(host, *examples, options="--gpu-arch=sm_100a remarks{ptx}")
    said = " ".join("".join(capfd.readouterr()).split())
    words = ("bytes spill stores", "bytes spill loads", "bytes stack frame", "registers")
    stores, loads, stack, registers = (int(re.findall(rf"(\d+) {word}", said)[0]) for word in words)
    found = figures(program(SPILLING))
    assert found.spills == (stores + loads) / 4 > 0
    assert found.stack == stack > 0
    assert found.registers == registers
    assert (found.threads, found.smem, found.tmem_columns, found.tma_instructions) == (1024, 0, 0, 0)
    assert [line.split(",")[0] for line in limits(found)] == [
        f"tests.spilling: spills {found.spills}",
        f"tests.spilling: stack {found.stack}",
    ]


def test_kernel_that_does_not_spill() -> None:
    found = figures(program(AFFINE))
    assert (found.name, found.spills, found.stack) == ("tests.affine", 0, 0)
    assert found.threads == 64
    assert found.smem == 32 * 64 * 4 + 8  # the tile and an mbarrier
    assert found.tma_instructions == 1
    assert found.tcgen05_instructions == 0
    assert not limits(found)
    assert 0 < found.cubin_bytes < len(program(AFFINE).cubin)
    assert found.compile_seconds == round(program(AFFINE).compile_seconds, 3)


def test_figures_do_not_depend_on_where_the_files_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    text = (Path(__file__).parent / "compiled_kernels.py").read_text()
    (folder / "moved_kernels.py").write_text("# A comment\n\n" + text)
    monkeypatch.syspath_prepend(str(folder))
    moved = program(Source.create("tests.affine", "moved_kernels:affine", with_bias=True))
    here = program(AFFINE)
    # The name of the module is in the kernel's name, once in PTX and several times in the cubin.
    assert len("moved_kernels") + 3 == len("compiled_kernels")
    mine, other = figures(here), figures(moved)
    assert replace(other, compile_seconds=0, cubin_bytes=0) == replace(mine, compile_seconds=0, cubin_bytes=0)
    assert abs(other.cubin_bytes - mine.cubin_bytes) < 200
    assert len(moved.cubin) - len(here.cubin) > 80


def test_lines_of_ptx_that_count() -> None:
    text = '// c\n.version 8.7\n\n\t.loc 1 2 3\n\t.file\t1 "x.py"\n\tadd.s32 %r1, %r2, %r3; // a\n$L__BB0:\n'
    assert ptx_lines(text) == 3


def ptx(*body: str) -> Any:
    """A kernel of these instructions, parsed."""
    lines = "\n".join(body)
    text = (
        ".version 8.7\n.target sm_100a\n.address_size 64\n"
        f".visible .entry k()\n{{\n.reg .b32 %r<9>;\n.shared .align 4 .b8 s[8];\n{lines}\nret;\n}}\n"
    )
    return parse(text).kernels["k"]


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], "


def test_columns_of_tensor_memory() -> None:
    assert tmem_columns(ptx()) == 0
    assert tmem_columns(ptx(f"{ALLOC}64;")) == 64
    assert tmem_columns(ptx("mov.b32 %r1, 128;", f"{ALLOC}%r1;", f"{ALLOC}32;")) == 160


@pytest.mark.parametrize(
    "body", [("add.s32 %r1, %r1, 32;",), ("mov.b32 %r1, 32;", "mov.b32 %r1, 64;"), ("mov.b32 %r1, %r2;",)]
)
def test_columns_that_are_computed_are_no_figure(body: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError, match=wording("kernel_figures.alloc-computed")):
        tmem_columns(ptx(*body, f"{ALLOC}%r1;"))


def test_tensor_larger_than_memory() -> None:
    huge = '!cute.memref<f32, gmem, align<16>, "(?,1099511627776):(1099511627776,1)">'
    assert _example('!cute.memref<f32, gmem, align<16>, "(?,4):(4,1)">').shape == (64, 4)
    with pytest.raises(
        UnsupportedError, match=wording("kernel_figures.tensor-too-large", elements="7.04e+13")
    ):
        _example(huge)


# Budgets


def budget(*kernels: Figures) -> dict[str, Any]:
    return {"kernels": [kernel.as_json() for kernel in kernels]}


def test_same_or_better_is_within_the_budget() -> None:
    assert not problems([GOOD], budget(GOOD))
    nothing: dict[str, Any] = dict.fromkeys(NUMBERS, 0)
    assert not problems([replace(GOOD, **nothing)], budget(GOOD))


WORSE = [name for name in NUMBERS if name not in ("spills", "stack", "compile_seconds")]


@pytest.mark.parametrize("name", WORSE)
def test_regression_names_old_and_new(name: str) -> None:
    old = getattr(GOOD, name)
    assert problems([replace(GOOD, **{name: old + 1})], budget(GOOD)) == [f"k: {name} {old} -> {old + 1}"]


@pytest.mark.parametrize(
    ("name", "limit"), [("spills", 0), ("stack", 0), ("smem", 232_448), ("tmem_columns", 512)]
)
def test_limits_hold_whatever_the_budget_says(name: str, limit: int) -> None:
    at, over = replace(GOOD, **{name: limit}), replace(GOOD, **{name: limit + 1})
    assert not problems([at], budget(over))
    assert problems([over], budget(over)) == [f"k: {name} {limit + 1}, over the limit of {limit}"]


def test_compile_time_is_the_machines_too() -> None:
    slow = replace(GOOD, compile_seconds=8.0)
    assert not problems([replace(GOOD, compile_seconds=60.0)], budget(GOOD))
    assert not problems([replace(GOOD, compile_seconds=80.0)], budget(slow))
    assert problems([replace(GOOD, compile_seconds=80.1)], budget(slow)) == ["k: compile_seconds 8.0 -> 80.1"]


def test_kernels_that_come_and_go() -> None:
    other = replace(GOOD, name="other")
    (gone,) = problems([GOOD], budget(GOOD, other))
    assert re.fullmatch(wording("kernel_figures.not-compiled", kernel="other"), gone)
    (new,) = problems([GOOD, other], budget(GOOD))
    assert re.fullmatch(wording("kernel_figures.not-in-budget", kernel="other"), new)


@pytest.mark.parametrize("damaged", [{}, [], {"kernels": [{"name": "k"}]}, {"kernels": 3}])
def test_no_budget(damaged: Any) -> None:
    with pytest.raises(BadInputError, match=wording("kernel_figures.budget-wrong")):
        problems([GOOD], damaged)


@pytest.mark.parametrize("value", ["120", None, True, float("nan")], ids=str)
def test_figures_that_are_no_numbers(value: Any) -> None:
    damaged = budget(GOOD)
    damaged["kernels"][0]["registers"] = value
    with pytest.raises(
        BadInputError, match=wording("kernel_figures.budget-number", figure="registers", kernel="k")
    ):
        problems([GOOD], damaged)
