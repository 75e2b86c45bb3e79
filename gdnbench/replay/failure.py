# SPDX-License-Identifier: Apache-2.0
"""A kernel that left nothing to compare: which outcome that is, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdnbench.error_frames import KernelError, frame_of_error, traceback_of_error
from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, EXPECTED_ERRORS, GdnbenchError, StoreError
from gdnbench.printable import without_escapes
from gdnbench.report.outcome import Outcome
from gdnbench.sim.errors import CompileRefusedError, SimError
from gdnbench_kernels.contract import ContractError

if TYPE_CHECKING:
    from gdnbench.sim import Finding


@dataclass(frozen=True, slots=True)
class Failure:
    """A kernel that left nothing to compare: its outcome and the reason in one line. `imported`: the kernel
    could be called. `checked`: the checker's findings up to then, None if the checker did not run. `error`:
    where the kernel failed, None if nothing is known of that."""

    outcome: Outcome
    reason: str
    imported: bool = True
    checked: tuple[Finding, ...] | None = None
    error: KernelError | None = None


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


# What torch and Triton say to a kernel that asks for a GPU or a compiler that is not there: (exception, start
# of the message).
_LACKING = (
    (RuntimeError, "No CUDA GPUs are available"),
    (RuntimeError, "Found no NVIDIA driver"),
    (AssertionError, "Torch not compiled with CUDA enabled"),
    (RuntimeError, "0 active drivers"),
    (RuntimeError, "Failed to find C compiler"),
    (RuntimeError, "Cannot find ptxas"),
    (RuntimeError, "Ninja is required to load C++ extensions"),
    (OSError, "CUDA_HOME environment variable is not set"),
    (Exception, "InvalidCxxCompiler: "),
)


def classify(error: BaseException) -> Outcome:
    """The outcome of a record whose binding or kernel raised `error`."""
    if isinstance(error, SimError):  # of the kernel under test: an illegal act, or something not simulated
        if isinstance(error, CompileRefusedError):
            return Outcome.COMPILE_FAILURE
        return Outcome.UNSUPPORTED if isinstance(error, CANNOT_RUN_ERRORS) else Outcome.CRASH
    if isinstance(error, (*BAD_INPUT_ERRORS, StoreError)):
        return Outcome.REFUSED
    if isinstance(error, (ImportError, *CANNOT_RUN_ERRORS)) or any(
        isinstance(error, kind) and _message(error).startswith(start) for kind, start in _LACKING
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
    """An exception in one line: type, message, and the line of the kernel's own code that raised it."""
    return describe_error(error).reason


def describe_error(error: BaseException) -> KernelError:
    """The same with the whole traceback. An error of the simulator says itself where in the kernel it was
    met, and all that a deadlock's waits wait for. An exception without a readable message has its type
    alone."""
    text = _text(error)
    if isinstance(error, SimError):
        return KernelError(text, None, traceback_of_error(error))
    frame = frame_of_error(error)
    if frame is not None and frame.is_harness and _on_purpose(error):
        return KernelError(text.removeprefix("NotImplementedError: "), None, traceback_of_error(error))
    return KernelError(text, frame, traceback_of_error(error))


def _on_purpose(error: BaseException) -> bool:
    """Whether this package raises such an error where a kernel or call is not as it should be."""
    ours = type(error).__module__.partition(".")[0] in ("gdnbench", "gdnbench_kernels")
    return ours or isinstance(error, (*EXPECTED_ERRORS, NotImplementedError))


def _message(error: BaseException) -> str:
    """What the exception says, empty if that cannot be read; a syntax error without its place."""
    try:
        return without_escapes(error.msg if isinstance(error, SyntaxError) else str(error)).strip()
    except (Exception, SystemExit):
        return ""


def _text(error: BaseException) -> str:
    lines = _message(error).splitlines()
    if len(lines) > 1 and lines[0].endswith(":"):  # as Triton's "at 4:29:" with the source below it
        lines[0] = f"{lines[0]} {lines[-1].strip()}"
    said = "; ".join(map(str.strip, lines if isinstance(error, SimError) else lines[:1]))
    if isinstance(error, GdnbenchError):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
