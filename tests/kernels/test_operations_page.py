# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md shows the tables that the operations print."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.ops import operations
from gdnbench_kernels.describe import describe

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.mark.parametrize("name", operations())
def test_tables_are_those_of_the_operation(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index(f"\n## {name}\n") :]
    assert describe(operations()[name]) in section, f"run python -m gdnbench_kernels.describe {name}"
