# SPDX-License-Identifier: Apache-2.0
"""Bulk tensor copies (TMA): boxes of a tensor of rank 1 to 5 between global and shared memory.

Shared memory stores the box row by row, dimension 0 fastest. A row that is shorter than the swizzle's span is
at the start of its span. A swizzle of 128, 64 or 32 bytes then moves each 16-byte unit within its 128 bytes:
bits [4, 7) of the absolute shared address are XORed with bits [7, 10), of which a span of 128, 64, 32 bytes
uses three, two, one (CuTe's Swizzle<3,4,3>, <2,4,3>, <1,4,3>; PTX ISA, "Swizzling modes"). Elements outside
the tensor read as zero and are not written. A load's mbarrier still counts the whole box (PTX ISA, "Out of
boundary access"; CUTLASS counts the bytes of the full tile too). Where the documents are silent, this module
does what an sm_90 GPU does; tests/sim/silicon has the measurements.

`.tile::gather4` loads and `.tile::scatter4` stores four boxes of one row each, at one column and four rows,
as the four rows of one box in shared memory (PTX ISA 5.5.3.4). All rules of a box hold for each of them: rows
outside the tensor are loaded as zeros and not stored, and a store below zero is illegal (Triton's tutorial of
native gather and scatter states both of a B200).

Of elements of 4 or 6 bits, what is copied and counted is their bytes in global memory; a load adds padding in
shared memory, a store of 6 bits removes it (`tensor_elements.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.bulk import (
    check_same_cta,
    count_traffic,
    destinations,
    issued_operations,
    refuse_unknown,
    submit_bulk,
    with_place,
)
from gdnbench.sim.machine.copied_shadows import CopiedBoxes
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import Chunks, Strided
from gdnbench.sim.machine.memory import POISON, Bytes, resolve
from gdnbench.sim.machine.operands import SHARED_SPACES, scalar_operand, vector_operand
from gdnbench.sim.machine.reduce import OPERATIONS, reduce
from gdnbench.sim.machine.shared_memory import in_cta, rank_of
from gdnbench.sim.machine.tensor_elements import (
    convert_elements,
    defined_bytes,
    fill_outside,
    pack_elements,
    spread_elements,
)
from gdnbench.sim.machine.tensormap import (
    ENCODED_BYTES,
    MAX_RANK,
    PADDED_ALIGN,
    PADDED_BOX,
    TENSORMAP_BYTES,
    TensorMap,
    decode_tensormap,
)
from gdnbench.sim.ptx.ir import Instruction

UNIT = 16
SHARED_ALIGN = 128
DESCRIPTOR_ALIGN = 64
GLOBAL_ALIGN = 16
_POISON_UNIT = np.full(UNIT, POISON, np.uint8).view(f"V{UNIT}")[0]
# (span, atom) -> bits of the line's number that are XORed into the number of the unit, and their shift.
_SWIZZLES = {(128, 16): (7, 0), (64, 16): (3, 0), (32, 16): (1, 0), (128, 32): (3, 1), (128, 64): (1, 2)}

_RANKS = tuple(f"{rank}d" for rank in range(1, MAX_RANK + 1))
_FOUR_ROWS = ("tile::gather4", "tile::scatter4")
_COMMON = frozenset((*_RANKS, "tile", "global", "L2::cache_hint", *SHARED_SPACES))
_LOAD = _COMMON | {
    *("tile::gather4", "mbarrier::complete_tx::bytes", "multicast::cluster"),
    *("cta_group::1", "cta_group::2"),
}
_STORE = _COMMON | {"tile::scatter4", "bulk_group"}

_decode = lru_cache(maxsize=1024)(decode_tensormap)


@dataclass(frozen=True, slots=True)
class Box:
    """The part of a box inside the tensor. Dimensions are outermost first, the last one in bytes: `inside`
    slices the part out of the box of `shape`; `strides` step through global memory from `address`."""

    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    address: int
    strides: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Extents of the part inside."""
        return tuple(part.stop - part.start for part in self.inside)

    @property
    def empty(self) -> bool:
        return any(part.stop <= part.start for part in self.inside)

    @property
    def size(self) -> int:
        """Bytes inside the tensor: the global memory traffic, without a load's zeros outside."""
        return 0 if self.empty else prod(self.counts)


