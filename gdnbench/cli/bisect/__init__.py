# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect`: where does a numerical regression come from? One file an axis."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from gdnbench.cli.bisect.common import STATE_HELP, print_progress
from gdnbench.cli.groups import CommandGroup
from gdnbench.cli.registry import AXES


class Axes(CommandGroup):
    """`gdnbench bisect`. The command of an axis takes the arguments that its session keeps."""

    headings: ClassVar = {"Commands": AXES}


app = typer.Typer(
    cls=Axes,
    help="Find where a regression comes from: one axis a command.",
    epilog="Exit status: 0 nothing is wrong, 1 a cause was found, or an endpoint is flaky, 2 bad input,"
    " 3 cannot run here.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def resumed(
    context: typer.Context,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the bisection that was interrupted last.")
    ] = False,
    state: Annotated[Path | None, typer.Option(help=STATE_HELP)] = None,
) -> None:
    """Runs before every axis, and instead of one with --resume."""
    from gdnbench.bisect.session import STATE, load_unfinished
    from gdnbench.errors import BadInputError

    if not resume:
        if context.invoked_subcommand is None:
            raise BadInputError("gdnbench bisect needs an axis or --resume; see gdnbench bisect --help")
        if state is not None:
            raise BadInputError("--state before an axis is for --resume; give it after the axis")
        return
    if context.invoked_subcommand is not None:
        raise BadInputError("--resume goes on with what was asked for: give no axis beside it")
    name, arguments = load_unfinished(state or STATE)
    print_progress(f"going on with bisect {name} {arguments.get('store', '')}")
    run_axis(name, {**arguments, "state": state or STATE})


def run_axis(name: str, arguments: Mapping[str, Any]) -> None:
    """The command of an axis with the arguments that its session kept."""
    from gdnbench.errors import BadInputError, StoreError

    entries = {entry.name: entry for entry in AXES}
    if name not in entries:
        raise BadInputError(f"there is no axis {name!r}; there are {', '.join(entries)}")
    axis, problem = entries[name].load(), ""
    try:
        inspect.signature(axis).bind(**arguments)
    except TypeError as error:
        problem = str(error)
    hints = typing.get_type_hints(axis)
    wrong = [one for one, value in arguments.items() if one in hints and not _fits(value, hints[one])]
    if wrong:
        problem = f"{wrong[0]} is {arguments[wrong[0]]!r}"
    if problem:
        raise StoreError(
            f"what was kept is no bisect {name} of this version, {problem}; give the command again"
        )
    axis(**arguments)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value, as JSON keeps it, is one of a command's parameter. Paths are text there."""
    if isinstance(hint, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(one, typing.get_args(hint)[0]) for one in value)
    if isinstance(value, str):
        return hint in (str, Path) and "\0" not in value
    return type(value) is hint or (hint is Path and isinstance(value, Path))
