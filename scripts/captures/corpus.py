# SPDX-License-Identifier: Apache-2.0
"""Ordinary English text that every CPython carries: the language reference and the library's docstrings.

Nothing is downloaded, and the same Python release gives the same bytes.
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

SKIP = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(source: str) -> list[str]:
    """The docstrings of one module, in source order."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
    return [text for node in nodes if (text := ast.get_docstring(node)) and len(text) > 80]


def corpus() -> bytes:
    """About 2 MB of UTF-8 prose, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [topics[name] for name in sorted(topics)]
    for path in sorted(library.rglob("*.py")):
        if not SKIP & set(path.relative_to(library).parts):
            texts += docstrings(path.read_text(encoding="utf-8", errors="replace"))
    return "\n\n".join(texts).encode("utf-8", errors="replace")
