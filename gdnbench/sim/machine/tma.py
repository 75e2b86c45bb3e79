"""Bulk tensor copies (TMA): boxes of a tensor of rank 1 to 5 between global and shared memory.

Shared memory stores the box row by row, dimension 0 fastest. A row that is shorter than the swizzle's span is
at the start of its span. A swizzle of 128, 64 or 32 bytes then moves each 16-byte unit within its 128 bytes:
bits [4, 7) of the absolute shared address are XORed with bits [7, 10), of which a span of 128, 64, 32 bytes
uses three, two, one (CuTe's Swizzle<3,4,3>, <2,4,3>, <1,4,3>; PTX ISA, "Swizzling modes"). Elements outside
the tensor read as zero and are not written. A load's mbarrier still counts the whole box (PTX ISA, "Out of
boundary access"; CUTLASS counts the bytes of the full tile too). Where the documents are silent, this module
does what an sm_90 GPU does; tests/sim/silicon has the measurements.
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
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.footprint import Chunks, Strided
from gdnbench.sim.machine.memory import POISON, Bytes, in_cta, rank_of, resolve
from gdnbench.sim.machine.operands import SHARED_SPACES, scalar_operand, vector_operand
from gdnbench.sim.machine.reduce import OPERATIONS, reduce
from gdnbench.sim.machine.tensor_elements import convert_elements, fill_outside
from gdnbench.sim.machine.tensormap import (
    ENCODED_BYTES,
    MAX_RANK,
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
_SWIZZLE_MASK = {128: 7, 64: 3, 32: 1}

_RANKS = tuple(f"{rank}d" for rank in range(1, MAX_RANK + 1))
_COMMON = frozenset((*_RANKS, "tile", "global", "L2::cache_hint", *SHARED_SPACES))
_LOAD = _COMMON | {"mbarrier::complete_tx::bytes", "cta_group::1", "multicast::cluster"}
_STORE = _COMMON | {"bulk_group"}

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
    size = tensor.element_bytes
    inside[0] = slice(inside[0].start * size, inside[0].stop * size)
    return Box(
        shape=(*tensor.copied[:0:-1], tensor.box[0] * size),
        inside=tuple(inside[::-1]),
        address=address,
        strides=(*strides[:0:-1], 1),
    )


@lru_cache(maxsize=256)
def _swizzled(units: int, row: int, pitch: int, first: int, mask: int) -> npt.NDArray[np.intp]:
    """The position of unit i of a box, relative to its first unit. `first` is that unit's address / 16,
    modulo 64. `row` is the units per row, `pitch` the units from one row to the next."""
    index = np.arange(units, dtype=np.intp)
    unit = first + index // row * pitch + index % row
    return (unit ^ (unit >> 3 & mask)) - first


def _units(tensor: TensorMap, address: int) -> npt.NDArray[np.intp]:
    """The 16-byte units of shared memory of a box, in the order of the box."""
    first = address // UNIT
    row, pitch = _row(tensor)
    mask = _SWIZZLE_MASK.get(tensor.swizzle, 0)
    return first + _swizzled(tensor.box_bytes // UNIT, row // UNIT, pitch // UNIT, first % 64, mask)


def _row(tensor: TensorMap) -> tuple[int, int]:
    """(bytes of a row of the box, bytes to the next row). The second is at least a swizzle span."""
    row = tensor.box[0] * tensor.element_bytes
    return row, max(row, tensor.swizzle)


def _extent(tensor: TensorMap) -> int:
    """Bytes of shared memory from the first row of a box to the end of its last."""
    row, pitch = _row(tensor)
    return tensor.box_bytes // row * pitch


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
    if not ins.has(f"{tensor.rank}d"):
        raise KernelFault(FaultKind.DESCRIPTOR, f"{ins.name} with a tensor map of rank {tensor.rank}")
    if len(where) != tensor.rank:
        raise UnsupportedError(f"{ins.name} with {len(where)} coordinates")
    row = tensor.box[0] * tensor.element_bytes
    if row % UNIT:
        raise KernelFault(FaultKind.DESCRIPTOR, f"a box row of {row} bytes, no multiple of {UNIT}")
    if tensor.address % GLOBAL_ALIGN:
        raise KernelFault(FaultKind.DESCRIPTOR, f"a tensor map of a tensor at {tensor.address:#x}")
    if tensor.swizzle and row > tensor.swizzle:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"a box row of {row} bytes, with swizzle {tensor.swizzle} at most that many"
        )
    if where[0] * tensor.element_bytes % UNIT:
        raise KernelFault(
            FaultKind.MISALIGNED,
            f"{ins.op} at {where[0]}: its bytes in dimension 0 are no multiple of {UNIT}",
        )
    if shared % SHARED_ALIGN:
        raise KernelFault(
            FaultKind.MISALIGNED, f"{ins.op}: shared address {shared:#x} is no multiple of {SHARED_ALIGN}"
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
            to = (in_cta(shared, rank), in_cta(barrier, rank)) if multicast else (shared, barrier)
            size = _load(cta, warp, ins, members, *to, address, tuple(map(_signed, where)))
        count_traffic(cta, "global", "shared", size)
    return ()


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
    size = tensor.box_bytes
    memory = cta.cluster_shared if ins.has("shared::cluster") else cta.shared
    memory.check(shared, _extent(tensor))
    units, order = memory.units, _units(tensor, shared)
    box = place_box(tensor, where)
    source = None if box.empty else cta.memory.strided(box.address, box.counts, box.strides)
    data = np.empty(box.shape, np.uint8)

    def read() -> None:
        fill_outside(data, tensor)
        if source is not None:
            data[box.inside] = convert_elements(source, tensor)

    def land() -> None:
        memory.check(shared, size)
        units[order] = data.reshape(-1).view(units.dtype)
        if memory.track:
            memory.valid.reshape(-1, UNIT)[order] = True
        mbarrier.complete_tx(memory, barrier, size)

    operation = AsyncOperation(
        ins.op,
        land=with_place(ins, land),
        read=read,
        signals=(barrier,),
        reads=(_in_tensor(box),),
        writes=(Chunks(order, UNIT),),
    )
    submit_bulk(cta, warp, ins, members, operation, lambda: units.__setitem__(order, _POISON_UNIT))
    return box.size


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
    cta.shared.check(shared, _extent(tensor))
    order = _units(tensor, shared)
    box = place_box(tensor, where)
    target = None if box.empty else cta.memory.strided(box.address, box.counts, box.strides)
    beyond = _beyond(cta, ins, box)
    data = np.empty(box.shape, np.uint8)
    reducing = ins.form.reduces

    def read() -> None:
        data.reshape(-1)[:] = cta.shared.units[order].view(np.uint8)
        if cta.shared.track:
            _check_written(cta, box, order)

    def land() -> None:
        if target is None:
            return
        part = data[box.inside]
        target[...] = reduce(ins, tensor.dtype, target, part) if reducing else part
        for where_in_box, memory in beyond:
            more = data[where_in_box]
            memory[...] = reduce(ins, tensor.dtype, memory, more) if reducing else more

    def poison() -> None:
        if target is not None:
            target[...] = POISON

    operation = AsyncOperation(
        ins.op,
        land=with_place(ins, land),
        read=with_place(ins, read),
        reads=(Chunks(order, UNIT, shape=box.shape, inside=box.inside),),
        writes=(_in_tensor(box),),
    )
    submit_bulk(cta, warp, ins, members, operation, None if reducing else poison)
    count_traffic(cta, "shared", "global", box.size + sum(memory.size for _, memory in beyond))


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


def _check_written(cta: Cta, box: Box, order: npt.NDArray[np.intp]) -> None:
    """Raises KernelFault for a store of bytes inside the tensor that were never written."""
    valid = cta.shared.valid.reshape(-1, UNIT)[order].reshape(box.shape)
    if not valid[box.inside].all():
        message = f"the box at shared address {int(order[0]) * UNIT:#x} was not all written"
        cta.skip(KernelFault(FaultKind.UNINITIALISED, message))


def _in_tensor(box: Box) -> Strided:
    """The global bytes of a box inside the tensor."""
    return Strided(box.address, box.counts, box.strides)


def _prefetch(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """A prefetch into L2 changes no value; its tensor map must be valid."""
    refuse_unknown(ins, _COMMON | {"L2"})
    descriptor, *_ = vector_operand(sources[0])
    for _, (address,) in issued_operations(cta, ins, lanes, descriptor):
        _descriptor(cta, address)
    return ()


HANDLERS: dict[str, Handler] = {
    "cp.async.bulk.tensor": _tensor_copy,
    "cp.reduce.async.bulk.tensor": _tensor_copy,
    "cp.async.bulk.prefetch.tensor": _prefetch,
}
