"""TMA descriptors (CUtensorMap): the 128 opaque bytes that describe the tensor of a bulk tensor copy.

NVIDIA does not publish the encoding. It was derived from the encoder that CuTe DSL compiles into its host
code; tests/sim/host/test_tensormap.py compares the two:

    bytes 0-7     address of the tensor
    bytes 8-11    flags: [0, 4) 2 on sm_100 and 0 on sm_90, [4, 7) rank - 1, [7, 11) element type,
                  [11, 13) interleave, [13, 15) swizzle, 15 fill with NaN, 16 rounding to tf32, [17, 19) L2
                  promotion (a hint; CuTe DSL always requests 128 bytes), 21 set when a dimension
                  extends 128 KiB or more from its first element
    bytes 12-27   strides of dimensions 1 to 4 in units of 16 bytes, low 32 bits
    bytes 28-31   bits [32, 36) of those strides, four bits each
    bytes 32-51   extents of dimensions 0 to 4, less one
    bytes 52-53   element strides, less one, three bits each
    bytes 55-59   box extents, less one, a byte each
    bytes 64-127  not read by the hardware; compiled host code leaves them undefined

The strides of cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object Management") have the same order:
dimension 0 is contiguous and has none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

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
BIT_LARGE = 1 << 21
KNOWN_FLAGS = 0x7FFF | BIT_NAN | BIT_TF32 | L2_PROMOTION | BIT_LARGE

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


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A decoded TMA descriptor; dimension 0 is the contiguous one. All tuples have `rank` entries.

    `strides` are in bytes; `strides[0]` is the element size. `swizzle` is the span in bytes: 0, 32, 64 or
    128. Elements outside `dims` read as zero, or as NaN with `fill_nan`. `tf32` and `ftz` change f32 elements
    when they are loaded.
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

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.dims)

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy writes to shared memory, which its mbarrier counts."""
        size = self.element_bytes
        for extent in self.copied:
            size *= extent
        return size

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
    dtype, element_bytes = _element_type(flags)
    low = struct.unpack_from("<4I", data, 12)
    (high,) = struct.unpack_from("<I", data, 28)
    if high >> 16:
        raise UnsupportedError(f"TMA descriptor stride bits {high:#010x}; only the low 16 are known")
    outer = tuple((low[i] | (high >> 4 * i & 0xF) << 32) * STRIDE_UNIT for i in range(rank - 1))
    # An empty dimension is stored as 0 - 1.
    dims = tuple((extent + 1) & 0xFFFF_FFFF for extent in struct.unpack_from("<5I", data, 32)[:rank])
    packed = int.from_bytes(data[52:55], "little")
    if packed >> 3 * MAX_RANK:
        raise UnsupportedError(f"TMA descriptor bits {packed:#08x} beside the element strides")
    element_strides = tuple((packed >> 3 * i & 7) + 1 for i in range(rank))
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


def _element_type(flags: int) -> tuple[str, int]:
    code = flags >> 7 & 0xF
    if code not in ELEMENT_TYPES:
        raise UnsupportedError(f"TMA descriptor with element type {code}")
    return ELEMENT_TYPES[code]
