"""Which extra brings a package that is not installed."""

from __future__ import annotations

EXTRAS = {
    "torch": "capture",
    "llvmlite": "sim",
    "ml_dtypes": "sim",
    "cutlass": "kernels",
    "cuda": "kernels",
}
"""The extra of pyproject.toml by the name of the package that is imported."""


def how_to_install(error: ModuleNotFoundError) -> str | None:
    """What `error` is about in one line with the pip command; None if no extra brings its package.

    A command that needs a package imports it when it runs, so the import is what finds it missing.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"this needs {package}, which is not installed: pip install 'gdnbench[{EXTRAS[package]}]'"
