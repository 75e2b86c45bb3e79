# SPDX-License-Identifier: Apache-2.0
"""Which extra brings a package that is not installed."""

from __future__ import annotations

import importlib
from functools import cache

EXTRAS = {
    "torch": "capture",
    "llvmlite": "sim",
    "ml_dtypes": "sim",
    "cutlass": "kernels",
    "cuda": "kernels",
    "pandas": "notebook",
}
"""The extra of pyproject.toml by the name of the package that is imported."""


@cache
def is_installed(package: str) -> bool:
    """Whether `package` can be imported; it is imported then."""
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        return False
    return True


def how_to_install(package: str) -> str:
    """That `package`, one of `EXTRAS`, is missing, in one line with the pip command."""
    return f"this needs {package}, which is not installed: pip install 'gdnbench[{EXTRAS[package]}]'"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The package of `EXTRAS` that `error` is about; None if it is about another.

    A command imports what it needs when it runs, so it is an import that finds a package missing.
    """
    package = (error.name or "").partition(".")[0]
    return package if package in EXTRAS else None
