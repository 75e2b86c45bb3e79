# SPDX-License-Identifier: Apache-2.0
"""Distance in units in the last place: the number of representable values between two elements.

Bit patterns of sign-magnitude floats have the order of their values, so the distance is a difference of
integers, exact for subnormals and infinities too. +0 and -0 are the same point.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gdnbench.bits import as_integers

BUCKETS = 66
"""Histogram buckets: 0 holds distance 0, k >= 1 holds distances in [2**(k-1), 2**k)."""

ZERO_CODES = [126, 190, 254, 62]
"""The indices at which `count_codes` counts distance 0, one for each lane."""

_UNSIGNED_FLOATS = {torch.float8_e8m0fnu}


def ordered(values: Tensor) -> Tensor:
    """Integers in the order of the values: int16 for dtypes of 8 and 16 bits, else int32 or int64.

    NaNs get integers beyond the infinities; callers exclude them.
    """
    bits = as_integers(values)
    if bits.dtype == torch.uint8:
        bits = bits.to(torch.int16)
        if values.dtype in _UNSIGNED_FLOATS or not values.is_floating_point():
            return bits
        sign = -(bits >> 7)
        return ((bits & 0x7F) ^ sign) - sign
    if not values.is_floating_point():
        return bits
    sign = bits >> (8 * bits.element_size() - 1)  # 0 or -1
    magnitude = bits & torch.iinfo(bits.dtype).max
    return magnitude.bitwise_xor_(sign).sub_(sign)


def ordered_into(out: np.ndarray, scratch: np.ndarray, values: Tensor) -> None:
    """`ordered` for 16- or 32-bit floats without allocation: `out` and `scratch` have that integer dtype.

    Uses numpy, whose integer operations take half of torch's time on blocks in cache.
    """
    bits = as_integers(values).numpy()
    np.right_shift(bits, 8 * bits.itemsize - 1, out=scratch)
    np.bitwise_and(bits, np.iinfo(bits.dtype).max, out=out)
    np.bitwise_xor(out, scratch, out=out)
    np.subtract(out, scratch, out=out)


def exact_in_float(dtype: torch.dtype) -> torch.dtype | None:
    """The float dtype that holds every distance of `dtype`: fp32 up to 16 bits, fp64 for 32, else None."""
    size = dtype.itemsize
    return torch.float32 if size <= 2 else torch.float64 if size == 4 else None


def bucket_codes(distances: Tensor) -> Tensor:
    """Byte codes of float distances (fp32 or fp64, whole numbers >= 0): 0 for 0, else 127 + floor(log2)."""
    if distances.dtype == torch.float32:
        return (distances.view(torch.int32) >> 23).to(torch.uint8)
    exponents = (distances.view(torch.int64) >> 52).sub_(1023 - 127)
    return exponents.clamp_(min=0).to(torch.uint8)  # the exponent field of 0.0 is 0


def bucket_codes_of_integers(distances: np.ndarray, scratch: np.ndarray, floats: Tensor) -> Tensor:
    """Byte codes as of `bucket_codes` of int16 or int32 distances; overwrites all three."""
    if distances.dtype == np.int32:
        # fp32 would round a number whose 25 leading bits are ones up to a power of two. This clears bits past
        # the 24th and keeps the others.
        np.right_shift(distances, 24, out=scratch)
        np.bitwise_xor(distances, scratch, out=distances)
    return bucket_codes(floats.copy_(torch.from_numpy(distances)))


@lru_cache(maxsize=2)
def lanes(count: int) -> Tensor:
    """0, 64, 128, 192, 0, ... as bytes: the offsets that `count_codes` adds to codes. Callers share it."""
    return (torch.arange(count) % 4 * 64).to(torch.uint8)


def count_codes(codes: Tensor, lane: Tensor) -> np.ndarray:
    """Counts [256] of codes, which it overwrites, for `by_bucket`; `lane` is `lanes` of their number.

    Neighbours are counted in four lanes of 64 buckets: most distances of a tensor are equal, and successive
    increments of one counter wait for each other.
    """
    codes = (
        codes.reshape(-1).clamp_(min=126).add_(lane)
    )  # 126 is bucket 0, 127 + n bucket n + 1; wraps at 256
    return torch.bincount(codes, minlength=256).numpy()


def by_bucket(counts: np.ndarray) -> np.ndarray:
    """Counts by bucket [BUCKETS] from sums of `count_codes`."""
    return np.pad(np.roll(counts, -126).reshape(4, 64).sum(axis=0), (0, BUCKETS - 64))


def wide_distances(x: Tensor, y: Tensor) -> np.ndarray:
    """Distances of 64-bit elements as uint64, which holds them all."""
    top = np.uint64(1 << 63)  # flips the sign bit: int64 order becomes uint64 order
    a = ordered(x).numpy().view(np.uint64) ^ top
    b = ordered(y).numpy().view(np.uint64) ^ top
    return np.asarray(np.maximum(a, b) - np.minimum(a, b))


def wide_histogram(distances: np.ndarray) -> np.ndarray:
    """Counts by bucket [BUCKETS] of uint64 distances; exact where fp64 would round into the next bucket."""
    high = (distances >> np.uint64(32)).astype(np.float64)
    low = (distances & np.uint64(0xFFFFFFFF)).astype(np.float64)
    lengths = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
    return np.bincount(lengths.reshape(-1), minlength=BUCKETS)


def bucket_label(bucket: int) -> str:
    """`0`, `1`, `2-3`, `4-7`, ... for the distances of a bucket."""
    if bucket < 2:
        return str(bucket)
    return f"{1 << (bucket - 1)}-{(1 << bucket) - 1}"
