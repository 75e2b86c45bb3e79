"""Which layer of the model a call belongs to: its index and its name, such as model.layers.0.linear_attn."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(slots=True)
class Layer:
    """A layer and how often it was called. Two models in one process may have layers of the same name."""

    name: str
    index: int | None
    calls: int = 0  # all calls of captured functions: numbers the records' steps
    eligible: int = 0  # those that pass every filter but `--first` and `--every`
    kept: int = 0  # those that `--first` counts: kept, or with a trigger those that it held for
    period: object = None  # the last one in which calls were recorded by number, and how many were
    of_period: int = 0
    named: bool | None = None  # whether `--layer` names it, once asked


class LayerNames:
    """Layers of the modules that were inside a scope. Weak: a model that is deleted goes."""

    def __init__(self) -> None:
        self._layers: weakref.WeakKeyDictionary[nn.Module, Layer] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, module: nn.Module) -> Layer:
        layer = self._layers.get(module)
        if layer is None:
            with self._lock:
                if module not in self._layers:
                    self._learn(type(module))
                # Frozen objects (`gc.freeze()`) are on no list that could be searched.
                layer = self._layers.get(module) or self._add(module, "")
        return layer

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _learn(self, kind: type[nn.Module]) -> None:
        """Name every module of this type that there is, so that a model's layers cost one search."""
        for module, name in qualified_names(kind).items():
            if module not in self._layers:
                self._add(module, name)

    def _add(self, module: nn.Module, name: str) -> Layer:
        index = getattr(module, "layer_idx", getattr(module, "layer_id", None))
        index = index if isinstance(index, int) else None
        layer = self._layers[module] = Layer(name or _class_and_index(module, index), index)
        return layer


def _class_and_index(module: nn.Module, index: int | None) -> str:
    return type(module).__name__ if index is None else f"{type(module).__name__}.{index}"


def qualified_names(kind: type[nn.Module]) -> dict[nn.Module, str]:
    """The dotted path of every module of type `kind` from the outermost module that holds it; "" if none
    does.

    Modules do not know their parents, and may have been built before anything was hooked, so the heap is
    searched: some 50 ms for a million objects.
    """
    # By type: isinstance() would ask proxies for their class, which can run anybody's code.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    parents: dict[int, tuple[nn.Module, str]] = {}
    for parent in modules:
        for name, child in parent.__dict__.get("_modules", {}).items():
            if child is not None:
                parents.setdefault(id(child), (parent, name))
    return {module: _path(module, parents) for module in modules if type(module) is kind}


def _path(module: nn.Module, parents: Mapping[int, tuple[nn.Module, str]]) -> str:
    path: list[str] = []
    passed = set()
    while id(module) in parents and id(module) not in passed:  # a module may hold itself further down
        passed.add(id(module))
        module, name = parents[id(module)]
        path.append(name)
    return ".".join(reversed(path))


class _Inside:
    """A module's place on a stack; a generator's context manager would cost a call some microseconds."""

    __slots__ = ("_module", "_modules")

    def __init__(self, modules: list[nn.Module], module: nn.Module) -> None:
        self._modules = modules
        self._module = module

    def __enter__(self) -> None:
        self._modules.append(self._module)

    def __exit__(self, *_: object) -> None:
        self._modules.pop()


class ScopeStack(threading.local):
    """The layer modules whose scopes this thread is inside of, and whether a captured call is running."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.capturing = False

    def inside(self, module: nn.Module) -> _Inside:
        return _Inside(self.modules, module)

    @property
    def module(self) -> nn.Module | None:
        return self.modules[-1] if self.modules else None
