# SPDX-License-Identifier: Apache-2.0
"""Compiled programs give the same bits on other CPUs than this one, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gdnbench.sim.compiler import native
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.run import run_ptx
from tests.messages import wording
from tests.sim.compiler.random_programs import RECORD, THREADS, operands, program
from tests.subset import quick


def left(text: str, seed: int, engine: str) -> np.ndarray:
    """The registers that a program leaves."""
    target = np.zeros((THREADS, RECORD), np.uint8)
    run_ptx(text, "k", (1, 1, 1), (THREADS, 1, 1), [operands(seed), target], engine=engine, threads=1)
    return target


@pytest.mark.parametrize(
    ("seed", "depth", "length"), quick([(200, 0, 150), (201, 0, 150), (202, 2, 0)], 0, 2)
)
def test_without_avx512(as_cpu: Callable[[str], None], seed: int, depth: int, length: int) -> None:
    as_cpu("x86-64-v3")
    text = program(seed, depth=depth, length=length)
    want, got = left(text, seed, "interpreter"), left(text, seed, "compiled")
    wrong = np.argwhere(got != want)
    assert not len(wrong), f"seed {seed}: thread and byte of its record {wrong[0]}\n{text}"
    assert not native.has_feature("avx512f")


def test_without_fused_multiply_add(as_cpu: Callable[[str], None]) -> None:
    as_cpu("x86-64-v2")
    text = program(203, depth=0, length=20)
    with pytest.raises(
        UnsupportedError, match=wording("sim.compiler.cpu-unsuitable", missing="avx2, f16c, fma")
    ):
        left(text, 203, "compiled")
    left(text, 203, "interpreter")
