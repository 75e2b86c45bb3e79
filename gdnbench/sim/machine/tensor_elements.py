"""How a bulk tensor load changes elements: the fill outside the tensor, and f32 rounded to tf32.

No document gives these bits; they were measured on an sm_90 GPU (tests/sim/silicon/tma.py). A tensor map of
f32 with flushing loads subnormals unchanged.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.memory import Bytes
from gdnbench.sim.machine.tensormap import TensorMap

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
    nan = words & np.uint32(0x7FFF_FFFF) > np.uint32(0x7F80_0000)
    odd = words >> np.uint32(13) & np.uint32(1)
    rounded = words + np.uint32(0xFFF) + odd & np.uint32(0xFFFF_E000)
    rounded[nan] = TF32_NAN
    return rounded.view(np.uint8)
