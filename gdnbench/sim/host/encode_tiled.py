# SPDX-License-Identifier: Apache-2.0
"""cuTensorMapEncodeTiled, for host code that calls the driver instead of encoding a TMA descriptor inline.

The CUDA driver API, "Tensor Map Object Management", has the arguments and their limits;
machine/tensormap.py has the encoding.
"""

from __future__ import annotations

import ctypes
import struct

from gdnbench.sim.errors import LaunchError, UnsupportedError
from gdnbench.sim.machine import tensormap

TFLOAT32 = 11
# CUtensorMapDataType -> the hardware's number, for the types whose number is known.
ELEMENT_CODES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 9, 9: 10, 10: 8, TFLOAT32: 7}
ELEMENT_CODES |= {13: 11, 14: 12, 15: 13}  # 16U4_ALIGN8B, 16U4_ALIGN16B, 16U6_ALIGN16B
# CUtensorMapSwizzle -> (span, atom) as the hardware numbers them.
SWIZZLES = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (3, 0), 4: (3, 1), 6: (3, 3)}
LARGE_REACH = 128 << 10


def encode_tiled(
    out: int,
    data_type: int,
    rank: int,
    address: int,
    dims: int,
    strides: int,
    box: int,
    element_strides: int,
    interleave: int,
    swizzle: int,
    l2_promotion: int,
    oob_fill: int,
) -> None:
    """Write the 128 bytes at `out`; pointers are addresses. Raises LaunchError where the driver would refuse.

    `l2_promotion` changes no result and is not kept: every map requests 128 bytes, as CuTe DSL's do.
    """
    if data_type not in ELEMENT_CODES:
        raise UnsupportedError(f"a TMA descriptor of CUtensorMapDataType {data_type}")
    if interleave:
        raise UnsupportedError(f"a TMA descriptor with interleave {interleave}")
    if swizzle not in SWIZZLES:
        raise UnsupportedError(f"a TMA descriptor with CUtensorMapSwizzle {swizzle}")
    if not 1 <= rank <= tensormap.MAX_RANK:
        raise LaunchError(f"a TMA descriptor of rank {rank}: it must be 1 to {tensormap.MAX_RANK}")
    encoded = encode(
        ELEMENT_CODES[data_type],
        address,
        tuple((ctypes.c_uint64 * rank).from_address(dims)),
        tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if rank > 1 else (),
        tuple((ctypes.c_uint32 * rank).from_address(box)),
        tuple((ctypes.c_uint32 * rank).from_address(element_strides)),
        swizzle,
        fill_nan=bool(oob_fill),
        tf32=data_type == TFLOAT32,
    )
    ctypes.memmove(out, encoded, tensormap.TENSORMAP_BYTES)


def encode(
    code: int,
    address: int,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    element_strides: tuple[int, ...],
    swizzle: int,
    *,
    fill_nan: bool = False,
    tf32: bool = False,
) -> bytes:
    """The 128 bytes of a tensor map. `code` is the hardware's number of the element type, `swizzle` a
    CUtensorMapSwizzle; `strides` are in bytes, of dimensions 1 and up. Raises LaunchError, which names the
    bad value."""
    span, atom = SWIZZLES[swizzle]
    if code in tensormap.PACKED_TYPES:
        _check_packed(tensormap.PACKED_TYPES[code], address, dims, strides, box, span, fill_nan)
    _check(code, address, dims, strides, box, element_strides, span)
    flags = tensormap.VERSION | (len(dims) - 1) << 4 | code << 7 | tensormap.L2_PROMOTION_128B
    flags |= span << 13 | atom << 19
    flags |= tensormap.BIT_NAN * fill_nan | tensormap.BIT_TF32 * tf32
    if any((extent - 1) * stride >= LARGE_REACH for extent, stride in zip(dims[1:], strides, strict=True)):
        flags |= tensormap.BIT_LARGE
    units = [stride // tensormap.STRIDE_UNIT for stride in strides] + [0] * (tensormap.MAX_RANK - len(dims))
    high = sum((unit >> 32) << 4 * i for i, unit in enumerate(units))
    steps = sum((step - 1) << 3 * i for i, step in enumerate(element_strides))
    return struct.pack(
        "<QI4II5I3s5s68x",
        address,
        flags,
        *(unit & 0xFFFF_FFFF for unit in units),
        high,
        *((extent - 1) & 0xFFFF_FFFF for extent in _padded(dims)),
        steps.to_bytes(3, "little"),
        bytes(extent - 1 for extent in _padded(box)),
    )


def replace_address(out: int, address: int) -> None:
    """cuTensorMapReplaceAddress: of the 128 bytes at `out`. Raises LaunchError where the driver would
    refuse."""
    if address % 16:
        raise LaunchError(f"illegal TMA descriptor: address {address:#x} is no multiple of 16")
    ctypes.memmove(out, struct.pack("<Q", address), 8)


def _padded(extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*extents, *(1,) * (tensormap.MAX_RANK - len(extents)))


def _check(
    code: int,
    address: int,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    element_strides: tuple[int, ...],
    span: int,
) -> None:
    """Check the limits that the driver documents."""
    packed = tensormap.PACKED_TYPES.get(code)
    if packed is None:
        inner = box[0] * tensormap.ELEMENT_TYPES[code][1]
    else:
        inner = box[0] * packed.spread // tensormap.PACKED_ELEMENTS
    for wrong, what in (
        (address % 16, f"address {address:#x} is no multiple of 16"),
        (any(not 1 <= extent <= 2**32 for extent in dims), f"extents {dims} are not in 1 to 2**32"),
        (
            any(stride % 16 or stride >= 2**40 for stride in strides),
            f"strides {strides} are not 16-byte units",
        ),
        (any(not 1 <= extent <= 256 for extent in box), f"box {box} is not in 1 to 256"),
        (any(not 1 <= step <= 8 for step in element_strides), f"element strides {element_strides}"),
        (inner % 16, f"inner box of {inner} bytes is no multiple of 16"),
        (
            span and inner > tensormap.SWIZZLE_BYTES[span],
            f"inner box of {inner} bytes is wider than the swizzle",
        ),
    ):
        if wrong:
            raise LaunchError(f"illegal TMA descriptor: {what}")


def _check_packed(
    packed: tensormap.PackedType,
    address: int,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    span: int,
    fill_nan: bool,
) -> None:
    """Check the limits that the driver documents of elements of less than a byte."""
    unit = tensormap.PADDED_BOX if packed.padded else 2
    align = tensormap.PADDED_ALIGN
    for wrong, what in (
        (dims[0] % unit, f"{dims[0]} elements in dimension 0 are no multiple of {unit}"),
        (packed.padded and box[0] != unit, f"box {box} has not {unit} elements in dimension 0"),
        (packed.padded and address % align, f"address {address:#x} is no multiple of {align}"),
        (
            packed.padded and any(stride % align for stride in strides),
            f"strides {strides} are not {align}-byte",
        ),
        (packed.padded and span not in (0, 3), "a swizzle of 32 or 64 bytes"),
        (fill_nan, "a fill with NaN"),
    ):
        if wrong:
            raise LaunchError(f"illegal TMA descriptor: {packed.name}: {what}")
