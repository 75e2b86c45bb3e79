# SPDX-License-Identifier: Apache-2.0
"""Commands and groups of commands: built when they are looked up, with the help of this package."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from gdnbench.cli.completion import complete_parameters, items
from gdnbench.cli.help_page import HELP_ALL, command_page, group_page
from gdnbench.cli.pipes import reader_may_leave
from gdnbench.cli.registry import Entry
from gdnbench.errors import Exit

HELP_NAMES = ["-h", "--help", "--help-all"]
DECIMAL = re.compile(r"[0-9]{1,18}", re.ASCII)
FOREIGN_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}  # the operation's own options


class Parsing(TyperCommand if TYPE_CHECKING else object):  # type: ignore[misc]
    """What commands and groups do beside typer when a line is parsed."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[HELP_ALL] = asks_for_all(args)
        with as_typed(self.get_params(ctx) if ctx.resilient_parsing else ()):
            return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """All options and arguments, and --help. Flags that typer adds are false unless given: it converts
        None too, by a package that takes longer to import than the help to print."""
        parameters: list[Any] = super().get_params(ctx)
        for one in parameters:
            if one.default is None and getattr(one, "is_flag", False) and not one.expose_value:
                one.default = False
        return parameters


class Command(Parsing, TyperCommand):
    """A command whose help is `help_page`'s."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_page(self, ctx, formatter.width))


class CommandGroup(Parsing, TyperGroup):
    """A group of the commands in `headings`, which a subclass gives, by the heading that they stand under."""

    headings: ClassVar[Mapping[str, Sequence[Entry]]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = LazyCommands(self.headings)  # type: ignore[assignment]  # nothing changes it

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Without a command: the help, on stderr, which typer would make an error of."""
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help().rstrip("\n"), file=sys.stderr)
            ctx.exit(Exit.BAD_INPUT)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(group_page(self, ctx, formatter.width))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The names of the commands, without importing one; the options of the group as typer has them."""
        if incomplete.startswith("-"):
            return TyperCommand.shell_complete(self, ctx, incomplete)
        entries = (entry for group in self.headings.values() for entry in group)
        return items([(entry.name, entry.summary) for entry in entries], incomplete)


class LazyCommands(Mapping[str, Any]):
    """The commands of typer's tree by name. One is built, and its module imported, when it is looked up."""

    def __init__(self, headings: Mapping[str, Sequence[Entry]]) -> None:
        self._entries = {entry.name: entry for entries in headings.values() for entry in entries}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = build(self._entries[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def build(entry: Entry) -> Any:
    """The command or group of an entry in typer's tree."""
    found = entry.load()
    if not isinstance(found, typer.Typer):
        settings = FOREIGN_WORDS if entry.foreign else None
        function = reader_may_leave(found) if entry.writes else found
        found = typer.Typer(add_completion=False, rich_markup_mode=None)
        found.command(entry.name, cls=Command, context_settings=settings)(function)
    tree = typer.main.get_command(found)
    tree.name = entry.name
    complete_parameters(tree.params)
    for parameter in tree.params:
        convert_at_once(parameter)
        refuse_streams(parameter)
    return tree


def refuse_streams(parameter: Any) -> None:
    """Has a parameter that names a file or folder refuse "-", which other programs take for stdin or stdout:
    a file of that name would be read or written."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)  # typer 0.29 or later
    named = getattr(getattr(parameter, "type", None), "name", "")  # earlier ones
    if kind is not Path and named != "path" and parameter.name not in ("out", "store"):
        return
    converted = parameter.process_value

    def process_value(context: Any, value: Any) -> Any:
        if value == "-":
            reason = "- is neither stdin nor stdout here; name a file, as ./- if it is called so"
            raise typer.BadParameter(reason, ctx=context, param=parameter)
        return converted(context, value)

    parameter.process_value = process_value


def convert_at_once(parameter: Any) -> None:
    """Has a parameter take text, words of an enumeration, decimal integers, defaults and no value without
    typer, which converts them by pydantic: that takes longer to import than most stores to list. Any other
    value is typer's to convert, or to refuse."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)  # typer 0.29 or later
    if not isinstance(kind, type) or parameter.multiple or parameter.nargs != 1:
        return
    converted = parameter.process_value

    def process_value(context: Any, value: Any) -> Any:
        known = _converted(value, kind, parameter)
        if known is None and (value is not None or parameter.required):
            return converted(context, value)
        return parameter.callback(context, parameter, known) if parameter.callback else known

    parameter.process_value = process_value


def _converted(value: Any, kind: type[Any], parameter: Any) -> Any:
    """`value` as a `kind` if that takes no thinking, else None."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        return None
    if issubclass(kind, Enum):
        return next((one for one in kind if one.value == value), None)
    if kind is not int or not DECIMAL.fullmatch(value):
        return None
    low, high, number = parameter.min, parameter.max, int(value)
    return number if (low is None or low <= number) and (high is None or number <= high) else None


@contextmanager
def as_typed(parameters: Sequence[Any]) -> Iterator[None]:
    """Leaves the values of parameters as they are typed. To complete a line nothing is to be converted, which
    takes typer longer to import than all the rest, and no callback may open a machine or print a version."""
    kept = [(one, vars(one).get("process_value")) for one in parameters]
    for one in parameters:
        one.process_value = lambda ctx, value: value
    try:
        yield
    finally:
        for one, process_value in kept:
            if process_value is None:
                del one.process_value
            else:
                one.process_value = process_value


def asks_for_all(words: Sequence[str]) -> bool:
    """Whether --help-all is among the words of this program, which end at `--`."""
    own = list(words)
    return "--help-all" in (own[: own.index("--")] if "--" in own else own)
