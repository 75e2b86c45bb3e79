# SPDX-License-Identifier: Apache-2.0
"""The compiled engine and the interpreter leave the same bits: random programs, straight and structured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from gdnbench.sim.compiler import kernel, native
from gdnbench.sim.run import RunResult, run_ptx
from tests.seeds import drawn
from tests.sim.compiler.random_programs import RECORD, THREADS, operands, program
from tests.subset import quick

T = TypeVar("T")
R = TypeVar("R")


def run(text: str, seed: int, engine: str, schedule: str = "late") -> tuple[np.ndarray, RunResult]:
    """The registers that a program leaves, and what the launch counted."""
    source = operands(seed)
    target = np.zeros((THREADS, RECORD), np.uint8)
    result = run_ptx(
        text, "k", (1, 1, 1), (THREADS, 1, 1), [source, target], engine=engine, schedule=schedule, threads=1
    )
    return target, result


def compare(seed: int, *, depth: int, length: int = 0) -> None:
    """Both engines on one program; the message of a failure says how to make it again."""
    text = program(seed, depth=depth, length=length)
    want, interpreted = run(text, seed, "interpreter")
    got, compiled = run(text, seed, "compiled")
    where = f"seed {seed}, depth {depth}, length {length}"
    if not np.array_equal(got, want):
        thread, byte = np.argwhere(got != want)[0]
        raise AssertionError(f"{where}: thread {thread}, byte {byte} of its record\n{text}")
    assert compiled.counters.warp_instructions == interpreted.counters.warp_instructions, where


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled well from the start, as those of long launches are later."""
    original = native.compile_text
    monkeypatch.setattr(native, "compile_text", lambda text, level: original(text, native.Level.OPTIMISED))


@pytest.mark.parametrize("seed", quick(range(6), 0, 1, 2))
def test_straight_lines(seed: int) -> None:
    compare(seed, depth=0, length=150)


@pytest.mark.parametrize("seed", quick(range(100, 106), 0, 1, 2))
def test_structured_control_flow(seed: int) -> None:
    compare(seed, depth=2)


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
    ("seed", "depth", "length"), quick([(200, 0, 150), (201, 0, 150), (202, 2, 0), (203, 2, 0)], 0, 2)
)
def test_optimised_code(seed: int, depth: int, length: int) -> None:
    compare(seed, depth=depth, length=length)


@pytest.mark.usefixtures("optimised")
def test_optimised_code_of_other_programs() -> None:
    for depth, length in ((0, 200), (3, 0)):
        compare(drawn(f"optimised {depth} {length}"), depth=depth, length=length)


def test_a_kernel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes translate and compile the parts."""
    compiled: list[tuple[int, int]] = []
    original = native.in_processes

    def counted(function: Callable[[T], R], items: Sequence[T], processes: int) -> list[R]:
        compiled.append((len(items), processes))
        return original(function, items, processes)

    monkeypatch.setattr(native, "in_processes", counted)
    monkeypatch.setattr(kernel, "PART_WEIGHT", 10)
    for count in (1, 2, 7):
        monkeypatch.setattr(kernel, "processors", lambda count=count: count)
        compare(300 + count, depth=3)
    assert [processes for _, processes in compiled] == [1, 2, 7]
    assert compiled[0][0] == 1
    assert min(parts for parts, _ in compiled[1:]) > 1


def test_programs_of_another_shape() -> None:
    """New ones in each run with fresh seeds; the message of a failure has the seed."""
    for depth, length in ((0, 200), (1, 0), (3, 0)):
        compare(drawn(f"equal engines {depth} {length}"), depth=depth, length=length)
