"""The commands of `gdnbench` as data: what each takes, read from its function and not from printed help.

Help as it is printed depends on the width of the terminal and on the release of typer. Types, defaults and
help are therefore those of the functions' signatures; only how an option is spelt is asked of typer's tree.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import typer
from typer.models import OptionInfo, ParameterInfo

from gdnbench.cli.main import app

FLAG = "nothing"
TYPES = {str: "text", int: "integer", float: "number", Path: "path"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or an option. `takes`: what kind of value; `default`: as it is typed, "" where
    there is none or the help says it."""

    spellings: tuple[str, ...]
    takes: str
    default: str
    required: bool
    repeats: bool
    help: str


@dataclass(frozen=True, slots=True)
class Command:
    """`words`: what is typed, `gdnbench` first; `text`: what it does, in paragraphs; `status`: its exit
    status. `group`: it stands before other commands and only has options of its own."""

    words: tuple[str, ...]
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
    yield from _group(app, typer.main.get_command(app), ("gdnbench",), "")


def _group(group: typer.Typer, tree: Any, words: tuple[str, ...], status: str) -> Iterator[Command]:
    status = str(group.info.epilog or status)
    callback = group.registered_callback.callback if group.registered_callback else None
    arguments, options = _parameters(callback, tree)
    text = (str(group.info.help or ""),)
    yield Command(words, text, status, arguments, options, group=True, extra=False, tree=tree)
    functions = {
        one.name or str(one.callback.__name__).replace("_", "-"): one.callback
        for one in group.registered_commands
        if one.callback
    }
    groups = {one.name: one.typer_instance for one in group.registered_groups}
    for name, below in tree.commands.items():
        if below.hidden:
            continue
        if name in groups:
            yield from _group(groups[name], below, (*words, name), status)
        else:
            yield _command(functions[name], below, (*words, name), status)


def _command(function: Callable[..., Any], tree: Any, words: tuple[str, ...], status: str) -> Command:
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    # Of its own where it says one; what all commands have otherwise.
    own = [one for one in paragraphs if "exit status" in one.lower()]
    text = tuple(one for one in paragraphs if one not in own)
    arguments, options = _parameters(function, tree)
    extra = bool(tree.context_settings.get("ignore_unknown_options"))
    return Command(words, text, " ".join(own) or status, arguments, options, False, extra, tree)


def _parameters(
    function: Callable[..., Any] | None, tree: Any
) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    if function is None:
        return (), ()
    hints = typing.get_type_hints(function, include_extras=True)
    signature = inspect.signature(function).parameters
    arguments, options = [], []
    for one in tree.params:
        if one.name not in signature or getattr(one, "hidden", False):
            continue  # --help, which typer adds
        made = _parameter(one, hints[one.name], signature[one.name].default)
        (options if one.param_type_name == "option" else arguments).append(made)
    return tuple(arguments), tuple(options)


def _parameter(parameter: Any, hint: Any, default: Any) -> Parameter:
    info = default if isinstance(default, ParameterInfo) else None
    if typing.get_origin(hint) is typing.Annotated:
        hint, *annotations = typing.get_args(hint)
        info = next(one for one in annotations if isinstance(one, ParameterInfo))
    elif info is not None:
        default = info.default
    assert info is not None, parameter.name
    required = default is inspect.Parameter.empty or default is ...
    plain, repeats = _plain(hint)
    flag = isinstance(info, OptionInfo) and plain is bool
    spellings = (*parameter.opts, *parameter.secondary_opts)
    if not isinstance(info, OptionInfo):
        spellings = ((info.metavar or parameter.name).strip("[].").upper(),)
    shown = ""
    if flag and parameter.secondary_opts and default is not None:
        shown = (parameter.opts if default else parameter.secondary_opts)[0]
    elif not (required or flag or default is None):
        shown = ",".join(map(str, default)) if isinstance(default, (list, tuple)) else f"{default}"
    return Parameter(
        spellings, FLAG if flag else _takes(plain, info), shown, required, repeats, info.help or ""
    )


def _plain(hint: Any) -> tuple[Any, bool]:
    """`list[X] | None` -> (X, True), `X | None` -> (X, False)."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) in (list, tuple):
        return typing.get_args(hint)[0], True
    return hint, False


def _takes(plain: Any, info: ParameterInfo) -> str:
    if typing.get_origin(plain) is typing.Literal:
        return " or ".join(typing.get_args(plain))
    name = TYPES.get(plain, getattr(plain, "__name__", str(plain)))
    if isinstance(info, OptionInfo) and info.metavar:
        name = f"{info.metavar} ({name})" if plain is not str else info.metavar
    low = f", {info.min:g} or more" if info.min is not None else ""
    high = f", {info.max:g} or less" if info.max is not None else ""
    return f"{name}{low}{high}"
