# SPDX-License-Identifier: Apache-2.0
"""Parameters of `cuTensorMapEncodeTiled`, by the names of the CUDA driver API, with its enums' numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class DataType(IntEnum):
    """CUtensorMapDataType."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return {0: 1, 1: 2, 4: 8, 5: 8, 6: 2, 8: 8, 9: 2}.get(self.value, 4)


class Interleave(IntEnum):
    """CUtensorMapInterleave."""

    NONE = 0
    B16 = 1
    B32 = 2


class Swizzle(IntEnum):
    """CUtensorMapSwizzle."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3


class L2Promotion(IntEnum):
    """CUtensorMapL2promotion."""

    NONE = 0
    B64 = 1
    B128 = 2
    B256 = 3


class Fill(IntEnum):
    """CUtensorMapFloatOOBfill: zeros, or a special NaN that says "requested, not there"."""

    NONE = 0
    NAN = 1


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Dimensions from the innermost; `strides` in bytes of dimensions 1 and up, as the driver takes them."""

    dtype: DataType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: Interleave = Interleave.NONE
    swizzle: Swizzle = Swizzle.NONE
    l2: L2Promotion = L2Promotion.NONE
    fill: Fill = Fill.NONE

    @property
    def rank(self) -> int:
        return len(self.dims)
