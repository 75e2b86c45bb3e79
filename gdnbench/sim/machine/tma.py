"""Bulk tensor copies (TMA): boxes of a tensor of rank 1 to 5 between global and shared memory.

The box lies in shared memory without gaps, dimension 0 fastest. A swizzle of 128, 64 or 32 bytes then moves
each 16-byte unit within its 128 bytes, by the absolute shared address: bits [4, 7) of the address are XORed
with bits [7, 10), of which a span of 128, 64, 32 bytes takes three, two, one (CuTe's Swizzle<3,4,3>,
<2,4,3>, <1,4,3>; PTX ISA, "Swizzling modes"). Elements outside the tensor read as zero and are not written;
a load's mbarrier counts the whole box all the same (PTX ISA, "Out of boundary access"; CUTLASS counts a
tile's bytes without regard to its tail).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine import mbarrier
from gdnbench.sim.machine.async_queue import AsyncOperation, Span
from gdnbench.sim.machine.bulk import count, operations, placed, refuse_unknown, start
from gdnbench.sim.machine.memory import POISON, resolve
from gdnbench.sim.machine.operands import SHARED_SPACES, many, one
from gdnbench.sim.machine.reduce import OPERATIONS, reduce
from gdnbench.sim.machine.seam import Argument, Handler, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.tensormap import ENCODED_BYTES, MAX_RANK, TENSORMAP_BYTES, TensorMap, decode
from gdnbench.sim.ptx.ir import Instruction

if TYPE_CHECKING:
    from gdnbench.sim.machine.cta import Cta

UNIT = 16
SHARED_ALIGN = 128
DESCRIPTOR_ALIGN = 64
GLOBAL_ALIGN = 16
_SWIZZLE_MASK = {128: 7, 64: 3, 32: 1}

_RANKS = tuple(f"{rank}d" for rank in range(1, MAX_RANK + 1))
_COMMON = frozenset((*_RANKS, "tile", "global", "L2::cache_hint", *SHARED_SPACES))
_LOAD = _COMMON | {"mbarrier::complete_tx::bytes", "cta_group::1"}
_STORE = _COMMON | {"bulk_group"}

_decode = lru_cache(maxsize=1024)(decode)


@dataclass(frozen=True, slots=True)
class Box:
    """The part of a box that lies in the tensor. Dimensions outermost first, the last one in bytes:
    `inside` cuts it out of the box of `shape`, `strides` step through global memory from `address`."""

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


def place_box(tensor: TensorMap, coordinates: tuple[int, ...]) -> Box:
    """The box at `coordinates` (dimension 0 first), which may lie outside the tensor in part or as a
    whole."""
    address = tensor.address
    inside: list[slice] = []
    for start_at, box, extent, stride in zip(
        coordinates, tensor.box, tensor.dims, tensor.strides, strict=True
    ):
        low = min(max(0, -start_at), box)
        high = max(low, min(box, extent - start_at))
        inside.append(slice(low, high))
        address += (start_at + low) * stride
    size = tensor.element_bytes
    inside[0] = slice(inside[0].start * size, inside[0].stop * size)
    return Box(
        shape=(*tensor.box[:0:-1], tensor.box[0] * size),
        inside=tuple(inside[::-1]),
        address=address,
        strides=(*tensor.strides[:0:-1], 1),
    )


@lru_cache(maxsize=256)
def _swizzled(units: int, first: int, mask: int) -> npt.NDArray[np.intp]:
    """Where unit i of a box goes, relative to its first unit; `first` is that unit's address / 16, modulo
    64."""
    unit = np.arange(first, first + units, dtype=np.intp)
    return (unit ^ (unit >> 3 & mask)) - first


def _units(address: int, size: int, swizzle: int) -> npt.NDArray[np.intp]:
    """The 16-byte units of shared memory that hold a box, in the order of the box."""
    first = address // UNIT
    return first + _swizzled(size // UNIT, first % 64, _SWIZZLE_MASK.get(swizzle, 0))


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


def _check(ins: Instruction, tensor: TensorMap, shared: int) -> None:
    """What the PTX ISA and cuTensorMapEncodeTiled (CUDA driver API) demand of a box."""
    if not ins.has(f"{tensor.rank}d"):
        raise KernelFault(FaultKind.DESCRIPTOR, f"{ins.name} with a tensor map of rank {tensor.rank}")
    row = tensor.box[0] * tensor.element_bytes
    if row % UNIT:
        raise KernelFault(FaultKind.DESCRIPTOR, f"a box row of {row} bytes, no multiple of {UNIT}")
    if tensor.address % GLOBAL_ALIGN:
        raise KernelFault(FaultKind.DESCRIPTOR, f"a tensor map of a tensor at {tensor.address:#x}")
    if tensor.swizzle and row > tensor.swizzle:
        raise KernelFault(
            FaultKind.DESCRIPTOR, f"a box row of {row} bytes, with swizzle {tensor.swizzle} at most that many"
        )
    if tensor.swizzle and row < tensor.swizzle:
        raise UnsupportedError(f"a box row of {row} bytes under a swizzle of {tensor.swizzle}")
    if shared % SHARED_ALIGN:
        raise KernelFault(
            FaultKind.MISALIGNED, f"{ins.op}: shared address {shared:#x} is no multiple of {SHARED_ALIGN}"
        )


def _signed(value: int) -> int:
    """A coordinate: the low 32 bits, signed."""
    return (value & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000


def _tensor_copy(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor: a load is told by where its descriptor stands."""
    if isinstance(sources[0], tuple):
        refuse_unknown(ins, _STORE | OPERATIONS if ins.op.startswith("cp.reduce") else _STORE)
        descriptor, *coordinates = many(sources[0])
        arguments = (one(sources[1]), descriptor, *coordinates)
        for members, (shared, address, *where) in operations(cta, ins, lanes, *arguments):
            _store(cta, warp, ins, members, shared, address, tuple(map(_signed, where)))
        return ()
    refuse_unknown(ins, _LOAD)
    descriptor, *coordinates = many(sources[1])
    arguments = (one(sources[0]), one(sources[2]), descriptor, *coordinates)
    for members, (shared, barrier, address, *where) in operations(cta, ins, lanes, *arguments):
        _load(cta, warp, ins, members, shared, barrier, address, tuple(map(_signed, where)))
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
) -> None:
    """A box from global to shared memory."""
    tensor = _descriptor(cta, address)
    _check(ins, tensor, shared)
    size = tensor.box_bytes
    target = cta.shared.view(shared, size)
    box = place_box(tensor, where)
    source = None if box.empty else cta.memory.strided(box.address, box.counts, box.strides)
    data = np.zeros(box.shape, np.uint8)

    def read() -> None:
        if source is not None:
            data[box.inside] = source

    def land() -> None:
        flat = data.reshape(-1)
        if tensor.swizzle:
            cta.shared.units[_units(shared, size, tensor.swizzle)] = flat.view(cta.shared.units.dtype)
        else:
            target[:] = flat
        cta.shared.written(shared, size)
        mbarrier.complete_tx(cta.shared, barrier, size)

    operation = AsyncOperation(
        ins.op,
        land=placed(ins, land),
        read=read,
        signals=(barrier,),
        reads=(_reach(box),),
        writes=(Span("shared", shared, size),),
    )
    start(cta, warp, ins, members, operation, lambda: target.fill(POISON))
    count(cta, "global", "shared", size)


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
    _check(ins, tensor, shared)
    size = tensor.box_bytes
    cta.shared.check(shared, size)
    box = place_box(tensor, where)
    target = None if box.empty else cta.memory.strided(box.address, box.counts, box.strides)
    data = np.empty(box.shape, np.uint8)
    reducing = ins.op.startswith("cp.reduce")

    def read() -> None:
        order = _units(shared, size, tensor.swizzle)
        data.reshape(-1)[:] = cta.shared.units[order].view(np.uint8)
        if cta.shared.track:
            _check_written(cta, box, order)

    def land() -> None:
        if target is None:
            return
        part = data[box.inside]
        target[...] = reduce(ins, tensor.dtype, target, part) if reducing else part

    def poison() -> None:
        if target is not None:
            target[...] = POISON

    operation = AsyncOperation(
        ins.op,
        land=placed(ins, land),
        read=placed(ins, read),
        reads=(Span("shared", shared, size),),
        writes=(_reach(box),),
    )
    start(cta, warp, ins, members, operation, None if reducing else poison)
    count(cta, "shared", "global", size)


