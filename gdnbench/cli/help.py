# SPDX-License-Identifier: Apache-2.0
"""`gdnbench help`: the help of a command, by its words."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from gdnbench.cli.help_page import HELP_ALL
from gdnbench.errors import BadInputError


def complete_words(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The commands that may follow the words on the line."""
    with contextlib.suppress(BadInputError):
        group = find(context.find_root(), context.params.get("words") or []).command
        headings = getattr(group, "headings", {}).values()
        return [(entry.name, entry.summary) for entries in headings for entry in entries]
    return []


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Command to explain.", autocompletion=complete_words),
    ] = None,
    all_options: Annotated[
        bool, typer.Option("--all", help="Explain every option, as COMMAND --help-all does.")
    ] = False,
) -> None:
    """Explain a command, as COMMAND --help does; without a command, list the commands."""
    explained = find(context.find_root(), words or [])
    explained.meta[HELP_ALL] = all_options
    typer.echo(explained.get_help())


def find(root: Any, words: list[str]) -> Any:
    """A context of the command that `words` name; BadInputError, with the commands there are."""
    context = root
    for word in words:
        commands = getattr(context.command, "commands", {})
        if word not in commands:
            there = f"; there are {', '.join(commands)}" if commands else ", which has no commands of its own"
            raise BadInputError(f"there is no command {word!r} of {context.command_path}{there}")
        context = type(root)(commands[word], parent=context, info_name=word)
    return context
