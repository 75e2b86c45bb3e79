"""Replaces functions in modules and classes by wrappers, and restores them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gdnbench.capture.adapter import Adapter, Target

Wrap = Callable[[Adapter, Target, Callable[..., Any]], Callable[..., Any]]


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


class Patcher:
    """Applies patches to modules as they are imported, and calls `imported` with each module's name.

    Calls `failed` with one line for each function that cannot be patched; raises nothing. A name that a
    release of the framework lacks, or that is None, is no failure.
    """

    def __init__(
        self, patches: Iterable[Patch], *, imported: Callable[[str], None], failed: Callable[[str], None]
    ) -> None:
        self._by_module: dict[str, list[Patch]] = {}
        for patch in patches:
            self._by_module.setdefault(patch.target.module, []).append(patch)
        self._imported = imported
        self._failed = failed
        self._replaced: list[_Replaced] = []

    @property
    def after_import(self) -> dict[str, Callable[[ModuleType], None]]:
        """By module name: the function to call after the module's import."""
        return dict.fromkeys(self._by_module, self.patch_module)

    def patch_loaded(self) -> None:
        """Patch the target modules that are already imported."""
        for name in self._by_module:
            module = sys.modules.get(name)
            if module is not None:
                self.patch_module(module)

    def patch_module(self, module: ModuleType) -> None:
        self._imported(module.__name__)
        for patch in self._by_module[module.__name__]:
            try:
                self._patch(module, patch)
            except Exception as error:
                self._failed(f"{patch.target.name} cannot be wrapped: {error!r}")

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
