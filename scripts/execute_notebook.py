#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Executes docs/notebook.ipynb in a new kernel, in its folder, and writes its outputs into it.

    python scripts/execute_notebook.py            execute and write
    python scripts/execute_notebook.py --check    execute, and compare with the outputs that are there

Outputs have neither times nor numbers of executions, so that a notebook that prints the same stays the same.
Needs nbclient and ipykernel: pip install -e '.[dev]'. Exit status: 0 written, or as it was; 1 a cell failed
or printed something else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.docs.notebook import NOTEBOOK, differences


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    before = nbformat.read(NOTEBOOK, as_version=4)
    after = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        after, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        print(f"{NOTEBOOK}: a cell failed: {error}", file=sys.stderr)
        return 1
    for number, cell in enumerate(after.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    after.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if arguments.check:
        found = [
            f"cell {number}: {difference}"
            for number, (old, new) in enumerate(zip(before.cells, after.cells, strict=True))
            if old.cell_type == "code"
            for difference in differences(old.outputs, new.outputs)
        ]
        print("\n".join(found) or "all as it is there")
        return 1 if found else 0
    nbformat.validate(after)
    nbformat.write(after, NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
