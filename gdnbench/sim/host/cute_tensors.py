# SPDX-License-Identifier: Apache-2.0
"""Tensors of CuTe's own runtime, which `from_dlpack` makes: their type, their bytes, the device they claim.

`cutlass.cute.runtime._Tensor`: `mlir_type` is the type that a function compiled for it gets; `_dlpack_data`
is the DLPack capsule, whose device decides over the address space in that type.
"""

from __future__ import annotations

import ctypes
from typing import Any

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.layouts import TensorType, tensor_type

CPU, CUDA = 1, 2  # kDLCPU and kDLCUDA of DLPack's dlpack.h
DEVICE_TYPE_AT = 8  # of DLTensor: after the data pointer
_NAME = b"dltensor"


def claim_device(capsule: Any, device: int) -> None:
    """Let the tensor in a DLPack capsule, which is on the CPU, claim to be on CUDA, or on the CPU again. Its
    address does not change. A capsule that was consumed, or is on another device, stays as it is."""
    if not ctypes.pythonapi.PyCapsule_IsValid(ctypes.py_object(capsule), _NAME):
        return
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    claimed = ctypes.c_int32.from_address(get(capsule, _NAME) + DEVICE_TYPE_AT)
    if claimed.value in (CPU, CUDA):
        claimed.value = device


def on_cpu(value: Any) -> bool:
    """Whether a tensor of CuTe's runtime is on the CPU, by its own account."""
    from cutlass.cute import AddressSpace

    return bool(value.memspace == AddressSpace.generic)


def is_cute_tensor(value: object) -> bool:
    """Whether it is a tensor of CuTe's runtime, also one that `make_fake_tensor` makes."""
    return hasattr(value, "dynamic_shapes_mask")


def type_of(name: str, value: Any) -> TensorType:
    """The type of a tensor of CuTe's runtime. Raises LaunchError for one without memory, and for a nested
    layout."""
    if not hasattr(value, "data_ptr"):
        raise LaunchError(f"{name} is a fake tensor, which is for compiling: pass one with memory")
    from cutlass._mlir import ir

    # The runtime decides only when it fills the argument struct which strides depend on dynamic extents.
    value.__c_pointers__()
    with ir.Context():
        text = str(value.mlir_type)
    found = tensor_type(text)
    if found is None:
        raise LaunchError(f"{name} has the type {text}, which no kernel takes")
    return found


def span_of(value: Any) -> tuple[int, int]:
    """(address, bytes from its first element to its last) of a tensor of CuTe's runtime."""
    elements = 0
    if 0 not in value.shape:
        elements = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride, strict=True))
    return int(value.data_ptr), -(-elements * int(value.element_type.width) // 8)
