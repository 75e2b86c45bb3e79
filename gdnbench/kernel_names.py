"""The operations and their listed kernels by name, read from the contracts' source.

`gdnbench.ops` imports the contracts, and with them torch; completing a name in a shell cannot wait for that.
"""

from __future__ import annotations

import ast
from pathlib import Path

import gdnbench_kernels


def operation_names() -> list[str]:
    """The names of `gdnbench.ops.operations()`: an operation has its folder's name."""
    folders = (Path(place) for place in gdnbench_kernels.__path__)
    return sorted(file.parent.name for folder in folders for file in folder.glob("*/contract.py"))


def kernel_names(operation: str) -> list[str]:
    """The names of an operation's kernels, the keys of the dict `KERNELS` in its contract; none for an
    operation that there is not."""
    if operation not in operation_names():
        return []
    files = (Path(place) / operation / "contract.py" for place in gdnbench_kernels.__path__)
    text = next(file for file in files if file.exists()).read_text(encoding="utf-8")
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    tables = [node.value for node in assigned if ast.unparse(node.targets[0]) == "KERNELS"]
    keys = [key for table in tables if isinstance(table, ast.Dict) for key in table.keys]
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
