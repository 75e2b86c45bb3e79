# SPDX-License-Identifier: Apache-2.0
"""Compares the functions of the installed framework with the signatures that the adapter was written for.

A function is not captured if it lacks a parameter that the adapter needs, or requires one that the adapter
does not know. A call is not recorded if it gives an unknown parameter a value other than its default, whose
effect on the call is unknown. The summary states both, by reason.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gdnbench.capture.adapter import NotCaptured

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """`parameters`: names in order, with defaults, of the newest version read. `needs`: the parameters
    without which a call cannot be recorded. `others`: names passed through `**kwargs`, and former
    parameters."""

    parameters: str
    needs: str
    others: str = ""

    @property
    def names(self) -> frozenset[str]:
        listed = (part.partition("=")[0].strip() for part in self.parameters.split(","))
        return frozenset((*listed, *self.others.split()))


@dataclass(frozen=True, slots=True)
class _Found:
    """An installed function: why it is not captured, and the defaults of its unknown parameters."""

    reason: str | None
    defaults: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Signatures:
    """Signatures of a framework's functions, by name.

    `versions`: the oldest and newest version of `distribution` that they were compared with, on the day
    `read`.
    """

    distribution: str
    versions: tuple[str, str]
    read: str
    functions: Mapping[str, Signature]
    _names: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)
    _found: dict[str, _Found] = field(default_factory=dict, repr=False)

    def copy_unchecked(self) -> Signatures:
        """A copy in which no function has been compared yet."""
        return Signatures(self.distribution, self.versions, self.read, self.functions)

    def compare_function(self, name: str, function: Callable[..., Any]) -> None:
        """Compare the signature known as `name` with the function to be wrapped."""
        signature = self.functions[name]
        here = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind not in _MANY}
        unknown = [p for one, p in here.items() if one not in signature.names]
        missing = [one for one in signature.needs.split() if one not in here]
        forced = [p.name for p in unknown if p.default is p.empty]
        differs = [f"has no parameter {one}" for one in missing]
        differs += [f"asks for a parameter {one} that is not known" for one in forced]
        reason = None
        if differs:
            reason = f"{qualified_name(function)} {' and '.join(differs)}: {self._versions()}"
        self._names[name] = signature.names
        self._found[name] = _Found(reason, {p.name: p.default for p in unknown})

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """NotCaptured for a call that the adapter may misread."""
        found = self._found.get(name)
        if found is None:  # the function was not compared: a wrapper hides it
            hidden = [one for one in self.functions[name].needs.split() if one not in arguments]
            if hidden:
                raise NotCaptured(f"{name} is called without naming {', '.join(hidden)}: {self._versions()}")
            for one in arguments.keys() - self.functions[name].names:
                raise NotCaptured(f"{name} is given {one}, a parameter that capture does not know")
            return
        if found.reason is not None:
            raise NotCaptured(found.reason)
        for one in arguments.keys() - self._names[name]:
            if not _same(arguments[one], found.defaults.get(one)):
                raise NotCaptured(f"{name} is given {one}, a parameter that capture does not know")

    def _versions(self) -> str:
        oldest, newest = self.versions
        return (
            f"{self.distribution} {self._installed()} is here, capture knows {oldest} to {newest};"
            " update gdnbench, or install one of these"
        )

    def _installed(self) -> str:
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return "of an unknown version"


def qualified_name(function: Callable[..., Any]) -> str:
    """The function's name as the record's `implementation` writes it."""
    return f"{function.__module__}.{function.__qualname__}"


def _same(value: Any, default: Any) -> bool:
    """Whether `value` is the default; tensors are not compared by elements."""
    if isinstance(value, bool | int | float | str) and type(value) is type(default):
        return bool(value == default)
    return value is default
