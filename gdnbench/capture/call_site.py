# SPDX-License-Identifier: Apache-2.0
"""A captured function and its parameters: what every call of it has in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gdnbench.capture.adapter import Adapter, Target, operations_of


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameter names of a wrapped function."""

    positional: tuple[str, ...]
    defaults: dict[str, Any]

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> Parameters:
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return cls(
            positional=tuple(p.name for p in named if p.kind is not p.KEYWORD_ONLY),
            defaults={p.name: p.default for p in named if p.default is not p.empty},
        )

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        # The function itself reports arguments that do not fit its signature.
        found = self.defaults.copy()
        found.update(zip(self.positional, args, strict=False))
        found.update(kwargs)
        return found


@dataclass(frozen=True, slots=True)
class CallSite:
    """A wrapped function, its parameter names, and the operations that its calls can be (None: unknown)."""

    adapter: Adapter
    target: Target
    function: Callable[..., Any]
    parameters: Parameters
    implementation: str | None
    operations: frozenset[str] | None

    @classmethod
    def from_function(cls, adapter: Adapter, target: Target, function: Callable[..., Any]) -> CallSite:
        return cls(
            adapter=adapter,
            target=target,
            function=function,
            parameters=Parameters.from_function(function),
            implementation=adapter.implementation(function),
            operations=operations_of(adapter, target),
        )

    def layer_named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | int | None:
        """The layer that the call's arguments name; None where the adapter knows none."""
        if getattr(self.adapter, "layer", None) is None:
            return None
        found: str | int | None = self.adapter.layer_named(  # type: ignore[attr-defined]
            self.arguments(args, kwargs)
        )
        return found

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return self.parameters.arguments(args, kwargs)
