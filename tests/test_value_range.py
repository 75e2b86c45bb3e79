# SPDX-License-Identifier: Apache-2.0
"""Ranges from bits against ml_dtypes' values of the same codes, and NumPy's of its own dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gdnbench.bits import DTYPES
from gdnbench.value_range import value_range, values_of

CODED = [name for name in DTYPES if name.startswith(("float8", "bfloat"))]


@pytest.mark.parametrize("name", CODED)
def test_every_code_has_the_value_of_ml_dtypes(name: str) -> None:
    storage = DTYPES[name].storage
    codes = np.arange(256**storage.itemsize).astype(storage)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        theirs = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
    assert np.array_equal(values_of(name), theirs, equal_nan=True)


@pytest.mark.parametrize("name", CODED)
def test_a_range_of_codes(name: str) -> None:
    """1.0, 0.5 twice, and the codes that are not finite, in two axes."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    numbers = np.array([1.0, 0.5, 0.5, np.nan]).astype(dtype).view(DTYPES[name].storage)
    assert value_range(numbers.reshape(2, 2), name) == (0.5, 1.0, 1)
    assert value_range(numbers[3:], name) == (None, None, 1)
    assert value_range(numbers[:0], name) == (None, None, 0)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_a_range_of_floats(name: str) -> None:
    numbers = np.array([[-2.0, np.inf], [np.nan, 7.0]], dtype=name)
    assert value_range(numbers, name) == (-2.0, 7.0, 2)
    assert value_range(numbers[:0], name) == (None, None, 0)
    assert value_range(np.array(3, dtype=name), name) == (3.0, 3.0, 0)


@pytest.mark.parametrize(("name", "low", "high"), [("int64", -5, 9), ("uint8", 0, 255), ("bool", 0, 1)])
def test_a_range_of_integers(name: str, low: int, high: int) -> None:
    assert value_range(np.array([high, low, high], dtype=name), name) == (low, high, 0)
