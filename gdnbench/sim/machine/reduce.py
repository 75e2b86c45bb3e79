# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of bulk reductions: element by element, memory = memory OP source.

PTX ISA, "cp.reduce.async.bulk": the operations are those of `red`. Sums round to nearest even and keep
subnormals, in f32 too, unlike `red.add.f32`: an sm_90 GPU does so (tests/sim/silicon/copies.py). If one
operand is NaN, minimum and maximum return the other; they order -0 below +0 ("min").
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.machine.memory import Bytes
from gdnbench.sim.ptx.ir import Instruction

Array = npt.NDArray[Any]

OPERATIONS = frozenset(("add", "min", "max", "inc", "dec", "and", "or", "xor"))

_INTEGERS: dict[str, Any] = {
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
}
# type -> (NumPy type, its bits, canonical NaN)
_FLOATS: dict[str, tuple[Any, Any, int]] = {
    "f16": (np.float16, np.uint16, 0x7FFF),
    "bf16": (ml_dtypes.bfloat16, np.uint16, 0x7FFF),
    "f32": (np.float32, np.uint32, 0x7FFF_FFFF),
    "f64": (np.float64, np.uint64, 0x7FFF_FFFF_FFFF_FFFF),
}


def reduce(ins: Instruction, dtype: str, memory: Bytes, source: Bytes) -> Bytes:
    """The new contents of `memory` after `ins` has reduced `source` into it; both are elements of `dtype`."""
    (operation,) = [mod for mod in ins.mods if mod in OPERATIONS]
    if dtype in _FLOATS:
        result = _float(operation, dtype, np.ascontiguousarray(memory), np.ascontiguousarray(source))
    elif dtype in _INTEGERS:
        kind = _INTEGERS[dtype]
        old, new = np.ascontiguousarray(memory).view(kind), np.ascontiguousarray(source).view(kind)
        result = _integer(operation, dtype, old, new)
    else:
        result = None
    if result is None:
        raise UnsupportedError(f"{ins.op}.{operation} of {dtype}")
    return result.view(np.uint8)


def _integer(operation: str, dtype: str, old: Array, new: Array) -> Array | None:
    if operation in ("and", "or", "xor"):
        bitwise = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation]
        return np.asarray(bitwise(old, new)) if dtype[0] in "bu" else None
    if dtype[0] == "b":
        return None
    if operation == "add":
        return np.add(old, new)
    if operation in ("min", "max"):
        return np.minimum(old, new) if operation == "min" else np.maximum(old, new)
    if dtype != "u32":
        return None
    # PTX ISA, "atom": inc counts up to the operand and wraps to 0; dec counts down and wraps to the operand.
    if operation == "inc":
        return np.where(old >= new, np.uint32(0), old + np.uint32(1))
    return np.where((old == 0) | (old > new), new, old - np.uint32(1))


def _float(operation: str, dtype: str, memory: Bytes, source: Bytes) -> Array | None:
    kind, bits, nan = _FLOATS[dtype]
    old, new = memory.view(kind), source.view(kind)
    with np.errstate(all="ignore"):
        if operation == "add":
            result = old + new
        elif operation in ("min", "max") and dtype in ("f16", "bf16"):
            result = _extreme(operation, old, new, bits)
        else:
            return None
        invalid = np.isnan(result)
    out: Array = result.view(bits).copy()
    out[invalid] = nan
    return out


def _extreme(operation: str, old: Array, new: Array, bits: Any) -> Array:
    """min or max of numbers whose bits order as sign and magnitude."""
    sign = bits(1 << (8 * old.itemsize - 1))

    def key(values: Array) -> Array:
        raw = values.view(bits)
        ordered: Array = np.where(raw & sign, ~raw, raw | sign)
        return ordered

    less = key(old) < key(new)
    chosen: Array = np.where(less if operation == "min" else ~less, old.view(bits), new.view(bits))
    chosen = np.where(np.isnan(old), new.view(bits), np.where(np.isnan(new), old.view(bits), chosen))
    extreme: Array = chosen.view(old.dtype)
    return extreme
