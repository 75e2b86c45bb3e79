# SPDX-License-Identifier: Apache-2.0
"""Which outcome an exception is, and the one exit code that many outcomes come to."""

from __future__ import annotations

import pytest

from gdnbench.errors import BadInputError, CannotRunError, Exit, StoreError
from gdnbench.replay.failure import CompileFailure, classify
from gdnbench.report.outcome import Outcome, exit_code
from gdnbench.sim.errors import CompileRefusedError
from gdnbench_kernels.contract import ContractError

CODES = {
    Outcome.PASS: 0,
    Outcome.MISMATCH: 1,
    Outcome.CHECK: 1,
    Outcome.CRASH: 1,
    Outcome.HANG: 1,
    Outcome.COMPILE_FAILURE: 1,
    Outcome.UNSUPPORTED: 3,
    Outcome.MISSING: 3,
    Outcome.NOT_COMPARABLE: 3,
    Outcome.REFUSED: 2,
}


@pytest.mark.parametrize("outcome", Outcome)
def test_exit_code_of_each(outcome: Outcome) -> None:
    assert exit_code([outcome]) == CODES[outcome]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], Exit.PASS),
        ([Outcome.PASS, Outcome.UNSUPPORTED], Exit.CANNOT_RUN),
        ([Outcome.REFUSED, Outcome.PASS], Exit.BAD_INPUT),
        ([Outcome.REFUSED, Outcome.MISSING], Exit.CANNOT_RUN),
        ([Outcome.REFUSED, Outcome.MISSING, Outcome.HANG, Outcome.PASS], Exit.MISMATCH),
    ],
)
def test_a_mismatch_beats_cannot_run_beats_bad_input(outcomes: list[Outcome], code: Exit) -> None:
    assert exit_code(outcomes) is code


class CompilationError(Exception):
    """Named and placed as triton's."""

    __module__ = "triton.compiler.errors"


class OfNoCompiler(Exception):
    """A compiler's module, another name: not a failure to compile."""

    __module__ = "triton.runtime.errors"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("x"), Outcome.CRASH),
        (AssertionError(), Outcome.CRASH),
        (MemoryError(), Outcome.CRASH),
        (ImportError("x"), Outcome.MISSING),
        (ModuleNotFoundError("x"), Outcome.MISSING),
        (CannotRunError("x"), Outcome.MISSING),
        (RuntimeError("No CUDA GPUs are available"), Outcome.MISSING),
        (AssertionError("Torch not compiled with CUDA enabled"), Outcome.MISSING),
        (RuntimeError("0 active drivers ([]). There should only be one."), Outcome.MISSING),
        (NotImplementedError("x"), Outcome.UNSUPPORTED),
        (ContractError("x"), Outcome.UNSUPPORTED),
        (CompileFailure("x"), Outcome.COMPILE_FAILURE),
        (SyntaxError("x"), Outcome.COMPILE_FAILURE),
        (CompilationError("x"), Outcome.COMPILE_FAILURE),
        (CompileRefusedError("x"), Outcome.COMPILE_FAILURE),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), Outcome.MISSING),
        (OSError("CUDA_HOME environment variable is not set. Please set it"), Outcome.MISSING),
        (OfNoCompiler("x"), Outcome.CRASH),
        (BadInputError("x"), Outcome.REFUSED),
        (StoreError("x"), Outcome.REFUSED),
    ],
)
def test_classify(error: Exception, outcome: Outcome) -> None:
    assert classify(error) is outcome
