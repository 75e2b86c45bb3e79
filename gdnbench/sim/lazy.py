# SPDX-License-Identifier: Apache-2.0
"""Packages whose names are imported when first used (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`. `names` maps a module to the names that the package re-exports from it,
    separated by spaces."""
    module_of = {name: module for module, given in names.items() for name in given.split()}

    def getattr_of_package(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    return getattr_of_package
