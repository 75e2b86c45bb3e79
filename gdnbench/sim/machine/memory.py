"""Global, shared and local memory as bytes with bounds checks. Global memory is the tensors' own bytes.

Addresses are plain integers. Lane accesses are 32 wide: `load(addresses, lanes, width)` returns uint8[32,
width], and `store(addresses, lanes, data)` takes it. If several lanes store to one address, the highest lane
wins (the PTX ISA, "Memory Consistency Model", leaves this open).
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import (
    CLUSTER_STRIDE,
    LANES,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_BASE,
    SHARED_WINDOW,
    WINDOW_SIZE,
    Lanes,
    Values,
)

Bytes = npt.NDArray[np.uint8]
Shadow = npt.NDArray[np.bool_]

# All bytes 0xFF are a NaN in bf16, f16, f32, f64, e4m3 and e5m2: a read of memory that was never written, or
# that an asynchronous operation will still write, shows in the results.
POISON = 0xFF


class Memory(Protocol):
    """The lane accesses that all memories have."""

    def load(self, addresses: Values, lanes: Lanes, width: int) -> Bytes: ...

    def store(self, addresses: Values, lanes: Lanes, data: Bytes) -> None: ...

    def check_lanes(self, addresses: Values, lanes: Lanes, width: int) -> None: ...


Skip = Callable[[KernelFault], None]
"""Records a fault after which the launch goes on; raises any other."""


def raise_fault(fault: KernelFault) -> None:
    """The `Skip` of a launch that stops at its first fault."""
    raise fault


def legal_lanes(memory: Memory, addresses: Values, lanes: Lanes, width: int, skip: Skip) -> Lanes:
    """The lanes whose access is in bounds. `skip` gets the first fault of the others. Raises KernelFault for
    a misaligned access, which no `Skip` records."""
    try:
        memory.check_lanes(addresses, lanes, width)
    except KernelFault as fault:
        skip(fault)
    else:
        return lanes
    legal = np.zeros(LANES, np.bool_)
    for lane in np.flatnonzero(lanes):
        alone = np.arange(LANES) == lane
        try:
            memory.check_lanes(addresses, alone, width)
        except KernelFault:
            continue
        legal |= alone
    return legal


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes [base, base + size) that a kernel may access; `keeper` keeps them alive."""

    base: int
    size: int
    name: str
    keeper: object

    @property
    def end(self) -> int:
        return self.base + self.size


def check_aligned(addresses: Values, lanes: Lanes, width: int) -> None:
    """Raises KernelFault unless every access of `width` bytes starts at a multiple of `width` (PTX ISA,
    "Operands, Alignment")."""
    bad = lanes & (addresses % np.uint64(width) != 0)
    if bad.any():
        lane = int(bad.argmax())
        raise KernelFault(
            FaultKind.MISALIGNED,
            f"address {int(addresses[lane]):#x} of lane {lane} is no multiple of {width}",
        )


