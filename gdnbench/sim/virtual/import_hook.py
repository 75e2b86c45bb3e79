"""Calls a function once a named module has been imported.

Uses only cheap parts of the standard library, because it is installed when Python starts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

AfterImport = Callable[[ModuleType], None]

_executed: set[str] = set()  # modules that a hook saw executed, though their import may not have returned


def is_loaded(name: str) -> bool:
    """Whether a module has been executed to its end."""
    module = sys.modules.get(name)
    initialising = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and (name in _executed or not initialising)


class ImportHook:
    """A meta-path finder that calls `after_import[name]` each time the module `name` has been executed."""

    def __init__(self, after_import: Mapping[str, AfterImport]) -> None:
        self.after_import = dict(after_import)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.after_import:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                self._wrap_loader(spec)
                return spec
        return None

    def _wrap_loader(self, spec: ModuleSpec) -> None:
        """Replace `exec_module` on the loader object, which other code may look at and so stays."""
        loader, name = spec.loader, spec.name
        exec_module = getattr(loader, "exec_module", None)
        if exec_module is None:
            return

        def exec_then_call(module: ModuleType) -> None:
            exec_module(module)
            _executed.add(name)
            # The hooks of now: one may have taken this one's place since the import began.
            for hook in [finder for finder in sys.meta_path if isinstance(finder, ImportHook)]:
                after_import = hook.after_import.get(name)
                if module.__name__ == name and after_import is not None:
                    after_import(module)

        with contextlib.suppress(AttributeError, TypeError):
            loader.exec_module = exec_then_call  # type: ignore[method-assign, union-attr]


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
