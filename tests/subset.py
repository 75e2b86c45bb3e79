# SPDX-License-Identifier: Apache-2.0
"""A quick subset of a test's parameters for default runs; `scripts/test --full` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], *kept: int, ids: Iterable[str] | None = None) -> list[Any]:
    """`values` as parameters, marked slow except those at the positions `kept`.

    A tuple gives a value to each of several arguments.
    """
    values = list(values)
    assert all(position < len(values) for position in kept), f"{len(values)} values have no {max(kept)}"
    names = list(ids) if ids is not None else [None] * len(values)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=name,
            marks=[] if position in kept else [pytest.mark.slow],
        )
        for position, (value, name) in enumerate(zip(values, names, strict=True))
    ]
