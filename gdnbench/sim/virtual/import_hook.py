# SPDX-License-Identifier: Apache-2.0
"""Calls a function once a named module has been imported.

Uses only cheap parts of the standard library, because it is installed when Python starts.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

AfterImport = Callable[[ModuleType], None]
Execute = Callable[[ModuleType], None]

_executed: set[str] = set()  # modules that a hook saw executed, though their import may not have returned


def is_loaded(name: str) -> bool:
    """Whether a module has been executed to its end."""
    module = sys.modules.get(name)
    initialising = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and (name in _executed or not initialising)


class _Executing(threading.local):
    """The modules of a hook's `outside` that this thread is executing, and the calls that wait for them."""

    modules = 0

    def __init__(self) -> None:
        self.waiting: list[tuple[AfterImport, ModuleType]] = []


class ImportHook:
    """A meta-path finder that calls `after_import[name]` each time the module `name` has been executed. While
    the thread executes modules whose names start with `outside`, a call waits: it may import them."""

    def __init__(self, after_import: Mapping[str, AfterImport], outside: str | None = None) -> None:
        self.after_import = dict(after_import)
        self._outside = outside
        self._executing = _Executing()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        delays = self._outside is not None and fullname.startswith(self._outside)
        if fullname not in self.after_import and not delays:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                (self._count_execution if delays else self._wrap_loader)(spec)
                return spec
        return None

    def _count_execution(self, spec: ModuleSpec) -> None:
        """Let calls wait while the module of `outside` is executed."""

        def execute(exec_module: Execute, module: ModuleType) -> None:
            self._executing.modules += 1
            try:
                exec_module(module)
            finally:
                self._executing.modules -= 1
                while self._executing.waiting and not self._executing.modules:
                    after_import, imported = self._executing.waiting.pop(0)
                    after_import(imported)

        _replace_execution(spec, execute)

    def call(self, name: str, module: ModuleType) -> None:
        """The module `name` has been executed."""
        after_import = self.after_import.get(name)
        if module.__name__ != name or after_import is None:
            return
        if self._executing.modules:
            self._executing.waiting.append((after_import, module))
        else:
            after_import(module)

    def _wrap_loader(self, spec: ModuleSpec) -> None:
        name = spec.name

        def execute(exec_module: Execute, module: ModuleType) -> None:
            exec_module(module)
            _executed.add(name)
            # The hooks of now: one may have taken this one's place since the import began.
            for hook in [finder for finder in sys.meta_path if isinstance(finder, ImportHook)]:
                hook.call(name, module)

        _replace_execution(spec, execute)


def _replace_execution(spec: ModuleSpec, execute: Callable[[Execute, ModuleType], None]) -> None:
    """Replace `exec_module` on the loader object, which other code may look at and so stays."""
    loader = spec.loader
    exec_module = getattr(loader, "exec_module", None)
    if exec_module is None:
        return
    with contextlib.suppress(AttributeError, TypeError):
        loader.exec_module = partial(execute, exec_module)  # type: ignore[method-assign, union-attr]


def add_hook(hook: ImportHook) -> None:
    """Let `hook` see imports before other finders do."""
    sys.meta_path.insert(0, hook)


def remove_hook(hook: ImportHook) -> None:
    """Undo `add_hook`."""
    if hook in sys.meta_path:
        sys.meta_path.remove(hook)


@contextmanager
def hooked(after_import: Mapping[str, AfterImport]) -> Iterator[ImportHook]:
    """Add a hook for this block."""
    hook = ImportHook(after_import)
    add_hook(hook)
    try:
        yield hook
    finally:
        remove_hook(hook)
