# SPDX-License-Identifier: Apache-2.0
"""Texts that are made to take long: what takes more than linear time or memory is bounded, and the time limit
of a launch covers reading and compiling its PTX."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest

from gdnbench.sim.compiler import blocks as block_module
from gdnbench.sim.compiler.blocks import Blocks, _kept, blocks_of, find_blocks
from gdnbench.sim.compiler.kernel import translate
from gdnbench.sim.compiler.layout import plan_layout
from gdnbench.sim.compiler.uninitialized_analysis import find_unready_registers
from gdnbench.sim.deadline import TimeLimit, check_time
from gdnbench.sim.errors import FaultKind, KernelFault, PtxSyntaxError, UnsupportedError
from gdnbench.sim.interpreter.program import prepare
from gdnbench.sim.ptx.ir import Kernel
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.ptx.source_lines import MAX_SHOWN
from gdnbench.sim.run import run_ptx
from tests.messages import wording

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
SECONDS = 20.0  # for what takes one, or minutes where it is not linear


def entry(body: str) -> str:
    return f"{HEADER}.visible .entry k() {{\n.reg .b32 %r<4>;\n{body}\n}}\n"


def backward_chain(blocks: int) -> str:
    """Each block jumps to the one before it, so that liveness goes against the order of the text. %r1 is set
    at the entry and used at the end of the chain."""
    lines = ["mov.u32 %r1, 1;", f"bra L{blocks - 1};", "L0: add.u32 %r2, %r1, 1;", "ret;"]
    lines += [f"L{number}: bra L{number - 1};" for number in range(1, blocks)]
    return entry("\n".join(lines))


@cache
def small() -> tuple[Kernel, Blocks]:
    kernel = parse(backward_chain(20)).kernels["k"]
    return kernel, find_blocks(kernel)


def test_blank_lines_take_linear_time() -> None:
    start = time.monotonic()
    parse(HEADER + "\n" * 400_000 + entry("ret;").removeprefix(HEADER))
    assert time.monotonic() - start < SECONDS


def test_a_chain_of_jumps_takes_linear_time() -> None:
    kernel = parse(backward_chain(16_000)).kernels["k"]
    start = time.monotonic()
    found = find_blocks(kernel)
    assert time.monotonic() - start < SECONDS
    r1 = next(register for register in kernel.registers if register.name == "%r1")
    assert all(block.live_in >> r1.index & 1 for block in found.blocks[1:])


def test_a_long_line_is_shown_in_part() -> None:
    """Every instruction has the text of its line, for errors; here it is the same for all of them."""
    count = 20_000
    kernel = parse(entry("  " + "mov.u32 %r0, 1; " * count + "ret;")).kernels["k"]
    places = [ins.place for ins in kernel.instructions]
    assert len(places) == count + 1
    assert {len(place.text) for place in places} == {MAX_SHOWN + 3}
    assert len({id(place.text) for place in places}) == 1


@pytest.mark.parametrize("token", ["9" * 5_000_000, "a" * 5_000_000])
def test_an_error_quotes_no_name_or_number_of_megabytes(token: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        parse(entry(f"mov.u32 %r1, {token};\nret;"))
    assert len(str(caught.value)) < 200


def test_a_file_s_name_has_one_line() -> None:
    text = entry(".loc 1 7 0\nret;") + '.file 1 "a\nerror in launch 0: no"\n.file 2 "b"\n'
    assert parse(text).kernels["k"].instructions[0].place.file is None


@pytest.mark.parametrize(
    ("name", "what"), [("MAX_BLOCKS", "blocks between branches"), ("MAX_INSTRUCTIONS", "instructions")]
)
def test_the_size_of_a_compiled_kernel_is_bounded(
    monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """LLVM is not interrupted at the time limit, and takes more than linear time for the blocks."""
    kernel, found = small()
    count = len(found.blocks) if name == "MAX_BLOCKS" else len(kernel.instructions)
    monkeypatch.setattr(block_module, name, count)
    find_blocks(kernel)
    monkeypatch.setattr(block_module, name, count - 1)
    message = wording("sim.compiler.blocks-too-many", count=count, what=what, kernel="k", most=count - 1)
    with pytest.raises(UnsupportedError, match=message):
        find_blocks(kernel)


def translated() -> object:
    kernel, found = small()
    return translate(kernel, found, plan_layout(kernel, found))


STAGES: dict[str, Callable[[], object]] = {
    "reading": lambda: parse(entry("ret;")),
    "blocks": lambda: find_blocks(small()[0]),
    "registers without a value": lambda: find_unready_registers(*small()),
    "translating": translated,
    "the interpreter": lambda: prepare(small()[0]),
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_time_limit_covers(stage: str) -> None:
    STAGES[stage]()
    limit = TimeLimit(1e-9)
    with limit, pytest.raises(KernelFault, match=wording("sim.machine.seconds-over", most="1e-09")) as caught:
        STAGES[stage]()
    assert caught.value.kind is FaultKind.LIMIT
    check_time()  # outside of the block there is no limit
    with TimeLimit(1000.0):
        STAGES[stage]()


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_a_launch_of_a_large_text_is_stopped_in_time(engine: str) -> None:
    text = backward_chain(100_000)
    start = time.monotonic()
    with pytest.raises(KernelFault, match=wording("sim.machine.seconds-over", most="0.1")):
        run_ptx(text, "k", (1, 1, 1), (32, 1, 1), [], engine=engine, timeout=0.1)
    assert time.monotonic() - start < SECONDS


def test_blocks_are_kept_as_long_as_their_kernel() -> None:
    kernel = parse(backward_chain(3)).kernels["k"]
    before = len(_kept)
    assert blocks_of(kernel) is blocks_of(kernel)
    assert blocks_of(kernel) == find_blocks(kernel)
    assert len(_kept) == before + 1
    del kernel
    assert len(_kept) == before
