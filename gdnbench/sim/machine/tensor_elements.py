# SPDX-License-Identifier: Apache-2.0
"""How a bulk tensor copy changes elements: the fill outside the tensor, f32 rounded to tf32, and the padding
of elements of less than a byte.

No document gives the bits of the first two; they were measured on an sm_90 GPU (tests/sim/silicon/tma.py). A
tensor map of f32 with flushing loads subnormals unchanged. PTX ISA 5.5.1.1 draws the padding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.memory import POISON, Bytes
from gdnbench.sim.machine.tensormap import PACKED_ELEMENTS, TensorMap

# This 16-bit pattern fills elements of every width; it is a NaN in every type.
NAN_FILL = np.uint16(0x7FF7)
TF32_NAN = np.uint32(0x7FFF_E000)
_FLOATS = ("f16", "bf16", "f32", "f64")


def fill_outside(data: Bytes, tensor: TensorMap) -> None:
    """Fill a box with the value of elements outside the tensor."""
    if not tensor.fill_nan:
        data.fill(0)
    elif tensor.dtype in _FLOATS:
        data.reshape(-1).view(np.uint16).fill(NAN_FILL)
    else:
        raise UnsupportedError(f"a tensor map of {tensor.dtype} that fills with NaN")


def convert_elements(source: Bytes, tensor: TensorMap) -> Bytes:
    """The elements after loading: f32 is rounded to tf32, to nearest even, if the tensor map says so."""
    if not tensor.tf32:
        return source
    words = np.ascontiguousarray(source).view(np.uint32)
    # In place: the rows of a whole GEMM pass here.
    rounded = words >> np.uint32(13)
    rounded &= np.uint32(1)
    rounded += np.uint32(0xFFF)
    rounded += words
    rounded &= np.uint32(0xFFFF_E000)
    magnitude = words & np.uint32(0x7FFF_FFFF)
    if magnitude.size and magnitude.max() > 0x7F80_0000:
        rounded[magnitude > np.uint32(0x7F80_0000)] = TF32_NAN
    return rounded.view(np.uint8)


def spread_elements(data: Bytes, tensor: TensorMap) -> Bytes:
    """Rows of elements as a load writes them to shared memory: sixteen packed elements, then the padding,
    whose contents are undefined."""
    packed = tensor.packed
    if packed is None or not packed.padded:
        return data
    sixteens = data.reshape(-1, packed.packed)
    spread = np.full((len(sixteens), packed.spread), POISON, np.uint8)
    spread[:, : packed.packed] = sixteens
    return spread


def defined_bytes(tensor: TensorMap) -> npt.NDArray[np.bool_] | None:
    """Which bytes of 16 in shared memory a load defines; None for all."""
    packed = tensor.packed
    return None if packed is None or not packed.padded else np.arange(packed.spread) < packed.packed


def pack_elements(data: Bytes, tensor: TensorMap) -> Bytes:
    """Bytes of shared memory as a store writes them: elements of six bits are the low bits of one byte each,
    without padding between sixteens (type b6p2x16)."""
    packed = tensor.packed
    if packed is None or not packed.padded:
        return data
    bits = 8 * packed.packed // PACKED_ELEMENTS
    streams = np.unpackbits(data.reshape(-1, packed.spread, 1), axis=-1, bitorder="little")[..., :bits]
    return np.packbits(streams.reshape(len(streams), -1), axis=-1, bitorder="little")
