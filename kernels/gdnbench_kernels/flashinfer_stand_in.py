"""Imports FlashInfer's Gated DeltaNet modules without CUDA, for the simulator.

The package loads CUDA libraries at import, queries the device's architecture and caches compiled kernels on
disk. Its host functions and kernels are CuTe DSL and need none of that. Here `StandIns` leaves out its
parent packages, reports a B200, calls compiled kernels without their stream, and stores nothing.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.arguments import B200_SMS
from gdnbench_kernels.stand_ins import StandIns

PACKAGE = "flashinfer"
ARCH = "sm_100a"
DL_CUDA = 2  # kDLCUDA of DLPack


def stand_in_module(name: str) -> ModuleType:
    """`flashinfer.<name>`. ImportError if it, or the package, is not there."""
    _prepare_device()
    with in_place(), _tensors_of_the_device():
        return importlib.import_module(f"{PACKAGE}.{name}")


@contextmanager
def in_place() -> Iterator[None]:
    """Inside this block `import flashinfer` finds the replacements and the modules imported through them, and
    CUDA's current stream is the null stream."""
    stream = torch.cuda.current_stream
    with STAND_INS.in_place():
        torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=0)  # type: ignore[assignment, return-value]
        try:
            yield
        finally:
            torch.cuda.current_stream = stream


def _build(
    family: str, name: str, compile_kernel: Callable[[], Any], extra_key_files: Sequence[str] = ()
) -> Callable[..., None]:
    """Replaces the package's disk cache: returns the compiled kernel, called without its stream argument."""
    from cuda.bindings.driver import CUstream

    compiled = compile_kernel()

    def call(*args: Any) -> None:
        compiled(*(value for value in args if not isinstance(value, CUstream)))

    return call


@contextmanager
def _tensors_of_the_device() -> Iterator[None]:
    """Modules imported inside this block get a `from_dlpack` of CuTe DSL that treats host memory as a
    device's global memory, for which their kernels are compiled."""
    import cutlass.cute.runtime as runtime

    original = runtime.from_dlpack

    def of_the_device(tensor: Tensor, enable_tvm_ffi: bool = False, **options: Any) -> Any:
        return original(_OfTheDevice(tensor), **options)

    runtime.from_dlpack = of_the_device
    try:
        yield
    finally:
        runtime.from_dlpack = original


@dataclass(frozen=True, slots=True)
class _OfTheDevice:
    """A host tensor whose DLPack device type is CUDA."""

    tensor: Tensor

    def __dlpack__(self, stream: int | None = None) -> object:
        capsule = self.tensor.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        # DLTensor starts with the address, followed by DLDevice, whose first member is the type.
        address = pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int32.from_address(address).value = DL_CUDA
        return capsule


@cache
def _prepare_device() -> None:
    """Make every device a B200, and compile kernels without TVM FFI, whose host code would require tensors on
    that device."""
    import cutlass.cute as cute

    found = STAND_INS.module(f"{PACKAGE}.gdn_kernels.device_target")
    target = found.GdnDeviceTarget(0, ARCH, 10, 0, B200_SMS, True)
    found.gdn_device_target = lambda device: target  # type: ignore[attr-defined]
    found.gdn_compile_options = lambda device, *more: (  # type: ignore[attr-defined]
        cute.GPUArch(ARCH),
        *(option for option in more if not isinstance(option, cute.EnableTVMFFI)),
    )


STAND_INS = StandIns(
    PACKAGE,
    empty=(f"{PACKAGE}.gdn_kernels", f"{PACKAGE}.gdn_kernels.blackwell"),
    made={
        f"{PACKAGE}.jit": dict,
        f"{PACKAGE}.jit.core": lambda: {"logger": SimpleNamespace(warning_once=lambda text: None)},
        f"{PACKAGE}.jit.cute_dsl_core": lambda: {"build_and_load_cute_dsl_kernel": _build},
        f"{PACKAGE}.utils": lambda: {"get_compute_capability": lambda device: (10, 0)},
        f"{PACKAGE}.cute_dsl": dict,
        f"{PACKAGE}.cute_dsl.utils": lambda: {"get_num_sm": lambda device: B200_SMS},
        f"{PACKAGE}.api_logging": None,
        f"{PACKAGE}.trace": None,
    },
)
