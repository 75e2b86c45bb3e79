# SPDX-License-Identifier: Apache-2.0
"""Kernels that edit tensor maps: tensormap.replace, tensormap.cp_fenceproxy and their proxy fence.

A kernel for sequences of any length copies a tensor map to global memory and replaces its extents and strides
for each sequence. The units of `new_val` are those of the CUDA Programming Guide ("Encoding a Tensor Map on
Device"): extents of box and tensor unchanged, strides in bytes, the rank less one. Assemblers before CUDA
12.5 took strides in units of 16 bytes (CUTLASS, `copy_sm90_desc.hpp`); this module takes bytes. The constants
for element type, swizzle and fill are those of PTX ISA 9.1, 9.7.9.28, table 33, which are not those of
CUtensorMapDataType, and of the hardware (`tensormap.py`); a value that the decoder does not know raises
UnsupportedError.

A copy reads its tensor map when it is issued. Every access is visible at once, so fences are only checked for
their form.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.memory import Bytes, resolve
from gdnbench.sim.machine.operands import active_lanes, scalar_operand, uniform_value
from gdnbench.sim.machine.tensormap import (
    ELEMENT_TYPES,
    ENCODED_BYTES,
    MAX_RANK,
    PACKED_TYPES,
    STRIDE_UNIT,
    SWIZZLE_ATOMS,
    SWIZZLE_BYTES,
    TENSORMAP_BYTES,
)
from gdnbench.sim.ptx.ir import Instruction

MAP_ALIGN = 64  # of a CUtensorMap (CUDA driver API, "Tensor Map Object Management")

# (first bit, bits) of the fields in the encoded map; fields with one entry per dimension at dimension 0.
_ADDRESS = (0, 64)
_RANK = (68, 3)
_ELEMENT_TYPE = (71, 4)
_INTERLEAVE = (75, 2)
_SWIZZLE = (77, 2)
_FILL = (79, 1)
_TF32 = (80, 1)
_SWIZZLE_ATOM = (83, 2)
_STRIDE_LOW = (96, 32)
_STRIDE_HIGH = (224, 4)
_EXTENT = (256, 32)
_ELEMENT_STRIDE = (416, 3)
_BOX = (440, 8)
_MAX_BOX = 256
_MAX_ELEMENT_STRIDE = 8

# Element types that the hardware encodes as f32, plain or flushed, with a bit for rounding to tf32.
_TF32_TYPES = {11: 7, 12: 8}
# The constants of types of less than a byte follow those of tf32: 13 .b4x16, 14 .b4x16_p64, 15 .b6x16_p32.
_PACKED_CONSTANTS = {code + len(_TF32_TYPES): code for code in PACKED_TYPES}

# Fields with constant values: their position and the modelled values.
_CODES: dict[str, tuple[tuple[int, int], frozenset[int]]] = {
    "elemtype": (_ELEMENT_TYPE, frozenset(ELEMENT_TYPES)),
    "swizzle_mode": (_SWIZZLE, frozenset(SWIZZLE_BYTES)),
    "interleave_layout": (_INTERLEAVE, frozenset((0,))),
    "fill_mode": (_FILL, frozenset((0, 1))),
    "swizzle_atomicity": (_SWIZZLE_ATOM, frozenset(SWIZZLE_ATOMS)),
}


def replace_field(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """The encoded tensor map with one field replaced. `ordinal` is the dimension if the field has an entry
    per dimension. Raises KernelFault for a value that no tensor map can have."""
    encoded = int.from_bytes(data, "little")
    for (first, bits), content in _pieces(field, ordinal, value):
        mask = (1 << bits) - 1
        encoded = encoded & ~(mask << first) | (content & mask) << first
    return encoded.to_bytes(len(data), "little")


def _pieces(field: str, ordinal: int, value: int) -> list[tuple[tuple[int, int], int]]:
    """The pieces of a field, each (first bit, bits) and the value to write."""
    if field == "global_address":
        return [(_ADDRESS, value)]
    if field == "rank":
        _demand(field, value < MAX_RANK, value)
        return [(_RANK, value)]
    if field == "elemtype" and value in _TF32_TYPES:
        return [(_ELEMENT_TYPE, _TF32_TYPES[value]), (_TF32, 1)]
    if field == "elemtype" and value in _PACKED_CONSTANTS:
        return [(_ELEMENT_TYPE, _PACKED_CONSTANTS[value]), (_TF32, 0)]
    if field in _CODES:
        place, known = _CODES[field]
        if value not in known:
            raise UnsupportedError(f"tensormap.replace.{field} with {value}")
        return [(place, value), (_TF32, 0)] if field == "elemtype" else [(place, value)]
    dimensions = MAX_RANK - 1 if field == "global_stride" else MAX_RANK
    _demand(f"{field}'s ordinal", ordinal < dimensions, ordinal)
    if field == "global_stride":
        _demand(field, value % STRIDE_UNIT == 0 and value < STRIDE_UNIT << 36, value)
        units = value // STRIDE_UNIT
        return [(_at(_STRIDE_LOW, ordinal), units), (_at(_STRIDE_HIGH, ordinal), units >> 32)]
    if field == "global_dim":
        return [(_at(_EXTENT, ordinal), value - 1)]
    if field == "box_dim":
        _demand(field, 1 <= value <= _MAX_BOX, value)
        return [(_at(_BOX, ordinal), value - 1)]
    assert field == "element_stride"
    _demand(field, 1 <= value <= _MAX_ELEMENT_STRIDE, value)
    return [(_at(_ELEMENT_STRIDE, ordinal), value - 1)]


def _at(place: tuple[int, int], ordinal: int) -> tuple[int, int]:
    first, bits = place
    return first + ordinal * bits, bits


def _demand(what: str, met: bool, value: int) -> None:
    if not met:
        raise KernelFault(FaultKind.DESCRIPTOR, f"tensormap.replace: {what} {value:#x}")


_ORDINAL_FIELDS = frozenset(("box_dim", "global_dim", "global_stride", "element_stride"))
_FIELDS = frozenset(("global_address", "rank", *_ORDINAL_FIELDS, *_CODES))


def _map(cta: Cta, ins: Instruction, address: int) -> Bytes:
    """The bytes of the tensor map at `address`, generic unless the instruction names the space."""
    if ins.has("global"):
        space, offset = "global", address
    elif ins.has("shared::cta"):
        space, offset = "shared", address
    else:
        space, offset = resolve(address)
    if offset % MAP_ALIGN:
        raise KernelFault(
            FaultKind.MISALIGNED, f"tensor map at {space} address {offset:#x}, no multiple of {MAP_ALIGN}"
        )
    if space == "global":
        return cta.memory.view(offset, TENSORMAP_BYTES)
    if space == "shared":
        data = cta.shared.view(offset, TENSORMAP_BYTES)
        if cta.shared.track and not cta.shared.valid[offset : offset + ENCODED_BYTES].all():
            raise KernelFault(
                FaultKind.UNINITIALISED, f"the tensor map at shared address {offset:#x} was not all written"
            )
        return data
    raise KernelFault(FaultKind.OUT_OF_BOUNDS, f"no tensor map at {space} address {offset:#x}")


def _replace(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """PTX ISA, "tensormap.replace": every active lane edits the map at its own address."""
    (field,) = _FIELDS.intersection(ins.mods)
    by_dimension = field in _ORDINAL_FIELDS
    ordinal = uniform_value(sources[1], lanes, "the ordinal") if by_dimension else 0
    mask = (1 << (64 if ins.types == ("b64",) else 32)) - 1
    addresses, values = scalar_operand(sources[0]), scalar_operand(sources[2 if by_dimension else 1])
    for lane in active_lanes(lanes):
        target = _map(cta, ins, int(addresses[lane]))
        value = int(values[lane]) & mask
        target[:ENCODED_BYTES] = np.frombuffer(
            replace_field(target[:ENCODED_BYTES].tobytes(), field, ordinal, value), np.uint8
        )
    return ()


def _copy_and_fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """PTX ISA, "tensormap.cp_fenceproxy": the warp copies one map from shared to global memory."""
    target = uniform_value(sources[0], lanes, "the destination")
    source = uniform_value(sources[1], lanes, "the source")
    _check_size(ins, uniform_value(sources[2], lanes, "the size"))
    for what, address in (("destination", target), ("source", source)):
        if address % MAP_ALIGN:
            raise KernelFault(
                FaultKind.MISALIGNED, f"{ins.op}: {what} {address:#x} is no multiple of {MAP_ALIGN}"
            )
    cta.memory.view(target, TENSORMAP_BYTES)[:] = cta.shared.view(source, TENSORMAP_BYTES)
    return ()


def _fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """PTX ISA, "membar, fence": a release names no address; an acquire names the map that is read next."""
    if not ins.has("cta", "cluster", "gpu", "sys") or ins.has("acquire") == ins.has("release"):
        raise UnsupportedError(ins.name)
    if ins.has("acquire"):
        _check_size(ins, uniform_value(sources[1], lanes, "the size"))
        for lane in active_lanes(lanes):
            space, address = resolve(int(scalar_operand(sources[0])[lane]))
            if space == "global":
                cta.memory.check(address, TENSORMAP_BYTES)
    return ()


def _check_size(ins: Instruction, size: int) -> None:
    if size != TENSORMAP_BYTES:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"{ins.op} of {size} bytes; a tensor map has {TENSORMAP_BYTES}"
        )


HANDLERS: dict[str, Handler] = {
    "tensormap.replace": _replace,
    "tensormap.cp_fenceproxy": _copy_and_fence,
    "fence.proxy.tensormap::generic": _fence,
}
