# SPDX-License-Identifier: Apache-2.0
"""Rows of results as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdnbench.api.errors import one_line_errors

if TYPE_CHECKING:
    import pandas


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """`rows` with `columns` in this order; CannotRunError without pandas."""
    with one_line_errors():
        import pandas

    return pandas.DataFrame([[row.get(name) for name in columns] for row in rows], columns=list(columns))
