# SPDX-License-Identifier: Apache-2.0
"""The functions of the CUDA driver API that allocate, describe, copy and fill memory, see `driver_api`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gdnbench.sim.virtual.cuda_objects import CudaObjects
from gdnbench.sim.virtual.driver_errors import INVALID_VALUE, OUT_OF_MEMORY, DriverError
from gdnbench.sim.virtual.refusals import refusal

Functions = dict[str, Callable[..., Any]]

# CUpointer_attribute, and the types of the results that are not 64 bits wide.
_CONTEXT, _MEMORY_TYPE, _DEVICE_POINTER, _HOST_POINTER, _BUFFER_ID = 1, 2, 3, 4, 7
_IS_MANAGED, _ORDINAL, _START, _SIZE, _MAPPED, _POOL = 8, 9, 11, 12, 13, 17
_NARROW = {_MEMORY_TYPE: "I", _IS_MANAGED: "B", _ORDINAL: "i", _MAPPED: "B"}
_ON_HOST, _ON_DEVICE = 1, 2  # CUmemorytype

# CUmemPool_attribute: three rules of reuse, then bytes.
_POOL_RULES, _THRESHOLD, _RESERVED, _USED = (1, 2, 3), 4, (5, 6), (7, 8)


def memory_functions(objects: CudaObjects) -> Functions:
    gpu = objects.gpu
    pool_values: dict[int, int] = {}

    def allocate(size: int) -> int:
        try:
            return objects.allocate(size)
        except MemoryError:
            raise DriverError(OUT_OF_MEMORY) from None

    def allocate_host(size: int) -> int:
        try:
            return objects.allocate_host(size)
        except MemoryError:
            raise DriverError(OUT_OF_MEMORY) from None

    def allocate_managed(size: int) -> int:
        address = allocate(size)
        objects.managed.add(address)
        return address

    def unregister(address: int) -> None:
        if objects.registered.pop(address, None) is None:
            raise DriverError(INVALID_VALUE)

    def range_of(address: int) -> tuple[int, int]:
        found = objects.allocation_at(address)
        if found is None:
            raise DriverError(INVALID_VALUE)
        return found

    def pointer_attribute(number: int, address: int) -> int | None:
        found = objects.allocation_at(address)
        if found is None:
            return None
        start, size = found
        on_host = start in objects.host
        known = {
            _CONTEXT: objects.context,
            _MEMORY_TYPE: _ON_HOST if on_host else _ON_DEVICE,
            _DEVICE_POINTER: address,
            _BUFFER_ID: start,
            _IS_MANAGED: int(start in objects.managed),
            _ORDINAL: 0,
            _START: start,
            _SIZE: size,
            _MAPPED: 1,
            _POOL: 0,
        }
        if on_host or start in objects.managed:
            known[_HOST_POINTER] = address
        if number not in known and number != _HOST_POINTER:
            raise refusal(f"attribute {number} of a pointer")
        return known.get(number)

    def get_pointer_attribute(room: int, number: int, address: int) -> None:
        value = pointer_attribute(number, address)
        if value is None:
            raise DriverError(INVALID_VALUE)
        _write(room, number, value)

    def get_pointer_attributes(count: int, numbers: int, rooms: int, address: int) -> None:
        for number, room in zip(
            (ctypes.c_int * count).from_address(numbers),
            (ctypes.c_uint64 * count).from_address(rooms),
            strict=True,
        ):
            value = pointer_attribute(number, address)
            # What CUDA documents for memory that it does not know.
            _write(room, number, {_ORDINAL: -2}.get(number, 0) if value is None else value)

    def set_pool_attribute(pool: int, number: int, room: int) -> None:
        if number in _POOL_RULES:
            pool_values[number] = ctypes.c_int32.from_address(room).value
        elif number == _THRESHOLD:
            pool_values[number] = ctypes.c_uint64.from_address(room).value
        elif number not in (*_RESERVED, *_USED):
            raise refusal(f"attribute {number} of a memory pool")

    def get_pool_attribute(pool: int, number: int, room: int) -> None:
        if number in _POOL_RULES:
            ctypes.c_int32.from_address(room).value = pool_values.get(number, 1)
        elif number == _THRESHOLD:
            ctypes.c_uint64.from_address(room).value = pool_values.get(number, 0)
        elif number in (*_RESERVED, *_USED):
            high = number in (_RESERVED[1], _USED[1])
            ctypes.c_uint64.from_address(room).value = gpu.memory.peak if high else gpu.memory.allocated
        else:
            raise refusal(f"attribute {number} of a memory pool")

    def pool(*_: int) -> int:
        return objects.pool

    return {
        "cuMemAlloc": allocate,
        "cuMemAllocAsync": allocate,
        "cuMemAllocFromPoolAsync": allocate,
        "cuMemAllocManaged": allocate_managed,
        "cuMemFree": objects.free,
        "cuMemFreeAsync": objects.free,
        "cuMemAllocHost": allocate_host,
        "cuMemHostAlloc": allocate_host,
        "cuMemFreeHost": objects.free_host,
        "cuMemHostRegister": objects.register,
        "cuMemHostUnregister": unregister,
        "cuMemHostGetDevicePointer": lambda address: address,
        "cuMemGetInfo": lambda: (gpu.machine.memory - gpu.memory.allocated, gpu.machine.memory),
        "cuMemGetAddressRange": range_of,
        "cuPointerGetAttribute": get_pointer_attribute,
        "cuPointerGetAttributes": get_pointer_attributes,
        "cuDeviceGetDefaultMemPool": pool,
        "cuDeviceGetMemPool": pool,
        "cuMemPoolCreate": pool,
        "cuMemPoolSetAttribute": set_pool_attribute,
        "cuMemPoolGetAttribute": get_pool_attribute,
    }


def _write(room: int, number: int, value: int) -> None:
    """Write an attribute of a pointer."""
    data = struct.pack("<" + _NARROW.get(number, "Q"), value)
    ctypes.memmove(room, data, len(data))


_END = (
    ("x", ctypes.c_size_t),
    ("y", ctypes.c_size_t),
    ("type", ctypes.c_uint),
    ("host", ctypes.c_uint64),
    ("device", ctypes.c_uint64),
    ("array", ctypes.c_uint64),
    ("pitch", ctypes.c_size_t),
)


class _Copy2d(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        *((f"source_{name}", kind) for name, kind in _END),
        *((f"to_{name}", kind) for name, kind in _END),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def copy_functions(objects: CudaObjects) -> Functions:
    def copier(to_device: bool, from_device: bool) -> Callable[..., None]:
        def copy(to: Any, source: Any, size: int) -> None:
            for address, checked in ((to, to_device), (source, from_device)):
                if checked:
                    objects.check(address, size)
            objects.copy(to, source, size)

        return copy

    def copy_2d(room: int) -> None:
        given = _Copy2d.from_address(room)
        ends = []
        for side in ("to", "source"):
            kind = getattr(given, f"{side}_type")
            if kind not in (_ON_HOST, _ON_DEVICE, 4):  # 4: unified
                raise refusal("a copy from or to a CUDA array")
            base = getattr(given, f"{side}_host" if kind == _ON_HOST else f"{side}_device")
            pitch = getattr(given, f"{side}_pitch") or given.width
            start = base + getattr(given, f"{side}_y") * pitch + getattr(given, f"{side}_x")
            if kind == _ON_DEVICE and given.height:
                objects.check(start, (given.height - 1) * pitch + given.width)
            ends.append((start, pitch))
        (to, to_pitch), (source, source_pitch) = ends
        for row in range(given.height):
            objects.copy(to + row * to_pitch, source + row * source_pitch, given.width)

    def filler(width: int) -> Callable[..., None]:
        def fill(address: Any, value: int, count: int) -> None:
            objects.fill(address, value, count, width)

        return fill

    def filler_2d(width: int) -> Callable[..., None]:
        def fill(address: int, pitch: int, value: int, columns: int, rows: int) -> None:
            for row in range(rows):
                objects.fill(address + row * pitch, value, columns, width)

        return fill

    found: Functions = {
        "cuMemcpy": copier(to_device=False, from_device=False),
        "cuMemcpyHtoD": copier(to_device=True, from_device=False),
        "cuMemcpyDtoH": copier(to_device=False, from_device=True),
        "cuMemcpyDtoD": copier(to_device=True, from_device=True),
        "cuMemcpy2D": copy_2d,
        **{f"cuMemsetD{bits}": filler(bits // 8) for bits in (8, 16, 32)},
        **{f"cuMemsetD2D{bits}": filler_2d(bits // 8) for bits in (8, 16, 32)},
    }
    later = {f"{name}Async": function for name, function in found.items()}
    return {**found, **later, "cuMemcpy2DUnaligned": copy_2d}