class GlobalMemory:
    """The tensors of a launch and the module's variables, at their own host addresses.

    `bases` and `ends` are the allocations as disjoint, ascending intervals (overlapping views of one tensor
    are joined); compiled code searches this table. `symbols` is the address of each module variable. `freed`
    is memory that the program has given back, for the messages of faults.
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.freed: list[Allocation] = []
        self.symbols: dict[str, int] = {}
        self.bases: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self.ends: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._origin = 0
        self._bytes: Bytes = np.empty(0, np.uint8)

    def add(self, base: int, size: int, name: str, keeper: object) -> None:
        """Let kernels access `size` bytes at the host address `base`, which `keeper` owns."""
        self.extend([Allocation(base, size, name, keeper)])

    def extend(self, allocations: Iterable[Allocation]) -> None:
        """`add` for many."""
        found = [item for item in allocations if item.size > 0]
        if found:
            self.allocations += found
            self._index()

    def add_array(self, array: npt.NDArray[np.generic], name: str) -> int:
        """Let kernels access the bytes that `array` spans; returns its address."""
        low, high = np.lib.array_utils.byte_bounds(array)
        self.add(low, high - low, name, array)
        return int(array.ctypes.data)

    def add_variable(self, name: str, size: int, align: int, init: bytes | None) -> int:
        """Allocate a module's `.global` or `.const` variable, zero unless initialised; returns its
        address."""
        room = np.zeros(size + align, np.uint8)
        start = -room.ctypes.data % align
        if init is not None:
            room[start : start + len(init)] = np.frombuffer(init, np.uint8)
        base = int(room.ctypes.data) + start
        self.symbols[name] = base
        self.add(base, size, name, room)
        return base

    def _index(self) -> None:
        joined: list[list[int]] = []
        for item in sorted(self.allocations, key=lambda item: item.base):
            if joined and item.base < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], item.end)
            else:
                joined.append([item.base, item.end])
        self._starts = [low for low, _ in joined]
        self._stops = [high for _, high in joined]
        self.bases = np.array(self._starts, np.uint64)
        self.ends = np.array(self._stops, np.uint64)
        # One view over all allocations, so that 32 lanes are one indexed access. Bytes between allocations
        # are never accessed: every access is checked first.
        self._origin = self._starts[0]
        span = (ctypes.c_uint8 * (self._stops[-1] - self._origin)).from_address(self._origin)
        self._bytes = np.frombuffer(memoryview(span), np.uint8)

    def check(self, address: int, size: int) -> None:
        """Raises KernelFault unless [address, address + size) is inside one allocation."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address + size > self._stops[at]:
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, self._describe(address, size))

    def view(self, address: int, size: int) -> Bytes:
        """The bytes [address, address + size) as a writable view."""
        self.check(address, size)
        start = address - self._origin
        return self._bytes[start : start + size]

    def strided(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> Bytes:
        """A view of any shape with non-negative strides in bytes; its whole span is checked."""
        reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
        return np.ndarray(tuple(shape), np.uint8, self.view(address, reach), 0, tuple(strides))

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        """Indices uint8[active, width] into the view of all allocations, checked to be in bounds."""
        check_aligned(addresses, lanes, width)
        wanted = addresses[lanes]
        at = np.searchsorted(self.bases, wanted, side="right") - 1
        bad = at < 0
        if self.ends.size:
            # `wanted + width` would wrap at the end of the 64-bit space.
            ends = self.ends[at]
            bad |= (wanted >= ends) | (ends - wanted < np.uint64(width))
        if bad.any():
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, self._describe(int(wanted[bad.argmax()]), width))
        first = (wanted - np.uint64(self._origin)).astype(np.intp)
        return first[:, None] + np.arange(width)

    def check_lanes(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Raises the faults of `load`."""
        if lanes.any():
            self._locate(addresses, lanes, width)

    def load(self, addresses: Values, lanes: Lanes, width: int) -> Bytes:
        out = np.zeros((LANES, width), np.uint8)
        if lanes.any():
            out[lanes] = self._bytes[self._locate(addresses, lanes, width)]
        return out

    def store(self, addresses: Values, lanes: Lanes, data: Bytes) -> None:
        if lanes.any():
            self._bytes[self._locate(addresses, lanes, data.shape[1])] = data[lanes]

    def _describe(self, address: int, size: int) -> str:
        """Describes an access out of bounds relative to the nearest allocation."""
        what = f"{size} bytes at global address {address:#x}"
        for item in reversed(self.freed):
            if item.base <= address < item.end:
                return f"{what}: they belonged to {item.name} ({item.size} bytes), which was freed"
        if not self.allocations:
            return f"{what}: the launch has no global memory"

        def distance(item: Allocation) -> int:
            return max(item.base - address, address + size - item.end)

        near = min(self.allocations, key=distance)
        side = (
            f"{address - near.base} bytes after its start, {address + size - near.end} past its end"
            if address + size > near.end
            else f"{near.base - address} bytes before its start"
        )
        return f"{what}: nearest is {near.name} ({near.size} bytes), {side}"


def lazy_zeros(size: int) -> Bytes:
    """`size` zero bytes, of which only pages that are accessed take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # private: a forked process changes its own copy
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


class ClusterArrays:
    """The bytes of a cluster's shared memories, with their shadows, all indexed by address (`SharedMemory`).
    `alive` has bit r set while the CTA of rank r runs."""

    def __init__(self, ctas: int, size: int) -> None:
        self.ctas = ctas
        self.size = size  # of each CTA
        self.bytes = lazy_zeros(ctas * CLUSTER_STRIDE)
        self.valid: Shadow = lazy_zeros(ctas * CLUSTER_STRIDE).view(np.bool_)
        self.phase: npt.NDArray[np.int64] = lazy_zeros(ctas * CLUSTER_STRIDE).view(np.int64)
        self.alive: npt.NDArray[np.uint64] = np.array([(1 << ctas) - 1], np.uint64)

    def runs(self, rank: int) -> bool:
        """Whether the CTA of this rank has not exited."""
        return bool(int(self.alive[0]) >> rank & 1)


class SharedMemory:
    """The shared memory of one CTA. `bytes[address]` is the byte at `address`; the system owns the first
    kilobyte.

    `valid` marks the bytes that were written. `track` says whether the engine maintains it and reads check
    it: the interpreter does, compiled code does not. mbarriers are stored in these bytes too: `phase[address
    // 8]` is the number of phases that the mbarrier there has completed, -1 where there is none.

    The CTAs of a cluster share the arrays. The CTA of rank r has those from `origin`, r * CLUSTER_STRIDE, on:
    its accesses are legal from `first` to `end`. `own_words` and `own_phase` are its parts.
    """

    def __init__(
        self,
        size: int,
        *,
        track: bool,
        skip: Skip | None = None,
        cluster: ClusterArrays | None = None,
        rank: int = 0,
    ) -> None:
        self.size = size
        self.origin = rank * CLUSTER_STRIDE
        self.first = self.origin + SHARED_BASE
        self.end = self.first + size
        self.track = track
        self.skip = raise_fault if skip is None else skip
        room = -(-(SHARED_BASE + size) // 128) * 128
        own = slice(self.origin, self.origin + room)
        self.bytes: Bytes = np.empty(room, np.uint8) if cluster is None else cluster.bytes
        self.valid: Shadow = np.zeros(room, np.bool_) if cluster is None else cluster.valid
        self.phase: npt.NDArray[np.int64] = (
            np.empty(room // 8, np.int64) if cluster is None else cluster.phase
        )
        self.units = self.bytes.view("V16")
        self.words: npt.NDArray[np.uint64] = self.bytes.view(np.uint64)
        self.own_words = self.bytes[own].view(np.uint64)
        self.own_phase = self.phase[own.start // 8 : own.stop // 8]
        self.bytes[own] = POISON
        self.own_phase[:] = -1
        # The same cells as a memoryview, which is several times as fast to read one by one.
        self.word_cells = self.bytes.data.cast("Q")
        self.phase_cells = self.phase.data.cast("B").cast("q")

    def check(self, address: int, size: int) -> None:
        """Raises KernelFault unless [address, address + size) is inside the CTA's shared memory."""
        if address < self.first or address + size > self.end:
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, self._describe(address, size))

    def view(self, address: int, size: int) -> Bytes:
        """The bytes [address, address + size) as a writable view; a writer marks them with `written`."""
        self.check(address, size)
        return self.bytes[address : address + size]

    def written(self, address: int, size: int) -> None:
        """Mark bytes as initialised."""
        if self.track:
            self.valid[address : address + size] = True

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        check_aligned(addresses, lanes, width)
        wanted = addresses[lanes]
        bad = (wanted < np.uint64(self.first)) | (wanted > np.uint64(max(self.end - width, 0)))
        if bad.any():
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, self._describe(int(wanted[bad.argmax()]), width))
        return wanted.astype(np.intp)[:, None] + np.arange(width)

    def load(self, addresses: Values, lanes: Lanes, width: int) -> Bytes:
        out = np.zeros((LANES, width), np.uint8)
        if lanes.any():
            where = self._locate(addresses, lanes, width)
            if self.track and not self.valid[where].all():
                message = f"shared address {int(where[~self.valid[where]][0]):#x} was never written"
                self.skip(KernelFault(FaultKind.UNINITIALISED, message))
            out[lanes] = self.bytes[where]
        return out

    def store(self, addresses: Values, lanes: Lanes, data: Bytes) -> None:
        if lanes.any():
            where = self._locate(addresses, lanes, data.shape[1])
            self.bytes[where] = data[lanes]
            if self.track:
                self.valid[where] = True

    def check_lanes(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Raises the faults of `store`."""
        if lanes.any():
            self._locate(addresses, lanes, width)

    def poison(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Fill the destination of an asynchronous copy in flight with poison. Raises the faults of
        `store`."""
        if lanes.any():
            self.bytes[self._locate(addresses, lanes, width)] = POISON

    def _describe(self, address: int, size: int) -> str:
        return (
            f"{size} bytes at shared address {address:#x}: the CTA has {self.size} bytes, "
            f"{self.first:#x} to {self.end:#x}"
        )


def rank_of(address: int) -> int:
    """The rank of the CTA that a shared address belongs to; 0 without a cluster."""
    return address // CLUSTER_STRIDE


def in_cta(address: int, rank: int) -> int:
    """The address in the CTA of `rank` that corresponds to a shared address (PTX ISA, "mapa")."""
    return address % CLUSTER_STRIDE + rank * CLUSTER_STRIDE


class ClusterMemory(SharedMemory):
    """The shared memory of all CTAs of a cluster, the window shared::cluster, as one of them accesses it.
    Raises KernelFault for an access to a CTA that has exited."""

    def __init__(self, own: SharedMemory, cluster: ClusterArrays) -> None:
        # The arrays of `own`, without filling them again.
        self.__dict__.update(own.__dict__)
        self.cluster = cluster

    def check(self, address: int, size: int) -> None:
        """Raises KernelFault unless the bytes are inside the shared memory of one CTA that runs."""
        rank, offset = rank_of(address), address % CLUSTER_STRIDE
        if not SHARED_BASE <= offset <= SHARED_BASE + self.size - size or not self.cluster.runs(rank):
            raise self._fault(address, size)

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        check_aligned(addresses, lanes, width)
        wanted = addresses[lanes]
        for rank in np.unique(wanted // np.uint64(CLUSTER_STRIDE)).tolist():
            if not self.cluster.runs(rank):
                raise self._fault(int(wanted[wanted // np.uint64(CLUSTER_STRIDE) == rank][0]), width)
        offset = wanted % np.uint64(CLUSTER_STRIDE)
        last = max(SHARED_BASE + self.size - width, 0)
        bad = (offset < np.uint64(SHARED_BASE)) | (offset > np.uint64(last))
        if bad.any():
            raise self._fault(int(wanted[bad.argmax()]), width)
        return wanted.astype(np.intp)[:, None] + np.arange(width)

    def _fault(self, address: int, size: int) -> KernelFault:
        rank = rank_of(address)
        what = f"{size} bytes at shared address {address:#x}"
        if rank >= self.cluster.ctas:
            ctas = self.cluster.ctas
            return KernelFault(
                FaultKind.OUT_OF_BOUNDS, f"{what}, of a CTA of rank {rank}: the cluster has {ctas} CTAs"
            )
        if not self.cluster.runs(rank):
            return KernelFault(FaultKind.EXITED, f"{what}: the CTA of rank {rank} in the cluster has exited")
        first = rank * CLUSTER_STRIDE + SHARED_BASE
        has = f"that CTA has {self.size} bytes, {first:#x} to {first + self.size:#x}"
        return KernelFault(FaultKind.OUT_OF_BOUNDS, f"{what} of the CTA of rank {rank}: {has}")


def _places_in_window(
    addresses: Values, lanes: Lanes, width: int, size: int, what: str, has: str
) -> npt.NDArray[np.intp]:
    """The offsets [lanes, width] of the bytes that active lanes access in a window of `size` bytes from
    address 0; KernelFault for an access that is not aligned or not inside."""
    check_aligned(addresses, lanes, width)
    wanted = addresses[lanes]
    bad = (wanted > np.uint64(max(size - width, 0))) | (size < width)
    if bad.any():
        raise KernelFault(
            FaultKind.OUT_OF_BOUNDS, f"{width} bytes at {what} {int(wanted[bad.argmax()]):#x}: {has}"
        )
    return wanted.astype(np.intp)[:, None] + np.arange(width)


class LocalMemory:
    """The local memory of one warp's threads: `bytes[lane, offset]`. Each lane has `size` bytes of its own,
    from address 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.bytes: Bytes = np.full((LANES, size), POISON, np.uint8)

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        has = f"a thread has {self.size} bytes"
        return _places_in_window(addresses, lanes, width, self.size, "local address", has)

    def check_lanes(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Raises the faults of `load` and `store`."""
        if lanes.any():
            self._locate(addresses, lanes, width)

    def load(self, addresses: Values, lanes: Lanes, width: int) -> Bytes:
        out = np.zeros((LANES, width), np.uint8)
        if lanes.any():
            where = self._locate(addresses, lanes, width)
            out[lanes] = self.bytes[np.nonzero(lanes)[0][:, None], where]
        return out

    def store(self, addresses: Values, lanes: Lanes, data: Bytes) -> None:
        if lanes.any():
            where = self._locate(addresses, lanes, data.shape[1])
            self.bytes[np.nonzero(lanes)[0][:, None], where] = data[lanes]


class ParameterMemory:
    """The kernel's parameters: the same bytes for every thread, which no thread may write."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.bytes: Bytes = np.frombuffer(data, np.uint8)

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        has = f"the kernel has {self.size} bytes of parameters"
        return _places_in_window(addresses, lanes, width, self.size, "parameter offset", has)

    def check_lanes(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Raises the faults of `load`."""
        self._locate(addresses, lanes, width)

    def load(self, addresses: Values, lanes: Lanes, width: int) -> Bytes:
        out = np.zeros((LANES, width), np.uint8)
        out[lanes] = self.bytes[self._locate(addresses, lanes, width)]
        return out

    def store(self, addresses: Values, lanes: Lanes, data: Bytes) -> None:
        raise KernelFault(FaultKind.OUT_OF_BOUNDS, "a store to the kernel's parameters")


def resolve(address: int) -> tuple[str, int]:
    """Split a generic address into (state space, address in it). Constant memory is part of global memory
    here."""
    for space, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW)):
        if window <= address < window + WINDOW_SIZE:
            return space, address - window
    return "global", address


def resolve_lanes(addresses: Values, lanes: Lanes) -> list[tuple[str, Lanes, Values]]:
    """`resolve` for 32 lanes: (state space, its lanes, their addresses in it) for each space that occurs."""
    out: list[tuple[str, Lanes, Values]] = []
    window = addresses >> np.uint64(WINDOW_SIZE.bit_length() - 1)
    rest = lanes
    for space, base in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW)):
        here = lanes & (window == np.uint64(base // WINDOW_SIZE))
        if here.any():
            out.append((space, here, addresses - np.uint64(base)))
            rest = rest & ~here
    if rest.any():
        out.append(("global", rest, addresses))
    return out
