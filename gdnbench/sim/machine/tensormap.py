# SPDX-License-Identifier: Apache-2.0
"""TMA descriptors (CUtensorMap): the 128 opaque bytes that describe the tensor of a bulk tensor copy.

NVIDIA does not publish the encoding. It was derived from the encoder that CuTe DSL compiles into its host
code; tests/sim/host/test_tensormap.py compares the two:

    bytes 0-7     address of the tensor
    bytes 8-11    flags: [0, 4) 2 on sm_100 and 0 on sm_90, [4, 7) rank - 1, [7, 11) element type,
                  [11, 13) interleave, [13, 15) swizzle, 15 fill with NaN, 16 rounding to tf32, [17, 19) L2
                  promotion (a hint; CuTe DSL always requests 128 bytes), [19, 21) atom of the 128-byte
                  swizzle, 21 set when a dimension extends 128 KiB or more from its first element
    bytes 12-27   strides of dimensions 1 to 4 in units of 16 bytes, low 32 bits
    bytes 28-31   bits [32, 36) of those strides, four bits each
    bytes 32-51   extents of dimensions 0 to 4, less one
    bytes 52-53   element strides, less one, three bits each
    bytes 55-59   box extents, less one, a byte each
    bytes 64-127  not read by the hardware; compiled host code leaves them undefined

The strides of cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object Management") have the same order:
dimension 0 is contiguous and has none.

Elements of 4 and 6 bits come in sixteens (PTX ISA 5.5.1.1, CU_TENSOR_MAP_DATA_TYPE_16U*). In global memory
they are packed. In shared memory sixteen of them have 8 bytes (b4x16) or, with padding, 16 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from gdnbench.sim.errors import UnsupportedError

TENSORMAP_BYTES = 128
ENCODED_BYTES = 64  # the bytes that the hardware reads
MAX_RANK = 5

STRIDE_UNIT = 16

VERSION = 2
SM90_VERSION = 0
BIT_NAN = 1 << 15
BIT_TF32 = 1 << 16  # f32 elements are rounded to tf32 when loaded
L2_PROMOTION = 3 << 17
L2_PROMOTION_128B = 2 << 17
SWIZZLE_ATOM = 3 << 19
BIT_LARGE = 1 << 21
KNOWN_FLAGS = 0x7FFF | BIT_NAN | BIT_TF32 | L2_PROMOTION | SWIZZLE_ATOM | BIT_LARGE

FTZ_TYPE = 8  # f32 with flushing of subnormals

# Element type codes, in the order and with the numbers of the hardware, not of the CUtensorMapDataType enum.
ELEMENT_TYPES = {
    0: ("u8", 1),
    1: ("u16", 2),
    2: ("u32", 4),
    3: ("s32", 4),
    4: ("u64", 8),
    5: ("s64", 8),
    6: ("f16", 2),
    7: ("f32", 4),
    FTZ_TYPE: ("f32", 4),
    9: ("f64", 8),
    10: ("bf16", 2),
}
SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}
# The bytes that a 128-byte swizzle keeps together. 2, 32 bytes with halves of 16 bytes exchanged, is not
# modelled.
SWIZZLE_ATOMS = {0: 16, 1: 32, 3: 64}


class PackedType(NamedTuple):
    """A type of less than a byte: the bytes of 16 elements in global memory, `packed`, and in shared memory,
    `spread`, of which a load writes the first `packed`."""

    name: str
    packed: int
    spread: int

    @property
    def padded(self) -> bool:
        """Whether shared memory has padding. Then the box has 128 elements in dimension 0."""
        return self.spread != self.packed


# As CuTe DSL's encoder writes them.
PACKED_TYPES = {
    11: PackedType("b4x16", 8, 8),
    12: PackedType("b4x16_p64", 8, 16),
    13: PackedType("b6x16_p32", 12, 16),  # b6p2x16 where it is stored
}
PACKED_ELEMENTS = 16
PADDED_BOX = 128  # elements of dimension 0 (PTX ISA, "Restriction on Tensor Copy instructions")
PADDED_ALIGN = 32  # bytes, of the address and of strides


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A decoded TMA descriptor; dimension 0 is the contiguous one. All tuples have `rank` entries.

    `strides` are in bytes; `strides[0]` is the element size. `swizzle` is the span in bytes: 0, 32, 64 or
    128; `atom` the bytes that it keeps together. Elements outside `dims` read as zero, or as NaN with
    `fill_nan`. `tf32` and `ftz` change f32 elements when they are loaded. A type of less than a byte has
    `packed`, and an element size of 0.
    """

    address: int
    dtype: str
    element_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    fill_nan: bool = False
    tf32: bool = False
    ftz: bool = False
    atom: int = 16
    packed: PackedType | None = None

    def __hash__(self) -> int:
        """Of the fields that differ between the tensor maps of a kernel: a copy looks up several tables."""
        return hash((self.address, self.dims, self.box))

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.dims)

    def bytes_of(self, elements: int) -> int:
        """Bytes of neighbours of dimension 0 in global memory."""
        if self.packed is not None:
            return elements * self.packed.packed // PACKED_ELEMENTS
        return elements * self.element_bytes

    @property
    def shared_row(self) -> int:
        """Bytes of a row of the box in shared memory."""
        if self.packed is not None:
            return self.box[0] * self.packed.spread // PACKED_ELEMENTS
        return self.box[0] * self.element_bytes

    @property
    def rows(self) -> int:
        """Rows of the box that are copied."""
        return prod(self.copied[1:])

    @property
    def box_bytes(self) -> int:
        """Bytes of one copy, which its mbarrier counts: without padding (CUTLASS and TileLang count the bytes
        in global memory too, `sm100_mma_warpspecialized.hpp`)."""
        return self.rows * self.bytes_of(self.box[0])

    @property
    def copied(self) -> tuple[int, ...]:
        """Elements of the box that are copied: every `element_strides`-th, but all of dimension 0, whose
        element stride is ignored (CUDA driver API, cuTensorMapEncodeTiled)."""
        outer = zip(self.box[1:], self.element_strides[1:], strict=True)
        return (self.box[0], *(-(-extent // step) for extent, step in outer))


def decode_tensormap(data: bytes) -> TensorMap:
    """Decode `data`: 128 bytes, or the first 64. Raises UnsupportedError, which names what is not
    modelled."""
    if len(data) not in (ENCODED_BYTES, TENSORMAP_BYTES):
        raise UnsupportedError(f"a TMA descriptor of {len(data)} bytes; it has {TENSORMAP_BYTES}")
    address, flags = struct.unpack_from("<QI", data, 0)
    rank = _rank(flags)
    dtype, element_bytes, packed = _element_type(flags)
    low = struct.unpack_from("<4I", data, 12)
    (high,) = struct.unpack_from("<I", data, 28)
    if high >> 16:
        raise UnsupportedError(f"TMA descriptor stride bits {high:#010x}; only the low 16 are known")
    outer = tuple((low[i] | (high >> 4 * i & 0xF) << 32) * STRIDE_UNIT for i in range(rank - 1))
    # An empty dimension is stored as 0 - 1.
    dims = tuple((extent + 1) & 0xFFFF_FFFF for extent in struct.unpack_from("<5I", data, 32)[:rank])
    steps = int.from_bytes(data[52:55], "little")
    if steps >> 3 * MAX_RANK:
        raise UnsupportedError(f"TMA descriptor bits {steps:#08x} beside the element strides")
    element_strides = tuple((steps >> 3 * i & 7) + 1 for i in range(rank))
    if any(data[60:64]):
        raise UnsupportedError(f"TMA descriptor bytes 60 to 63 set ({data[60:64].hex()})")
    return TensorMap(
        address=address,
        dtype=dtype,
        element_bytes=element_bytes,
        dims=dims,
        strides=(element_bytes, *outer),
        box=tuple(extent + 1 for extent in data[55 : 55 + rank]),
        element_strides=element_strides,
        swizzle=SWIZZLE_BYTES[flags >> 13 & 3],
        fill_nan=bool(flags & BIT_NAN),
        tf32=bool(flags & BIT_TF32),
        ftz=flags >> 7 & 0xF == FTZ_TYPE,
        atom=_atom(flags),
        packed=packed,
    )


def _rank(flags: int) -> int:
    """The rank. Raises UnsupportedError if a flag that is not modelled is set."""
    if flags & 0xF not in (VERSION, SM90_VERSION):
        raise UnsupportedError(f"TMA descriptor flags {flags:#010x}: no tiled tensor map of a known version")
    if unknown := flags & ~KNOWN_FLAGS:
        raise UnsupportedError(f"TMA descriptor flag bits {unknown:#010x}")
    if interleave := flags >> 11 & 3:
        raise UnsupportedError(f"TMA descriptor with interleave {interleave}")
    rank = (flags >> 4 & 7) + 1
    if rank > MAX_RANK:
        raise UnsupportedError(f"TMA descriptor of rank {rank}")
    return rank


def _element_type(flags: int) -> tuple[str, int, PackedType | None]:
    code = flags >> 7 & 0xF
    if code in PACKED_TYPES:
        return PACKED_TYPES[code].name, 0, PACKED_TYPES[code]
    if code not in ELEMENT_TYPES:
        raise UnsupportedError(f"TMA descriptor with element type {code}")
    return *ELEMENT_TYPES[code], None


def _atom(flags: int) -> int:
    code = (flags & SWIZZLE_ATOM) >> 19
    if code not in SWIZZLE_ATOMS or (code and flags >> 13 & 3 != 3):
        raise UnsupportedError(f"TMA descriptor with swizzle {flags >> 13 & 3} of atom {code}")
    return SWIZZLE_ATOMS[code]
