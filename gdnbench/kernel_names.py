# SPDX-License-Identifier: Apache-2.0
"""The operations and their listed kernels by name, read from the contracts' source.

`gdnbench.ops` imports the contracts, and with them torch; completing a name in a shell cannot wait for that.
"""

from __future__ import annotations

import ast
from pathlib import Path

import gdnbench_kernels

CLOSED = "\n}\n"


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
    _, _, table = text.partition("\nKERNELS = ")
    # Up to the line that closes it: reading the whole contract takes three times as long.
    found = ast.parse(f"{table.partition(CLOSED)[0]}{CLOSED}", mode="eval").body
    keys = found.keys if isinstance(found, ast.Dict) else []
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
