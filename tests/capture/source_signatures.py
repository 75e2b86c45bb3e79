# SPDX-License-Identifier: Apache-2.0
"""Signatures as packages' own source has them, read without importing it."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def parameters(file: Path, name: str) -> str:
    """Of a function, or a method of a class, as the tables write them: no annotations, no `**kwargs`."""
    top = ast.parse(file.read_text()).body
    body = [inner for node in top for inner in (node.body if isinstance(node, ast.Try) else [node])]
    holder, _, name = name.rpartition(".")
    if holder:
        (kind,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == holder)
        body = kind.body
    (found,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    found.args.kwarg = None
    return re.sub(r"\s*=\s*", "=", ast.unparse(found.args))