def _check_written(cta: Cta, box: Box, order: npt.NDArray[np.intp]) -> None:
    """A store of bytes that were never written, as far as they lie in the tensor."""
    valid = cta.shared.valid.reshape(-1, UNIT)[order].reshape(box.shape)
    if not valid[box.inside].all():
        raise KernelFault(
            FaultKind.UNINITIALISED,
            f"the box at shared address {int(order[0]) * UNIT:#x} was not all written",
        )


def _reach(box: Box) -> Span:
    """The global bytes from the first to the last of a box."""
    if box.empty:
        return Span("global", box.address, 0)
    reach = sum((extent - 1) * stride for extent, stride in zip(box.counts, box.strides, strict=True))
    return Span("global", box.address, reach + 1)


def _prefetch(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """A prefetch into L2 changes no value, but its tensor map must be one."""
    refuse_unknown(ins, _COMMON | {"L2"})
    descriptor, *_ = many(sources[0])
    for _, (address,) in operations(cta, ins, lanes, descriptor):
        _descriptor(cta, address)
    return ()


HANDLERS: dict[str, Handler] = {
    "cp.async.bulk.tensor": _tensor_copy,
    "cp.reduce.async.bulk.tensor": _tensor_copy,
    "cp.async.bulk.prefetch.tensor": _prefetch,
}
