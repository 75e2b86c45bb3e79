# SPDX-License-Identifier: Apache-2.0
"""The virtual GPU's memory: CPU memory of which every live allocation is known."""

from __future__ import annotations

import bisect
import ctypes
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.arguments import Region

Bytes = npt.NDArray[np.uint8]

ALIGN = 512  # bytes, as CUDA's allocators align
GAP = 512  # bytes after each allocation that belong to none, so that no two touch


@dataclass(frozen=True, slots=True)
class _Block:
    number: int
    size: int
    bytes: weakref.ref[Bytes]


class DeviceMemory:
    """Allocations by address. One lives as long as the array that `allocate` or `adopt` returned.
    `capacity` is the GPU's memory in bytes; None is as much as the CPU has."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._blocks: dict[int, _Block] = {}
        self._adopted: dict[int, Region] = {}
        self._count = 0
        self._lock = threading.RLock()  # a finalizer may run while this thread holds it
        self.allocated = 0
        self.peak = 0

    def allocate(self, size: int) -> Bytes:
        """uint8[size] at a multiple of 512 bytes. Its contents are those of fresh or of reused memory. Raises
        MemoryError if the GPU or the CPU has less."""
        if self.capacity is not None and self.allocated + size > self.capacity:
            raise MemoryError(
                f"CUDA out of memory: {size} bytes; {self.allocated} of the virtual GPU's {self.capacity} are"
                " allocated"
            )
        try:
            room = np.empty(size + ALIGN + GAP, np.uint8)
        except (MemoryError, ValueError):
            raise MemoryError(
                f"CUDA out of memory: {size} bytes, which the CPU does not have; {self.allocated} are"
                " allocated"
            ) from None
        start = -room.ctypes.data % ALIGN
        block = room[start : start + size]
        if size == 0:
            return block
        address = int(block.ctypes.data)
        with self._lock:
            self._blocks[address] = _Block(self._count, size, weakref.ref(block))
            self._count += 1
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
        weakref.finalize(block, self._forget, address).atexit = False
        return block

    def adopt(self, address: int, size: int, keeper: object) -> Bytes:
        """The bytes [address, address + size) of the host, which `keeper` owns. They are an allocation of the
        GPU for as long as the returned array lives."""
        buffer = (ctypes.c_uint8 * size).from_address(address)
        buffer.keeper = keeper  # type: ignore[attr-defined]  # a ctypes array takes attributes
        block: Bytes = np.frombuffer(memoryview(buffer), np.uint8)
        with self._lock:
            number = self._count
            self._count += 1
            self._adopted[number] = Region(f"host memory {number}", address, size, buffer)
        weakref.finalize(block, self._adopted.pop, number).atexit = False
        return block

    def _forget(self, address: int) -> None:
        with self._lock:
            self.allocated -= self._blocks.pop(address).size

    def renew_lock(self) -> None:
        """Forget that a thread of the parent process held the lock at a fork."""
        self._lock = threading.RLock()

    def regions(self) -> list[Region]:
        """All live allocations, which a kernel may access."""
        with self._lock:
            found = [(address, block, block.bytes()) for address, block in self._blocks.items()]
            adopted = list(self._adopted.values())
        own = [
            Region(f"CUDA allocation {block.number}", address, block.size, array)
            for address, block, array in found
            if array is not None
        ]
        return [*own, *adopted]

    def span(self, address: int, size: int) -> Bytes:
        """The bytes [address, address + size), which keep their allocation alive. Raises LaunchError unless
        they are inside one."""
        with self._lock:
            start, block = self._last_before(address)
            array = None if block is None else block.bytes()
        if block is None or array is None or address + size > start + block.size:
            raise LaunchError(f"{size} bytes at {address:#x} are in no live CUDA allocation")
        return array[address - start : address - start + size]

    def allocation_at(self, address: int) -> tuple[int, int] | None:
        """Address and size of the live allocation that has the byte at `address`."""
        with self._lock:
            start, block = self._last_before(address)
            return None if block is None or address >= start + block.size else (start, block.size)

    def _last_before(self, address: int) -> tuple[int, _Block | None]:
        """Address and block of the last allocation that starts at or before `address`; 0 and None if there is
        none."""
        starts = sorted(self._blocks)
        at = bisect.bisect_right(starts, address) - 1
        return (starts[at], self._blocks[starts[at]]) if at >= 0 else (0, None)
