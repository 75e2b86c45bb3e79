# SPDX-License-Identifier: Apache-2.0
"""The commands of `gdnbench` as data, in the order of its help: what docs/commands.md is made of.

Help as it is printed depends on the width of the terminal; this does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from gdnbench.cli.groups import CommandGroup
from gdnbench.cli.help_page import described
from gdnbench.cli.main import app
from gdnbench.cli.parameters import Parameter, parameters


@dataclass(frozen=True, slots=True)
class Command:
    """`words`: what is typed, `gdnbench` first; `text`: what it does, in paragraphs; `status`: its exit
    status. `group`: it stands before other commands and only has options of its own. `under`: its heading in
    the help of its group."""

    words: tuple[str, ...]
    under: str
    text: tuple[str, ...]
    status: str
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]
    group: bool
    extra: bool  # takes options that are not its own
    tree: Any  # of typer, to parse with

    @property
    def name(self) -> str:
        return " ".join(self.words)


def commands() -> Iterator[Command]:
    """`gdnbench` itself, then every command and group, in the order of its help."""
    yield from _commands(typer.main.get_command(app), ("gdnbench",), "", "")


def _commands(tree: Any, words: tuple[str, ...], under: str, status: str) -> Iterator[Command]:
    arguments, options = parameters(tree)
    if not isinstance(tree, CommandGroup):
        text, own = described(tree)
        extra = bool(tree.context_settings.get("ignore_unknown_options"))
        yield Command(
            words, under, tuple(text), own or status, arguments, options, group=False, extra=extra, tree=tree
        )
        return
    status = tree.epilog or status
    yield Command(
        words, under, (tree.help or "",), status, arguments, options, group=True, extra=False, tree=tree
    )
    for heading, entries in tree.headings.items():
        for entry in entries:
            yield from _commands(tree.commands[entry.name], (*words, entry.name), heading, status)
