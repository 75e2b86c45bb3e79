# SPDX-License-Identifier: Apache-2.0
"""The arguments and options of a command as data: what its help and the page of all commands are made of.

Types, defaults and help texts are those of the function's signature, which do not depend on the release of
typer; typer's tree only says how an option is spelt.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union

from typer.models import OptionInfo, ParameterInfo

from gdnbench.cli.headings import PLACEHOLDERS

FLAG = "nothing"
TYPES = {str: "text", int: "integer", float: "number", Path: "path"}
BY_TYPE = {int: "N", float: "X", Path: "PATH"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or an option. `takes`: what kind of value, in words; `value`: what stands for it in a line
    of usage, "" for a flag; `default`: as it is typed, "" where there is none or the help says it; `panel`:
    the heading that it stands under, "" if it has none of its own."""

    name: str
    spellings: tuple[str, ...]
    takes: str
    value: str
    default: str
    required: bool
    repeats: bool
    help: str
    panel: str

    @property
    def usage(self) -> str:
        """An argument in a line of usage: STORE, [RECORDS] or COMMAND..."""
        shown = self.spellings[0] + "..." * self.repeats
        return shown if self.required else f"[{shown}]"


def parameters(tree: Any) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """The arguments and the options of a command, or a group, of typer's tree, without --help."""
    function = inspect.unwrap(tree.callback)
    hints = typing.get_type_hints(function, include_extras=True)
    signature = inspect.signature(function).parameters
    arguments: list[Parameter] = []
    options: list[Parameter] = []
    for one in tree.params:
        if getattr(one, "hidden", False):
            continue
        if one.name not in signature:  # an option that typer adds
            options.append(Parameter(one.name, tuple(one.opts), FLAG, "", "", False, False, one.help, ""))
            continue
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
        shown = ",".join(map(str, default)) if isinstance(default, (list, tuple)) else _typed(default)
    return Parameter(
        parameter.name,
        spellings,
        FLAG if flag else _takes(plain, info),
        "" if flag else _value(plain, info, parameter.opts[0], parameter.name),
        shown,
        required,
        repeats,
        info.help or "",
        getattr(info, "rich_help_panel", None) or "",
    )


def _typed(default: Any) -> str:
    """A default as it is typed: 600.0 -> "600"."""
    return f"{default:g}" if isinstance(default, float) else f"{default}"


def _plain(hint: Any) -> tuple[Any, bool]:
    """`list[X] | None` -> (X, True), `X | None` -> (X, False)."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) in (list, tuple):
        return typing.get_args(hint)[0], True
    return hint, False


def _takes(plain: Any, info: ParameterInfo) -> str:
    if words := _words(plain):
        return " or ".join(words)
    name = TYPES.get(plain, getattr(plain, "__name__", str(plain)))
    if isinstance(info, OptionInfo) and info.metavar:
        name = f"{info.metavar} ({name})" if plain is not str else info.metavar
    low = f", {info.min:g} or more" if info.min is not None else ""
    high = f", {info.max:g} or less" if info.max is not None else ""
    return f"{name}{low}{high}"


def _value(plain: Any, info: ParameterInfo, spelling: str, name: str) -> str:
    if info.metavar:
        return info.metavar
    if spelling == "--k" and plain is float:  # one factor for all tensors
        return "K"
    known = PLACEHOLDERS.get(spelling) or BY_TYPE.get(plain)
    return "|".join(_words(plain)) or known or name.upper().replace("_", "-")


def _words(plain: Any) -> tuple[str, ...]:
    """The words that a parameter may be, if it is one of few."""
    if typing.get_origin(plain) is typing.Literal:
        return tuple(map(str, typing.get_args(plain)))
    if isinstance(plain, type) and issubclass(plain, Enum):
        return tuple(str(one.value) for one in plain)
    return ()
