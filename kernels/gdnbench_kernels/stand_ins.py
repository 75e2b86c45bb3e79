"""Imports modules of a package without its parent packages' own imports.

A serving engine's `__init__` modules load compiled CUDA libraries, query a device and import dozens of
packages, but its kernels and their host functions need a few small modules. `StandIns` replaces the parents
by empty packages with the real paths, and other modules by ones that the caller made. The replacements are in
`sys.modules` only inside `StandIns.in_place`, so the real package can be imported too.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class StandIns:
    """What replaces modules of `package`, by full name.

    `empty`: packages whose `__init__` is not run; their submodules are imported from the real folder. Names
    that belong to another package are left out if that package is not installed. `made`: for each replaced
    module a function that returns its members, called once, when the replacements are first put in place;
    None makes the import of that name fail.
    """

    package: str
    empty: Sequence[str]
    made: Mapping[str, Callable[[], Mapping[str, Any]] | None] = field(default_factory=dict)
    _modules: dict[str, ModuleType | None] = field(default_factory=dict, init=False, repr=False)

    def module(self, name: str) -> ModuleType:
        """The module `name`, "package.module", imported among the replacements. Raises ImportError."""
        with self.in_place():
            return importlib.import_module(name)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside this block imports of the package find the replacements and the modules imported through
        them. Raises ImportError if the package is not there."""
        if not self._modules:
            self._modules.update(self._replacements())
        before = self._take_out_of_sys_modules()
        sys.modules.update(self._modules)  # type: ignore[arg-type]  # None: import fails
        try:
            yield
        finally:
            self._modules.update(self._take_out_of_sys_modules())
            sys.modules.update(before)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which is called with the replacements in place."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.in_place():
                return function(*args, **kwargs)

        return call

    def _roots(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(name.partition(".")[0] for name in (self.package, *self.empty, *self.made))
        )

    def _replacements(self) -> dict[str, ModuleType | None]:
        folders = {root: folder_of(root) for root in self._roots()}
        if folders[self.package] is None:
            raise ModuleNotFoundError(f"there is no package {self.package}", name=self.package)
        found: dict[str, ModuleType | None] = {}
        for name in (self.package, *self.empty):
            root, *rest = name.split(".")
            if (folder := folders[root]) is not None:
                found[name] = package = ModuleType(name)
                package.__path__ = [os.path.join(folder, *rest)]
        for name, members in self.made.items():
            found[name] = None
            if members is not None:
                found[name] = module = ModuleType(name)
                vars(module).update({"__path__": [], **members()})
        return found

    def _take_out_of_sys_modules(self) -> dict[str, ModuleType]:
        roots = self._roots()
        names = [name for name in sys.modules if name.partition(".")[0] in roots]
        return {name: sys.modules.pop(name) for name in names}


def folder_of(package: str) -> str | None:
    """The folder of a top-level package, which is not imported; None if it is not there."""
    spec = PathFinder.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return None
    return next(iter(spec.submodule_search_locations))
