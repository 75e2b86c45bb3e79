# SPDX-License-Identifier: Apache-2.0
"""Replaces functions in modules and classes by wrappers, and restores them.

Functions that adapters record are named exactly. Functions that are only counted are found by globs among
those that a module defines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import FunctionType, ModuleType
from typing import Any

from gdnbench.capture.adapter import Adapter, Target
from gdnbench.capture.adapters.uncaptured import UncapturedFunctions

Wrap = Callable[[Adapter, Target, Callable[..., Any]], Callable[..., Any]]
WrapUncaptured = Callable[[UncapturedFunctions, Target, Callable[..., Any]], "Callable[..., Any] | None"]
"""Makes the wrapper that counts a function's calls; None if `--target` does not select it."""
AfterImport = Callable[[ModuleType], None]


@dataclass(frozen=True, slots=True)
class Patch:
    """A function to replace, and the factory of its wrapper."""

    adapter: Adapter
    target: Target
    wrap: Wrap


@dataclass(frozen=True, slots=True)
class _Replaced:
    holder: Any
    name: str
    original: Callable[..., Any]
    wrapper: Callable[..., Any]


class ImportPatches(Mapping[str, AfterImport]):
    """By module name: the function to call after the module's import, for each module that has a patch."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher

    def __getitem__(self, name: str) -> AfterImport:
        if self._patcher.concerns(name):
            return self._patcher.patch_module
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """The modules that are named exactly."""
        return iter(self._patcher.modules)

    def __len__(self) -> int:
        return len(self._patcher.modules)


class Patcher:
    """Applies patches to modules as they are imported, and calls `imported` with the name of each module of a
    patch.

    Calls `failed` with one line for each function that cannot be patched; raises nothing. A name that a
    release of the framework lacks, or that is None, is no failure. `uncaptured` functions are wrapped by
    `wrap_uncaptured`.
    """

    def __init__(
        self,
        patches: Iterable[Patch],
        *,
        imported: Callable[[str], None],
        failed: Callable[[str], None],
        uncaptured: Iterable[UncapturedFunctions] = (),
        wrap_uncaptured: WrapUncaptured | None = None,
    ) -> None:
        self._by_module: dict[str, list[Patch]] = {}
        for patch in patches:
            self._by_module.setdefault(patch.target.module, []).append(patch)
        self._by_package: dict[str, list[UncapturedFunctions]] = {}
        for entry in uncaptured:
            self._by_package.setdefault(entry.package, []).append(entry)
        self._wrap_uncaptured = wrap_uncaptured
        self._imported = imported
        self._failed = failed
        self._replaced: list[_Replaced] = []

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the patches."""
        return tuple(self._by_module)

    @property
    def after_import(self) -> Mapping[str, AfterImport]:
        return ImportPatches(self)

    def concerns(self, module: str) -> bool:
        """Whether the module of this name has functions to wrap."""
        return module in self._by_module or any(self._uncaptured_in(module))

    def _uncaptured_in(self, module: str) -> Iterator[UncapturedFunctions]:
        package = module.partition(".")[0]
        return (entry for entry in self._by_package.get(package, ()) if entry.in_module(module))

    def patch_loaded(self) -> None:
        """Patch the modules that are already imported."""
        loaded = [name for name in list(sys.modules) if name.partition(".")[0] in self._by_package]
        for name in dict.fromkeys((*self._by_module, *loaded)):
            module = sys.modules.get(name)
            if module is not None and self.concerns(name):
                self.patch_module(module)

    def patch_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in self._by_module:
            self._imported(name)
        for patch in self._by_module.get(name, ()):
            try:
                self._patch(module, patch)
            except Exception as error:
                self._failed(f"{patch.target.name} cannot be wrapped: {error!r}")
        for entry in self._uncaptured_in(name):
            for pattern in entry.functions:
                try:
                    self._count(module, entry, pattern)
                except Exception as error:
                    self._failed(f"{name}:{pattern} cannot be wrapped: {error!r}")

    def _count(self, module: ModuleType, entry: UncapturedFunctions, pattern: str) -> None:
        """Wrap the functions of `pattern` that the module defines, under every name that it gives them."""
        if self._wrap_uncaptured is None:
            return
        wrappers: dict[int, Callable[..., Any] | None] = {}
        for holder, name, function in list(_defined(module, pattern)):
            if id(function) not in wrappers:
                target = Target(function.__module__, function.__qualname__)
                wrappers[id(function)] = self._wrap_uncaptured(entry, target, function)
            wrapper = wrappers[id(function)]
            if wrapper is None:
                continue
            setattr(holder, name, wrapper)
            self._replaced.append(_Replaced(holder, name, function, wrapper))

    def _patch(self, module: ModuleType, patch: Patch) -> None:
        *path, name = patch.target.function.split(".")
        holder: Any = module
        for part in path:
            holder = vars(holder).get(part)
            if holder is None:
                return
        original = vars(holder).get(name)
        if original is None:
            return
        if not callable(original):
            raise TypeError(f"a {type(original).__name__} is not a function")
        wrapper = patch.wrap(patch.adapter, patch.target, original)
        setattr(holder, name, wrapper)
        self._replaced.append(_Replaced(holder, name, original, wrapper))

    def restore(self) -> None:
        """Put the originals back, except where other code has replaced our wrapper since."""
        for replaced in reversed(self._replaced):
            if vars(replaced.holder).get(replaced.name) is replaced.wrapper:
                setattr(replaced.holder, replaced.name, replaced.original)
        self._replaced.clear()


def _defined(module: ModuleType, pattern: str) -> Iterator[tuple[Any, str, FunctionType]]:
    """The functions of a module, or methods of its classes, that `pattern` names and that it defines: the
    module or class, the name there, and the function.

    A Triton kernel and other callables that are no plain functions are left alone: they have more than a
    call.
    """
    kind, _, name = pattern.rpartition(".")
    holders: list[Any] = [module]
    if kind:
        holders = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and value.__module__ == module.__name__
            and fnmatchcase(value.__qualname__, kind)
        ]
    for holder in holders:
        for key, value in vars(holder).items():
            if (
                isinstance(value, FunctionType)
                and value.__module__ == module.__name__
                and fnmatchcase(value.__name__, name)
            ):
                yield holder, key, value
