# SPDX-License-Identifier: Apache-2.0
"""ULP distance against counting representable values; ml_dtypes and numpy define the formats."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from gdnbench.judge import ulp

SMALL = {
    torch.bfloat16: (ml_dtypes.bfloat16, np.uint16),
    torch.float16: (np.float16, np.uint16),
    torch.float8_e4m3fn: (ml_dtypes.float8_e4m3fn, np.uint8),
    torch.float8_e5m2: (ml_dtypes.float8_e5m2, np.uint8),
}


def every_value(dtype: torch.dtype) -> tuple[torch.Tensor, np.ndarray]:
    """All bit patterns of a dtype that are numbers, and their values in fp64."""
    numpy_dtype, bits = SMALL[dtype]
    patterns = np.arange(np.iinfo(bits).max + 1, dtype=bits)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among the patterns
        values = patterns.view(numpy_dtype).astype(np.float64)
    kept = ~np.isnan(values)
    signed = torch.from_numpy(patterns[kept].view(np.int16 if bits == np.uint16 else np.uint8))
    return signed.view(dtype), values[kept]


@pytest.mark.parametrize("dtype", SMALL)
def test_order_counts_the_values_of_the_format(dtype: torch.dtype) -> None:
    tensor, values = every_value(dtype)
    rank = np.unique(values, return_inverse=True)[1]  # +0 and -0 are one value
    order = ulp.ordered(tensor).numpy().astype(np.int64)
    np.testing.assert_array_equal(order - order.min(), rank - rank.min())


@pytest.mark.parametrize(("dtype", "ints"), [(torch.float32, np.int32), (torch.float64, np.int64)])
def test_neighbours_of_wide_formats_are_one_apart(dtype: torch.dtype, ints: type) -> None:
    numpy_dtype = np.float32 if dtype == torch.float32 else np.float64
    tiny, huge = np.finfo(numpy_dtype).smallest_subnormal, np.finfo(numpy_dtype).max
    values = np.array([0.0, tiny, -tiny, 1.0, -1.0, 0.1, huge, -huge], dtype=numpy_dtype)
    with np.errstate(over="ignore", under="ignore"):
        above = np.nextafter(values, numpy_dtype(np.inf))
    distance = ulp.ordered(torch.from_numpy(above)) - ulp.ordered(torch.from_numpy(values))
    assert distance.tolist() == [1] * len(values)


def test_whole_range_of_fp64_fits() -> None:
    huge = torch.tensor([np.finfo(np.float64).max])
    # Two times the number of positive finite values, 2046 exponents of 2**52 values less zero.
    assert int(ulp.wide_distances(huge, -huge)[0]) == 2 * (2047 * 2**52 - 1)


@pytest.mark.parametrize(
    "distances", [[0, 1, 2, 3, 4, 7, 8, 2**24 - 1, 2**24, 2**25 - 1, 2**30 - 1, 2**30, 2**31 - 1]]
)
def test_buckets_are_bit_lengths(distances: list[int]) -> None:
    expected = np.bincount([d.bit_length() for d in distances], minlength=ulp.BUCKETS)
    integers = torch.tensor(distances, dtype=torch.int32)
    scratch = np.empty(len(distances), dtype=np.int32)
    codes = ulp.bucket_codes_of_integers(integers.numpy().copy(), scratch, torch.empty(len(distances)))
    np.testing.assert_array_equal(ulp.by_bucket(ulp.count_codes(codes, ulp.lanes(len(distances)))), expected)
    codes = ulp.bucket_codes(integers.double())
    np.testing.assert_array_equal(ulp.by_bucket(ulp.count_codes(codes, ulp.lanes(len(distances)))), expected)


def test_wide_buckets_are_bit_lengths() -> None:
    distances = [0, 1, 2**32 - 1, 2**32, 2**53 + 1, 2**54 - 1, 2**63, 2**64 - 1]
    expected = np.bincount([d.bit_length() for d in distances], minlength=ulp.BUCKETS)
    np.testing.assert_array_equal(ulp.wide_histogram(np.array(distances, dtype=np.uint64)), expected)


def test_bucket_labels() -> None:
    assert [ulp.bucket_label(b) for b in range(5)] == ["0", "1", "2-3", "4-7", "8-15"]
