# SPDX-License-Identifier: Apache-2.0
"""Tensor maps to be encoded by the driver, one thing varied at a time and many things drawn at random.

The recording keeps, for each, the driver's return code and the 128 bytes; the address is a fixed number, as
the encoder does not look at the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.sim.silicon.patterns import random_words
from tests.sim.silicon.tensormap import DataType, Fill, Interleave, L2Promotion, Swizzle, TensorMap

ADDRESS = 0x7F0010000000

BASE = TensorMap(DataType.BFLOAT16, (64, 1, 300, 2), (256, 256, 128), (64, 1, 64, 2), (1, 1, 1, 1))


def varied() -> Iterator[TensorMap]:
    """`BASE` with one property changed, through all of its values."""
    yield BASE
    flat = TensorMap(DataType.BFLOAT16, (64, 40), (512,), (16, 8), (1, 1))
    for dtype in DataType:
        yield replace(flat, dtype=dtype, box=(16 // dtype.size, 8))
        for fill in Fill:
            yield replace(flat, dtype=dtype, box=(16 // dtype.size, 8), fill=fill)
    for swizzle in Swizzle:
        for l2 in L2Promotion:
            yield replace(flat, swizzle=swizzle, l2=l2)
    for interleave in (Interleave.B16, Interleave.B32):
        for swizzle in (Swizzle.NONE, Swizzle.B32):
            box = (interleave * 8, 8, 8)
            yield TensorMap(
                DataType.BFLOAT16,
                (64, 40, 8),
                (512, 20480),
                box,
                (1, 1, 1),
                interleave=interleave,
                swizzle=swizzle,
            )
    for rank in range(1, 6):
        dims = (48, 11, 7, 5, 3)[:rank]
        strides = (96, 1056, 7392, 36960)[: rank - 1]
        yield TensorMap(DataType.BFLOAT16, dims, strides, (8, 5, 3, 2, 1)[:rank], (1,) * rank)
        for axis in range(rank):
            for step in (2, 3, 7, 8):
                element_strides = tuple(step if i == axis else 1 for i in range(rank))
                yield TensorMap(DataType.BFLOAT16, dims, strides, (8, 5, 3, 2, 1)[:rank], element_strides)
    # Extents and strides past every width in the encoding; 128 KiB is where bit 21 was seen to change.
    for extent in (1, 2, 255, 256, 65536, 1 << 31, (1 << 32) - 1, 1 << 32):
        yield TensorMap(DataType.UINT8, (extent, 16), (1 << 33,), (16, 1), (1, 1))
    for stride in (
        16,
        48,
        (1 << 17) - 16,
        1 << 17,
        1 << 32,
        1 << 36,
        (1 << 39) + 16,
        (1 << 40) - 16,
        1 << 40,
    ):
        yield TensorMap(DataType.FLOAT32, (4, 4), (stride,), (4, 4), (1, 1))
    for extent in (1, 2, 15, 16, 17, 4095, 4096, 8191, 8192, 8193):
        for stride in (16, 32, 128):
            yield TensorMap(DataType.FLOAT32, (4, extent), (stride,), (4, 1), (1, 1))
            yield TensorMap(DataType.FLOAT32, (4, 2, extent), (16, stride), (4, 1, 1), (1, 1, 1))


def drawn(count: int) -> Iterator[TensorMap]:
    """Legal maps at random."""
    words = iter(int(word) for word in random_words(211, 64 * count))

    def pick(limit: int) -> int:
        return next(words) % limit

    for _ in range(count):
        rank = 1 + pick(5)
        dtype = list(DataType)[pick(len(DataType))]
        swizzle = Swizzle(pick(4))
        limit = {Swizzle.NONE: 256, Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}[swizzle]
        unit = max(16 // dtype.size, 1)
        most = max(min(256, limit // dtype.size) // unit, 1)
        dims = tuple(1 + pick(1 << pick(18)) for _ in range(rank))
        strides = tuple(16 * (1 + pick(1 << pick(30))) for _ in range(rank - 1))
        box = (unit * (1 + pick(most)), *(1 + pick(256 if rank < 3 else 6) for _ in range(rank - 1)))
        steps = tuple(1 + pick(8) if pick(4) == 0 else 1 for _ in range(rank))
        fill = Fill(pick(2)) if dtype >= DataType.FLOAT16 else Fill.NONE
        yield TensorMap(dtype, dims, strides, box, steps, swizzle=swizzle, l2=L2Promotion(pick(4)), fill=fill)


def all_maps() -> tuple[TensorMap, ...]:
    return (*varied(), *drawn(300))
