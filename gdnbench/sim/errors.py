# SPDX-License-Identifier: Apache-2.0
"""The errors of a simulated launch. Faults name the PTX line and the Python source line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the PTX (1-based) with its text, and the source line that its last `.loc` names."""

    line: int
    text: str
    file: str | None = None
    file_line: int | None = None

    def __str__(self) -> str:
        source = f", {self.file}:{self.file_line}" if self.file is not None else ""
        return f"PTX line {self.line} `{self.text}`{source}"


class FaultKind(StrEnum):
    """The rule of the PTX ISA or the machine that a kernel broke."""

    OUT_OF_BOUNDS = "out-of-bounds access"
    MISALIGNED = "misaligned access"
    UNINITIALISED = "uninitialised read"
    TMEM_ACCESS = "TMEM not allocated"
    TMEM_LEAK = "TMEM leaked"
    TMEM_ALLOCATION = "TMEM allocation"
    DESCRIPTOR = "illegal descriptor"
    DIVERGENCE = "divergence at an aligned instruction"
    BUDGET = "launch over budget"
    BARRIER = "barrier misuse"
    EXITED = "shared memory of an exited CTA"
    PAIR = "CTA pair misuse"
    DEADLOCK = "deadlock"
    WGMMA = "wgmma misuse"
    LAUNCH_CONTROL = "cluster launch control misuse"
    BRANCH = "branch out of its table"
    TRAP = "trap"
    ASSERTION = "device assertion failed"
    LIMIT = "limit reached"  # no rule: a bound of the simulator (machine.bounds)


class Error(Exception):
    """Base of every error that a user can meet: the simulator's, and those of a package around it. The text
    says in one line what is wrong, where, and what to do."""


class SimError(Error):
    """Base of every error that the simulator raises on purpose."""


class InputError(SimError, ValueError):
    """An argument or file that cannot be used as given."""


class CannotSimulateError(SimError, RuntimeError):
    """A kernel that the simulator cannot run here."""


class KernelFault(SimError):
    """The kernel did something illegal. `kind` is the rule it broke, `place` the instruction, `thread` the
    CTA, warp and lanes. The first line of the text stands alone; for a deadlock one line per wait follows.
    `found` is the checker's findings before the fault, a `checker.evidence.Evidence`; None if the launch was
    not checked. `skipped` is the faults before it after which the launch went on (`keep_going`)."""

    def __init__(
        self, kind: FaultKind, message: str, place: Place | None = None, thread: str | None = None
    ) -> None:
        self.kind = kind
        self.message = message
        self.place = place
        self.thread = thread
        self.found: tuple[object, ...] | None = None
        self.skipped: tuple[object, ...] = ()
        super().__init__(message)

    def __reduce__(self) -> tuple[type[KernelFault], tuple[object, ...]]:
        return KernelFault, (self.kind, self.message, self.place, self.thread)

    def __str__(self) -> str:
        who = f" in {self.thread}" if self.thread else ""
        where = f" at {self.place}" if self.place else ""
        first, *rest = self.message.split("\n")
        return "\n".join([f"{self.kind}: {first}{who}{where}", *rest])


class UnsupportedError(CannotSimulateError):
    """An instruction, modifier, operand or descriptor bit that the simulator does not model; the text names
    it."""

    def __init__(self, what: str, place: Place | None = None) -> None:
        self.what = what
        self.place = place
        where = f" at {place}" if place else ""
        super().__init__(f"not simulated: {what}{where}")

    def __reduce__(self) -> tuple[type[UnsupportedError], tuple[object, ...]]:
        return UnsupportedError, (self.what, self.place)


class PtxSyntaxError(InputError):
    """Text that is not PTX."""


class LaunchError(InputError):
    """Arguments that do not fit the kernel."""


class ExportError(CannotSimulateError):
    """A compiled kernel without its PTX or host code. The message names the setting that keeps them."""


class CompileRefusedError(CannotSimulateError):
    """A kernel that its compiler refuses: it is wrong, and no machine runs it."""


class CudaCompileError(CannotSimulateError):
    """NVRTC does not compile, such as for an option. The text has the first error, `log` is all that NVRTC
    printed."""

    def __init__(self, message: str, log: str) -> None:
        self.log = log
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CudaCompileError], tuple[object, ...]]:
        return type(self), (str(self), self.log)


class CudaRefusedError(CudaCompileError, CompileRefusedError):
    """CUDA C++ that NVRTC refuses."""


class WorkerError(CannotSimulateError):
    """A worker process that ran some of the CTAs died."""
