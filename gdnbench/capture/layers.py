# SPDX-License-Identifier: Apache-2.0
"""Finds the layer of the model that a call belongs to: its index and its name, such as
model.layers.0.linear_attn."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from gdnbench.capture.steps import Step


@dataclass(slots=True)
class Layer:
    """A layer and its call counts. Two models in one process may have layers of the same name."""

    name: str
    index: int | None
    calls: int = 0  # all calls of captured functions: gives the records' step numbers
    eligible: int = 0  # calls that pass every filter but `--first` and `--every`
    kept: int = 0  # calls that `--first` counts: kept calls; with a trigger, calls that it held for
    period: object = None  # the latest `next N` period in which the layer was recorded, and how often
    of_period: int = 0
    named: bool | None = None  # whether `--layer` names it; None until first computed
    apart: Layer | None = None  # the same layer, with the counts of operations that are counted apart

    def counted_apart(self) -> Layer:
        """This layer with counts of its own, for operations with `Operation.counted_apart`. Call it under a
        lock."""
        if self.apart is None:
            self.apart = Layer(self.name, self.index)
        return self.apart


class LayerNames:
    """Layers of the modules whose scopes were entered, held weakly: a deleted model frees its layers."""

    def __init__(self) -> None:
        self._layers: weakref.WeakKeyDictionary[nn.Module, Layer] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def layer_of(self, module: nn.Module) -> Layer:
        layer = self._layers.get(module)
        if layer is None:
            with self._lock:
                if module not in self._layers:
                    self._learn(type(module))
                # The heap search does not find objects frozen with `gc.freeze()`.
                layer = self._layers.get(module) or self._add(module, "")
        return layer

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _learn(self, kind: type[nn.Module]) -> None:
        """Name all modules of this type at once, so that a model's layers cost one search of the heap."""
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
    """The dotted path of every module of type `kind` from its outermost parent; "" for a module without a
    parent.

    Modules do not know their parents and may have been built before any hook, so this searches the heap:
    about 50 ms for a million objects.
    """
    # type(), because isinstance() reads __class__ of proxies, which can run arbitrary code.
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
    while id(module) in parents and id(module) not in passed:  # a cycle: a module may contain itself
        passed.add(id(module))
        module, name = parents[id(module)]
        path.append(name)
    return ".".join(reversed(path))


class _Inside:
    """Pushes a module on a stack and pops it. A context manager made of a generator would cost some
    microseconds a call."""

    __slots__ = ("_one", "_stack")

    def __init__(self, stack: list[nn.Module], one: nn.Module) -> None:
        self._stack = stack
        self._one = one

    def __enter__(self) -> None:
        self._stack.append(self._one)

    def __exit__(self, *_: object) -> None:
        self._stack.pop()


class ScopeStack(threading.local):
    """The layer modules whose scopes this thread is in, its engine's steps, and whether a captured call is
    running, or one that is only counted."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.steps: list[Step | None] = []  # None: a step of which the adapter could say nothing
        self.capturing = False
        self.counting = False

    def inside(self, module: nn.Module) -> _Inside:
        return _Inside(self.modules, module)

    @property
    def step(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    @property
    def module(self) -> nn.Module | None:
        return self.modules[-1] if self.modules else None
