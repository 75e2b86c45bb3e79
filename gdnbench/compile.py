# SPDX-License-Identifier: Apache-2.0
"""Compiles all kernels that an operation's implementation consists of, with options of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdnbench.errors import BadInputError, CannotRunError, Exit, GdnbenchError
from gdnbench.ops import operation
from gdnbench.printable import without_escapes
from gdnbench_kernels.artifacts import ARCHS
from gdnbench_kernels.compiling import ArchError, Program, program
from gdnbench_kernels.source import Source

Sources = Callable[..., Sequence[Source]]

DEFAULT_ARCH = "sm_100a"


class CompileError(GdnbenchError):
    """A kernel that the compiler refuses."""

    exit_code = Exit.MISMATCH


def sources_of(op: str, kernel: str | None = None) -> tuple[str, Sources]:
    """(name, function that makes the sources from options) of a kernel of `op` that is compiled ahead, the
    first of them without a name; BadInputError names those there are."""
    entries = {name: entry.sources for name, entry in operation(op).kernels.items() if entry.sources}
    if kernel is None:
        kernel = next(iter(entries), None)
    if kernel not in entries:
        there = ", ".join(entries) or "none"
        what = "kernels" if kernel is None else f"kernel {kernel!r}"
        raise BadInputError(f"{op} {what}: choose one of those that are compiled ahead of time: {there}")
    module, _, function = entries[kernel].partition(":")
    return kernel, getattr(importlib.import_module(module), function)


def arch_of(op: str, kernel: str, given: str | None) -> str:
    """What to compile a kernel of `op` for: `given`, else the first that it is written for, else sm_100a.
    BadInputError names those that it is written for where `given` is another."""
    archs = operation(op).kernels[kernel].archs
    if given is None:
        return next(iter(archs), DEFAULT_ARCH)
    if given in ARCHS and archs and given not in archs:
        raise BadInputError(
            f"{op} kernel {kernel} is written for {' and '.join(archs)} alone, not for {given};"
            f" give --arch {archs[0]}"
        )
    return given


def compile_programs(
    sources: Sources, options: Mapping[str, Any], arch: str, advance: Callable[[int, int], None]
) -> list[Program]:
    """One program a source, in order; `advance` is told (done, total). BadInputError for options or an arch
    that there are not, CompileError for what does not compile, CannotRunError without a compiler."""
    try:
        wanted = list(sources(**options))
    except ValueError as error:
        raise BadInputError(str(error)) from error
    made = []
    for index, source in enumerate(wanted):
        advance(index, len(wanted))
        try:
            made.append(program(source, arch))
        except ArchError as error:
            raise BadInputError(str(error)) from error
        except ImportError as error:
            raise CannotRunError(str(error)) from error
        except Exception as error:  # tracing runs the kernel's own Python, which may raise anything
            said = without_escapes(str(error)).strip()  # CuTe DSL's are in colour
            first = next(iter(said.splitlines()), "").removeprefix("error: ")
            raise CompileError(
                f"{source.name} does not compile for {arch}: {type(error).__name__}: {first}"
            ) from error
    return made