def place_box(tensor: TensorMap, coordinates: tuple[int, ...]) -> Box:
    """The box at `coordinates` (dimension 0 first), which may be partly or wholly outside the tensor."""
    address = tensor.address
    inside: list[slice] = []
    strides: list[int] = []
    steps = (1, *tensor.element_strides[1:])
    for start_at, taken, extent, stride, step in zip(
        coordinates, tensor.copied, tensor.dims, tensor.strides, steps, strict=True
    ):
        low = min(-(min(0, start_at) // step), taken)
        high = max(low, min(taken, -((start_at - extent) // step)))
        inside.append(slice(low, high))
        strides.append(stride * step)
        address += (start_at + low * step) * stride
    if tensor.packed is not None:
        address += tensor.bytes_of(coordinates[0] + inside[0].start)
    inside[0] = slice(tensor.bytes_of(inside[0].start), tensor.bytes_of(inside[0].stop))
    return Box(
        shape=(*tensor.copied[:0:-1], tensor.bytes_of(tensor.box[0])),
        inside=tuple(inside[::-1]),
        address=address,
        strides=(*strides[:0:-1], 1),
    )


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of a copy, in the order of shared memory: one, or four of one row each. `tensor_bytes` is
    where they are in the tensor, `size` how many bytes of them are."""

    boxes: tuple[Box, ...]
    tensor_bytes: tuple[Strided, ...]
    size: int


@lru_cache(maxsize=1 << 12)
def _boxes(tensor: TensorMap, where: tuple[int, ...], four_rows: bool) -> Boxes:
    """The boxes of a copy at these coordinates. A kernel loads many of them several times."""
    column, *rows = where
    places = [(column, row) for row in rows] if four_rows else [where]
    boxes = tuple(place_box(tensor, place) for place in places)
    spans = tuple(Strided(box.address, box.counts, box.strides) for box in boxes)
    return Boxes(boxes, spans, sum(box.size for box in boxes))


@lru_cache(maxsize=256)
def _swizzled(units: int, row: int, pitch: int, first: int, swizzle: tuple[int, int]) -> npt.NDArray[np.intp]:
    """The position of unit i of a box, relative to its first unit. `first` is that unit's address / 16,
    modulo 64. `row` is the units per row, `pitch` the units from one row to the next."""
    mask, shift = swizzle
    index = np.arange(units, dtype=np.intp)
    unit = first + index // row * pitch + index % row
    return (unit ^ (unit >> 3 & mask) << shift) - first


@lru_cache(maxsize=256)
def _units_of_boxes(tensor: TensorMap, first: int, boxes: int) -> npt.NDArray[np.intp]:
    """`_units` relative to the first unit, whose address / 16 is `first` modulo 64."""
    row, pitch = tensor.shared_row, _pitch(tensor)
    swizzle = _SWIZZLES.get((tensor.swizzle, tensor.atom), (0, 0))
    units = boxes * tensor.rows * row // UNIT
    return _swizzled(units, row // UNIT, pitch // UNIT, first, swizzle).reshape(boxes, -1)


def _units(tensor: TensorMap, address: int, boxes: int) -> npt.NDArray[np.intp]:
    """The 16-byte units of shared memory of each box, [boxes, units], in the order of the box."""
    first = address // UNIT
    return first + _units_of_boxes(tensor, first % 64, boxes)


def _pitch(tensor: TensorMap) -> int:
    """Bytes from one row of the box in shared memory to the next: at least a swizzle span."""
    return max(tensor.shared_row, tensor.swizzle)


@lru_cache(maxsize=256)
def _extent(tensor: TensorMap, boxes: int) -> int:
    """Bytes of shared memory from the first row of the first box to the end of the last box's last."""
    return boxes * tensor.rows * _pitch(tensor)


def _descriptor(cta: Cta, address: int) -> TensorMap:
    """The tensor map at a generic address: a kernel parameter or global memory."""
    space, offset = resolve(address)
    if offset % DESCRIPTOR_ALIGN:
        raise KernelFault(
            FaultKind.MISALIGNED, f"tensor map at {address:#x}, no multiple of {DESCRIPTOR_ALIGN}"
        )
    if space == "param" and offset + TENSORMAP_BYTES <= len(cta.param):
        data = cta.param[offset : offset + ENCODED_BYTES]
    elif space == "global":
        data = cta.memory.view(address, TENSORMAP_BYTES)[:ENCODED_BYTES].tobytes()
    else:
        raise KernelFault(FaultKind.OUT_OF_BOUNDS, f"no tensor map at {space} address {offset:#x}")
    tensor: TensorMap = _decode(data)
    return tensor


def _check(ins: Instruction, tensor: TensorMap, shared: int, where: tuple[int, ...]) -> None:
    """Check the requirements of the PTX ISA and of cuTensorMapEncodeTiled (CUDA driver API). That the first
    coordinate is a multiple of 16 bytes is required by an sm_90 GPU (tests/sim/silicon/tma_limits.py)."""
    if _RANKS[tensor.rank - 1] not in ins.mods:
        raise KernelFault(FaultKind.DESCRIPTOR, f"{ins.name} with a tensor map of rank {tensor.rank}")
    _check_coordinates(ins, tensor, where)
    _check_tensor(tensor)
    if tensor.packed is not None:
        _check_packed(ins, tensor, where[0])
    elif where[0] * tensor.element_bytes % UNIT:
        raise KernelFault(
            FaultKind.MISALIGNED,
            f"{ins.op} at {where[0]}: its bytes in dimension 0 are no multiple of {UNIT}",
        )
    if shared % SHARED_ALIGN:
        raise KernelFault(
            FaultKind.MISALIGNED, f"{ins.op}: shared address {shared:#x} is no multiple of {SHARED_ALIGN}"
        )


@lru_cache(maxsize=256)
def _check_tensor(tensor: TensorMap) -> None:
    row = tensor.shared_row
    if row % UNIT:
        raise KernelFault(FaultKind.DESCRIPTOR, f"a box row of {row} bytes, no multiple of {UNIT}")
    if tensor.address % GLOBAL_ALIGN:
        raise KernelFault(FaultKind.DESCRIPTOR, f"a tensor map of a tensor at {tensor.address:#x}")
    if tensor.swizzle and row > tensor.swizzle:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"a box row of {row} bytes, with swizzle {tensor.swizzle} at most that many"
        )


def _check_packed(ins: Instruction, tensor: TensorMap, column: int) -> None:
    """PTX ISA, "Restriction on Tensor Copy instructions", and cuTensorMapEncodeTiled, of the types of less
    than a byte. `column` is the first coordinate."""
    packed = tensor.packed
    assert packed is not None
    unit = PADDED_BOX if packed.padded else 2 * UNIT  # elements of 16 bytes in shared memory, or a row
    if column % unit:
        raise KernelFault(
            FaultKind.MISALIGNED, f"{ins.op} of {packed.name} at {column}: no multiple of {unit} elements"
        )
    wrong = ""
    if ins.form.reduces:
        wrong = "a reduction"
    elif ins.has("bulk_group") and packed.name == "b4x16_p64":
        wrong = "a store"
    elif tensor.fill_nan:
        wrong = "a fill with NaN"
    elif packed.padded and (tensor.box[0] != PADDED_BOX or tensor.dims[0] % PADDED_BOX):
        wrong = f"a box of {tensor.box[0]} of {tensor.dims[0]} elements in dimension 0"
    elif packed.padded and any(n % PADDED_ALIGN for n in (tensor.address, *tensor.strides[1:])):
        wrong = f"address {tensor.address:#x} and strides {tensor.strides[1:]}"
    elif packed.padded and tensor.swizzle not in (0, 128):
        wrong = f"swizzle {tensor.swizzle}"
    elif tensor.dims[0] % 2:
        wrong = f"an extent of {tensor.dims[0]}"
    if wrong:
        raise KernelFault(FaultKind.DESCRIPTOR, f"{ins.op} of {packed.name} with {wrong}")


def _check_coordinates(ins: Instruction, tensor: TensorMap, where: tuple[int, ...]) -> None:
    """PTX ISA 5.5.3.4.1: gather4 and scatter4 take a column and four rows, and a box of one row."""
    mode = ins.choice(*_FOUR_ROWS)
    if len(where) != (5 if mode else tensor.rank):
        raise UnsupportedError(f"{ins.name} with {len(where)} coordinates")
    if mode and tensor.box[1] != 1:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"{ins.op}.{mode} with a box of {tensor.box[1]} rows; it must have one"
        )


def _signed(value: int) -> int:
    """A coordinate: the low 32 bits as a signed number."""
    return (value & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000


def _tensor_copy(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor. The position of the descriptor operand
    distinguishes loads from stores."""
    if isinstance(sources[0], tuple):
        refuse_unknown(ins, _STORE | OPERATIONS if ins.form.reduces else _STORE)
        descriptor, *coordinates = vector_operand(sources[0])
        arguments = (scalar_operand(sources[1]), descriptor, *coordinates)
        for members, (shared, address, *where) in issued_operations(cta, ins, lanes, *arguments):
            _store(cta, warp, ins, members, shared, address, tuple(map(_signed, where)))
        return ()
    refuse_unknown(ins, _LOAD)
    descriptor, *coordinates = vector_operand(sources[1])
    multicast = ins.has("multicast::cluster")
    mask = [scalar_operand(sources[3])] if multicast else []
    arguments = (*mask, scalar_operand(sources[0]), scalar_operand(sources[2]), descriptor, *coordinates)
    for members, given in issued_operations(cta, ins, lanes, *arguments):
        shared, barrier, address, *where = given[len(mask) :]
        check_same_cta(ins, shared, barrier)
        # A multicast is an operation for each CTA that receives the box, at the same addresses in each.
        ranks = destinations(cta, ins, given[0]) if multicast else [rank_of(shared)]
        for rank in ranks:
            to = (shared, barrier)
            if multicast:
                to = in_cta(shared, rank), in_cta(barrier, _signalled(ins, rank, rank_of(barrier)))
            size = _load(cta, warp, ins, members, *to, address, tuple(map(_signed, where)))
        count_traffic(cta, "global", "shared", size)
    return ()


def _signalled(ins: Instruction, rank: int, barrier: int) -> int:
    """The rank of the CTA whose mbarrier counts the bytes that a multicast brings to the CTA of `rank`: that
    CTA itself. With .cta_group::2 it is that of its pair that is even or odd as the CTA of the mbarrier
    operand, of rank `barrier` (PTX ISA, "cp.async.bulk.tensor")."""
    return rank & ~1 | barrier & 1 if ins.has("cta_group::2") else rank


def _load(
    cta: Cta,
    warp: Warp,
    ins: Instruction,
    members: list[int],
    shared: int,
    barrier: int,
    address: int,
    where: tuple[int, ...],
) -> int:
    """A box from global to shared memory of one CTA. Returns the bytes that are read from global memory."""
    tensor = _descriptor(cta, address)
    _check(ins, tensor, shared, where)
    placed = _boxes(tensor, where, ins.has(*_FOUR_ROWS))
    boxes = placed.boxes
    size = len(boxes) * tensor.box_bytes
    memory = cta.cluster_shared if ins.has("shared::cluster") else cta.shared
    memory.check(shared, _extent(tensor, len(boxes)))
    units, order = memory.units, _units(tensor, shared, len(boxes))
    sources = [_in_memory(cta, box) for box in boxes]
    data = np.empty((len(boxes), *boxes[0].shape), np.uint8)
    shadows = CopiedBoxes(cta, ins, tensor, boxes, order, memory) if cta.launch.shadowed else None

    def read() -> None:
        if shadows is not None:
            shadows.load()
        if placed.size < data.size:
            fill_outside(data, tensor)
        for into, box, source in zip(data, boxes, sources, strict=True):
            if source is not None:
                into[box.inside] = convert_elements(source, tensor)

    def land() -> None:
        memory.check(shared, size)
        units[order] = spread_elements(data, tensor).reshape(len(boxes), -1).view(units.dtype)
        if shadows is not None:
            shadows.to_shared()
        if memory.track:
            defined = defined_bytes(tensor)
            memory.valid.reshape(-1, UNIT)[order] = True if defined is None else defined
        mbarrier.complete_tx(cta.cluster_shared if ins.has("cta_group::2") else memory, barrier, size)

    operation = AsyncOperation(
        ins.op,
        land=with_place(ins, land),
        read=read,
        signals=(barrier,),
        reads=placed.tensor_bytes,
        writes=(Chunks(order, UNIT),) if cta.checker is not None else (),
    )
    submit_bulk(cta, warp, ins, members, operation, lambda: units.__setitem__(order, _POISON_UNIT))
    return placed.size


def _store(
    cta: Cta,
    warp: Warp,
    ins: Instruction,
    members: list[int],
    shared: int,
    address: int,
    where: tuple[int, ...],
) -> None:
    """A box from shared to global memory, copied or reduced into it."""
    tensor = _descriptor(cta, address)
    _check(ins, tensor, shared, where)
    if min(where) < 0:
        # An sm_90 GPU raises an illegal instruction error (tests/sim/silicon/tma_limits.py).
        raise KernelFault(FaultKind.OUT_OF_BOUNDS, f"{ins.op} to global memory at {where}, below zero")
    placed = _boxes(tensor, where, ins.has(*_FOUR_ROWS))
    boxes = placed.boxes
    _note_equal_rows(cta, ins, boxes)
    cta.shared.check(shared, _extent(tensor, len(boxes)))
    order = _units(tensor, shared, len(boxes))
    targets = [_in_memory(cta, box) for box in boxes]
    beyond = [_beyond(cta, ins, box) for box in boxes]
    parts = tuple(_in_shared(tensor, box, units) for box, units in zip(boxes, order, strict=True))
    data = np.empty((len(boxes), *boxes[0].shape), np.uint8)
    reducing = ins.form.reduces
    shadows = CopiedBoxes(cta, ins, tensor, boxes, order, cta.shared) if cta.launch.shadowed else None

    def read() -> None:
        if shadows is not None:
            shadows.from_shared()
        whole = pack_elements(cta.shared.units[order].view(np.uint8), tensor)
        data.reshape(len(boxes), -1)[:] = whole.reshape(len(boxes), -1)
        if cta.shared.track:
            for part in parts:
                _check_written(cta, part)

    def land() -> None:
        for rows, box, target, past in zip(data, boxes, targets, beyond, strict=True):
            if target is None:
                continue
            part = rows[box.inside]
            before = target.copy() if shadows is not None else target
            target[...] = reduce(ins, tensor.dtype, target, part) if reducing else part
            if shadows is not None:
                shadows.store(box, before, part, target)
            for where_in_box, memory in past:
                more = rows[where_in_box]
                memory[...] = reduce(ins, tensor.dtype, memory, more) if reducing else more

    def poison() -> None:
        for target in targets:
            if target is not None:
                target[...] = POISON

    operation = AsyncOperation(
        ins.op,
        land=with_place(ins, land),
        read=with_place(ins, read),
        reads=parts,
        writes=placed.tensor_bytes,
    )
    submit_bulk(cta, warp, ins, members, operation, None if reducing else poison)
    moved = placed.size + sum(memory.size for past in beyond for _, memory in past)
    count_traffic(cta, "shared", "global", moved)


def _note_equal_rows(cta: Cta, ins: Instruction, boxes: tuple[Box, ...]) -> None:
    """No document says which of two equal rows of a scatter4 is stored last."""
    stored = [box.address for box in boxes if not box.empty]
    if len({*stored}) < len(stored):
        cta.note(f"{ins.op}.tile::scatter4 stores a row twice: which of the two stays is not defined", ins)


def _beyond(cta: Cta, ins: Instruction, box: Box) -> list[tuple[tuple[int | slice, ...], Bytes]]:
    """The bytes that a store writes past the end of dimension 0: an sm_90 GPU writes whole units of 16 bytes
    and overruns an extent that is no multiple of 16 (tests/sim/silicon/tma.py). For each row: the position in
    the box, and the destination. Rows whose unit ends outside the launch's memory are left out."""
    stop = box.inside[-1].stop
    end = -(-stop // UNIT) * UNIT
    if box.empty or end == stop:
        return []
    cta.note(f"{ins.op} writes whole units of {UNIT} bytes, {end - stop} bytes past dimension 0", ins)
    found: list[tuple[tuple[int | slice, ...], Bytes]] = []
    for row in np.ndindex(*box.counts[:-1]):
        steps = zip(row, box.strides[:-1], strict=True)
        address = box.address + sum(index * stride for index, stride in steps) + box.counts[-1]
        try:
            memory = cta.memory.view(address, end - stop)
        except KernelFault:
            continue
        rows = (part.start + index for part, index in zip(box.inside[:-1], row, strict=True))
        found.append(((*rows, slice(stop, end)), memory))
    return found


def _in_shared(tensor: TensorMap, box: Box, units: npt.NDArray[np.intp]) -> Chunks:
    """The bytes of shared memory of a box inside the tensor. With padding, dimension 0 is all inside or all
    outside."""
    row, inside = tensor.shared_row, box.inside[-1]
    if tensor.packed is not None and tensor.packed.padded:
        inside = slice(0, row if inside.stop > inside.start else 0)
    return Chunks(units, UNIT, shape=(*box.shape[:-1], row), inside=(*box.inside[:-1], inside))


def _check_written(cta: Cta, part: Chunks) -> None:
    """Raises KernelFault for a store of bytes inside the tensor that were never written."""
    valid = cta.shared.valid.reshape(-1, UNIT)[part.units].reshape(part.shape)
    if not valid[part.inside].all():
        message = f"the box at shared address {int(part.units[0]) * UNIT:#x} was not all written"
        cta.skip(KernelFault(FaultKind.UNINITIALISED, message))


def _in_memory(cta: Cta, box: Box) -> Bytes | None:
    """A view of the global bytes of a box inside the tensor; None if there are none."""
    return None if box.empty else cta.memory.strided(box.address, box.counts, box.strides)


def _prefetch(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """A prefetch into L2 changes no value; its tensor map must be valid."""
    refuse_unknown(ins, _COMMON | {"tile::gather4", "L2"})
    descriptor, *coordinates = vector_operand(sources[0])
    for _, (address, *where) in issued_operations(cta, ins, lanes, descriptor, *coordinates):
        _check_coordinates(ins, _descriptor(cta, address), tuple(where))
    return ()


HANDLERS: dict[str, Handler] = {
    "cp.async.bulk.tensor": _tensor_copy,
    "cp.reduce.async.bulk.tensor": _tensor_copy,
    "cp.async.bulk.prefetch.tensor": _prefetch,
}
