# SPDX-License-Identifier: Apache-2.0
"""Global, local and parameter memory as bytes with bounds checks. Global memory is the tensors' own bytes.
`shared_memory` is the memory of a CTA and of a cluster.

Addresses are plain integers. Lane accesses are 32 wide: `load(addresses, lanes, width)` returns uint8[32,
width], and `store(addresses, lanes, data)` takes it. If several lanes store to one address, the highest lane
wins (the PTX ISA, "Memory Consistency Model", leaves this open).
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import (
    LANES,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WINDOW_SIZE,
    Lanes,
    Values,
)
from gdnbench.sim.machine.shadow_cells import Cells, GlobalCells
from gdnbench.sim.ptx.ir import Variable

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
        self.shadows: GlobalCells | None = None

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

    def add_variables(self, variables: Iterable[Variable]) -> None:
        """Allocate a module's `.global` and `.const` variables, zero unless initialised, but for those that
        `symbols` has. Headers of C++ libraries define thousands."""
        made = []
        for variable in variables:
            if variable.space not in ("global", "const") or variable.name in self.symbols:
                continue
            room = np.zeros(variable.size + variable.align, np.uint8)
            start = -room.ctypes.data % variable.align
            if variable.init is not None:
                room[start : start + len(variable.init)] = np.frombuffer(variable.init, np.uint8)
            base = self.symbols[variable.name] = int(room.ctypes.data) + start
            made.append(Allocation(base, variable.size, variable.name, room))
        self.extend(made)

    def add_shadows(self, shadows: GlobalCells) -> None:
        """Have cells for all allocations in `shadows`, which may have had some before."""
        shadows.cover(zip(self._starts, self._stops, strict=True))
        self.shadows = shadows

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
        reach = 1
        for extent, stride in zip(shape, strides, strict=True):
            reach += (extent - 1) * stride
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

    def __init__(self, size: int, *, shadowed: bool = False) -> None:
        self.size = size
        self.bytes: Bytes = np.full((LANES, size), POISON, np.uint8)
        self.shadows: Cells | None = np.zeros((LANES, size), np.complex128) if shadowed else None

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
