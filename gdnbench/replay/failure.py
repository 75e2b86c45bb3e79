"""A kernel that left nothing to compare: which outcome that is, and why."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, StoreError
from gdnbench.report.outcome import Outcome
from gdnbench.sim.errors import SimError
from gdnbench_kernels.contract import ContractError

if TYPE_CHECKING:
    from gdnbench.sim import Finding


@dataclass(frozen=True, slots=True)
class Failure:
    """A kernel that left nothing to compare: its outcome and the reason in one line. `imported`: the kernel
    could be called. `checked`: the checker's findings up to then, None if the checker did not run."""

    outcome: Outcome
    reason: str
    imported: bool = True
    checked: tuple[Finding, ...] | None = None


class CompileFailure(RuntimeError):
    """A kernel may raise this where its compiler refuses it."""


# Compilers are not imported to name their exceptions: (module prefix, class name), of the error or a base of
# it.
_COMPILER_ERRORS = (
    ("triton.", "CompilationError"),
    ("triton.", "CompileTimeAssertionFailure"),
    ("triton.", "OutOfResources"),
    ("triton.", "PTXASError"),
    ("cutlass.", "DSLRuntimeError"),
    ("cutlass.", "DSLAstPreprocessorError"),
    ("cutlass.", "DSLUserCodeError"),
    ("torch._dynamo.", "TorchDynamoException"),
    ("torch._dynamo.", "BackendCompilerFailed"),
    ("torch._inductor.", "InductorError"),
)


# What torch and Triton say to a kernel that asks for a GPU that is not there: (exception, start of message).
_NO_DEVICE = (
    (RuntimeError, "No CUDA GPUs are available"),
    (RuntimeError, "Found no NVIDIA driver"),
    (AssertionError, "Torch not compiled with CUDA enabled"),
    (RuntimeError, "0 active drivers"),
)


def classify(error: BaseException) -> Outcome:
    """The outcome of a record whose binding or kernel raised `error`."""
    if isinstance(error, SimError):  # of the kernel under test: an illegal act, or something not simulated
        return Outcome.UNSUPPORTED if isinstance(error, CANNOT_RUN_ERRORS) else Outcome.CRASH
    if isinstance(error, (*BAD_INPUT_ERRORS, StoreError)):
        return Outcome.REFUSED
    if isinstance(error, (ImportError, *CANNOT_RUN_ERRORS)) or any(
        isinstance(error, kind) and str(error).startswith(start) for kind, start in _NO_DEVICE
    ):
        return Outcome.MISSING
    if isinstance(error, NotImplementedError | ContractError):
        return Outcome.UNSUPPORTED
    if isinstance(error, CompileFailure | SyntaxError):
        return Outcome.COMPILE_FAILURE
    for kind in type(error).__mro__:
        if any(
            kind.__module__.startswith(module) and kind.__name__ == name for module, name in _COMPILER_ERRORS
        ):
            return Outcome.COMPILE_FAILURE
    return Outcome.CRASH


def describe(error: BaseException) -> str:
    """An exception in one line: type, message, and the line that raised it. An error of the simulator says
    itself where in the kernel it was met, and all that a deadlock's waits wait for. An exception without a
    readable message has its type alone."""
    try:
        lines = str(error).strip().splitlines()
    except (Exception, SystemExit):
        lines = []
    said = "; ".join(map(str.strip, lines if isinstance(error, SimError) else lines[:1]))
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    frames = [] if isinstance(error, SimError) else traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
