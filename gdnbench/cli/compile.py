# SPDX-License-Identifier: Apache-2.0
"""`gdnbench compile`: an operation's kernels compiled ahead of time, and what they take of the hardware."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdnbench.cli.arguments import option_texts
from gdnbench.cli.console import print_json, print_note, progress, table
from gdnbench.errors import BadInputError, Exit

if TYPE_CHECKING:
    from gdnbench_kernels.compiling import Program


def compile(
    context: typer.Context,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Compile for sm_90a, sm_100a, sm_100f or sm_103a. Default: sm_100a (Hopper kernels: sm_90a)."
        ),
    ] = None,
    op: Annotated[str, typer.Option(help="Operation whose kernels to compile.")] = "gdn_prefill",
    kernel: Annotated[
        str | None, typer.Option(help="Compile this kernel of the operation. Default: the first.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FOLDER",
            help="Write object, C header, cubin and PTX of each kernel into this folder.",
        ),
    ] = None,
    budget: Annotated[
        Path | None,
        typer.Option(help="Compare with this earlier output of --json; exit 1 if a kernel needs more."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Compile an operation's kernels, without a GPU, with the operation's options such as --heads 16.

    `gdnbench compile --options` lists them with their defaults and meanings. Registers, spills, stack,
    shared memory, tensor memory and instruction counts of each kernel are printed.

    Exit status: 0 compiled; 1 a kernel does not compile, spills, is over a limit, or is worse than the
    budget; 2 bad input; 3 there is no compiler.
    """
    from gdnbench.compile import arch_of, compile_programs, sources_of
    from gdnbench.kernel_figures import figures, limits, problems
    from gdnbench.options import describe_options, option_defaults, parse_options

    if out == "":  # which as a path would be the current folder
        raise BadInputError("-o is empty; it names a folder")
    name, sources = sources_of(op, kernel)
    if context.args == ["--options"]:
        print(describe_options(sources))
        return
    arch = arch_of(op, name, arch)
    options = parse_options(sources, option_texts(context.args), f"{op} kernel {name}", "compile")
    whole = option_defaults(sources) | options
    earlier = None if budget is None else _read(budget, {"op": op, "kernel": name, "arch": arch}, whole)
    # What the compiler prints is no part of the result.
    with progress("compile") as advance, contextlib.redirect_stdout(sys.stderr):
        programs = compile_programs(sources, options, arch, advance)
        found = [figures(program) for program in programs]
    if out is not None:
        _write(programs, Path(out))
    rows = [kernel_figures.as_json() for kernel_figures in found]
    if json:
        print_json({"op": op, "kernel": name, "arch": arch, "options": whole, "kernels": rows})
    else:
        headers = tuple(rows[0])
        print(table(headers, [tuple(row.values()) for row in rows], right=headers[1:]))
    wrong = [line for one in found for line in limits(one)] if earlier is None else problems(found, earlier)
    for line in wrong:
        print_note(f"gdnbench: {line}")
    raise typer.Exit(Exit.MISMATCH if wrong else Exit.PASS)


def _read(budget: Path, what: Mapping[str, str], options: Mapping[str, Any]) -> Any:
    """The budget; BadInputError if it is none, or one of something else than `what` with `options`."""
    from gdnbench.kernel_figures import figures_in

    try:
        earlier = json_module.loads(budget.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"--budget {budget}: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInputError(f"--budget {budget} is no JSON: {error}") from None
    figures_in(earlier)
    # An option that the budget does not know was added since, and had its default.
    given, recorded = {**options, **what}, {**(earlier.get("options") or {}), **earlier}
    for name, value in given.items():
        if recorded.get(name, value) != value:
            raise BadInputError(f"--budget {budget} is of {name} {recorded[name]}, not {value}")
    return earlier


def _write(programs: Sequence[Program], folder: Path) -> None:
    from gdnbench_kernels.compiling import export

    try:
        for program in programs:
            export(program, folder)
    except OSError as error:
        raise BadInputError(f"-o {folder}: {error.strerror or error}") from None
