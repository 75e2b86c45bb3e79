# SPDX-License-Identifier: Apache-2.0
"""A workbench for Gated DeltaNet and DeepSeek-V4 attention kernels: capture, replay, diff, bisect.

    with gdnbench.open("run.zarr") as store:
        q = store[3].before["q"].torch()
        result = gdnbench.replay(store, "0-3", kernel="my_kernels.py:prefill")

docs/python.md describes all names. They are imported when first used: importing the package takes no time.
`gdnbench.replay`, `diff` and `sim` are functions and packages: `gdnbench.sim(...)`, `from gdnbench.sim import
launch`.

PYTEST_DONT_REWRITE: it rewrites the assertions of packages that come with a plugin, and would warn of one
that `GDNBENCH_CAPTURE` imports ahead of it. There are none here.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gdnbench.version import __version__

if TYPE_CHECKING:
    from gdnbench.api.results import DiffResult, ReplayResult, SimResult
    from gdnbench.api.run import diff, replay, sim
    from gdnbench.api.store import Record, Store, StoredTensor, Tensors, open
    from gdnbench.errors import BadInputError, CannotRunError, NoRecordError, NoTensorError, StoreError
    from gdnbench.sim.errors import Error

__all__ = [
    "BadInputError",
    "CannotRunError",
    "DiffResult",
    "Error",
    "NoRecordError",
    "NoTensorError",
    "Record",
    "ReplayResult",
    "SimResult",
    "Store",
    "StoreError",
    "StoredTensor",
    "Tensors",
    "__version__",
    "diff",
    "open",
    "replay",
    "sim",
]

_MODULE_OF = {
    **dict.fromkeys(("DiffResult", "ReplayResult", "SimResult"), "gdnbench.api.results"),
    **dict.fromkeys(("Record", "Store", "StoredTensor", "Tensors", "open"), "gdnbench.api.store"),
    **dict.fromkeys(
        ("BadInputError", "CannotRunError", "NoRecordError", "NoTensorError", "StoreError"), "gdnbench.errors"
    ),
    "Error": "gdnbench.sim.errors",
}
_FUNCTIONS = ("diff", "replay", "sim")
"""Names that are packages, too."""


class _CallablePackage(ModuleType):
    """A package that is called as the function of its name in `gdnbench.api.run`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        """The function, whose signature and text `inspect` and notebooks show."""
        run = importlib.import_module("gdnbench.api.run")
        return getattr(run, self.__name__.removeprefix("gdnbench."))

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return str(self.__wrapped__.__doc__)


def _function(name: str) -> property:
    """The package `gdnbench.NAME`, callable. The import system assigns the package as an attribute, which a
    module `__getattr__` would then not be asked for; so it is a property."""

    def get(_: ModuleType) -> ModuleType:
        package = importlib.import_module(f"gdnbench.{name}")
        package.__class__ = _CallablePackage
        return package

    def ignore(_: ModuleType, package: ModuleType) -> None:
        """`get` finds the package where the import system keeps it."""

    return property(get, ignore)


class _Package(ModuleType):
    """`gdnbench` itself."""


for _name in _FUNCTIONS:
    setattr(_Package, _name, _function(_name))
sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gdnbench' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
