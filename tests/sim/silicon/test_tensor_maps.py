# SPDX-License-Identifier: Apache-2.0
"""The simulator reads out of a tensor map what the driver's own encoder was told."""

from __future__ import annotations

import numpy as np
import pytest

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.tensormap import decode_tensormap
from tests.sim.silicon.capture import load
from tests.sim.silicon.encodings import ADDRESS, all_maps
from tests.sim.silicon.tensormap import DataType, Fill, Interleave, TensorMap

MEANT = {
    DataType.UINT8: "u8",
    DataType.UINT16: "u16",
    DataType.UINT32: "u32",
    DataType.INT32: "s32",
    DataType.UINT64: "u64",
    DataType.INT64: "s64",
    DataType.FLOAT16: "f16",
    DataType.FLOAT32: "f32",
    DataType.FLOAT64: "f64",
    DataType.BFLOAT16: "bf16",
}
ENCODED = [
    (map_, bytes(data))
    for map_, code, data in zip(
        all_maps(), load("encodings").answers["codes"][0], load("encodings").answers["maps"], strict=True
    )
    if code == 0
]


def test_the_driver_took_most_maps() -> None:
    """What it refused is larger than shared memory, or a fill of integers with NaN."""
    assert len(ENCODED) > len(all_maps()) * 3 // 4


def check(map_: TensorMap, data: bytes) -> None:
    decoded = decode_tensormap(data)
    assert decoded.address == ADDRESS
    assert decoded.rank == map_.rank
    assert decoded.dims == tuple(np.array(map_.dims, np.uint64) & np.uint64(0xFFFFFFFF))
    assert decoded.strides == (map_.dtype.size, *map_.strides)
    assert decoded.box == map_.box
    assert decoded.element_strides[1:] == map_.element_strides[1:]
    assert decoded.swizzle == (16 << map_.swizzle if map_.swizzle else 0)
    assert decoded.element_bytes == map_.dtype.size
    if map_.dtype in MEANT:
        assert decoded.dtype == MEANT[map_.dtype]


@pytest.mark.parametrize("dtype", DataType, ids=lambda dtype: dtype.name)
def test_decoded(dtype: DataType) -> None:
    cases = [
        (map_, data)
        for map_, data in ENCODED
        if map_.dtype == dtype and map_.interleave == Interleave.NONE and max(map_.dims) < 1 << 32
    ]
    assert cases
    for map_, data in cases:
        check(map_, data)


def test_fills_are_told_apart() -> None:
    """Maps that differ in nothing but the fill differ in one bit, bit 15 of the flags."""
    by_rest: dict[str, dict[Fill, bytes]] = {}
    for map_, data in ENCODED:
        rest = repr(map_).replace(repr(map_.fill), "")
        by_rest.setdefault(rest, {})[map_.fill] = data
    pairs = [pair for pair in by_rest.values() if len(pair) == 2]
    assert pairs
    for pair in pairs:
        changed = int.from_bytes(pair[Fill.NONE], "little") ^ int.from_bytes(pair[Fill.NAN], "little")
        assert changed == 1 << (8 * 8 + 15)


def test_interleaved_is_refused_by_name() -> None:
    interleaved = [data for map_, data in ENCODED if map_.interleave != Interleave.NONE]
    assert interleaved
    for data in interleaved:
        with pytest.raises(UnsupportedError, match="interleave"):
            decode_tensormap(data)
