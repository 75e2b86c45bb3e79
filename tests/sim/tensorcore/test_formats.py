# SPDX-License-Identifier: Apache-2.0
"""Every code of every format means what ml_dtypes says it means."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.tensorcore.formats import F32, FORMATS, TF32, Codes, Format
from tests.sim.tensorcore import mma_scalar


def codes(form: Format) -> Codes:
    """All codes, or of 32-bit formats: every exponent with the fractions at its ends and random ones."""
    if form.bits <= 16:
        return np.arange(1 << form.bits, dtype=form.storage)
    random = np.random.default_rng(7).integers(0, 1 << 23, 200)
    fractions = np.unique(
        np.concatenate([np.arange(64), (1 << 23) - 1 - np.arange(64), 1 << np.arange(23), random])
    )
    every: Codes = (np.arange(512)[:, None] << 23 | fractions).astype(np.uint32).ravel()
    return every


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
class TestEveryCode:
    def test_values(self, form: Format) -> None:
        every = codes(form)
        expected = mma_scalar.values(form.name, every)
        got = form.values(every)
        np.testing.assert_array_equal(got, expected)
        real = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(expected[real]))

    def test_parts_are_the_value_and_the_exponent_is_nominal(self, form: Format) -> None:
        every = codes(form)
        expected = mma_scalar.values(form.name, every)
        parts = form.decode(every)
        np.testing.assert_array_equal(parts.nan, np.isnan(expected))
        np.testing.assert_array_equal(parts.inf, np.isinf(expected))

        finite = np.isfinite(expected)
        exponent, significand = parts.exponent[finite], parts.significand[finite]
        magnitude = np.ldexp(significand.astype(np.float64), exponent - form.fraction_bits)
        np.testing.assert_array_equal(magnitude, np.abs(expected[finite]))

        smallest = mma_scalar.SMALLEST[form.name]
        true = np.frexp(np.abs(expected[finite]))[1] - 1
        nominal = np.where(expected[finite] == 0, smallest, np.maximum(true, smallest))
        np.testing.assert_array_equal(exponent, nominal)
        assert (parts.significand[~finite] == 0).all()

    def test_largest_exponent(self, form: Format) -> None:
        expected = mma_scalar.values(form.name, codes(form))
        largest = np.abs(expected[np.isfinite(expected)]).max()
        assert form.max_exponent == np.frexp(largest)[1] - 1


def test_tf32_ignores_the_low_13_bits() -> None:
    high = (np.arange(1 << 19, dtype=np.uint32) << 13).astype(np.uint32)
    for low in (1, 0x1000, 0x1FFF):
        np.testing.assert_array_equal(TF32.values(high | np.uint32(low)), TF32.values(high))
    np.testing.assert_array_equal(TF32.values(high), F32.values(high))
