# SPDX-License-Identifier: Apache-2.0
"""Makes Triton launch its kernels on a virtual GPU: `with triton_sees(gpu): ...`.

Triton compiles as for that GPU, down to PTX; its last stage, ptxas, is left out. Tried with Triton 3.4 to
3.7. `triton_launch` has the launcher, `triton_autotune` what takes the place of Triton's timings.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gdnbench.sim.host.device import MULTIPROCESSORS, Device
from gdnbench.sim.host.encode_tiled import ELEMENT_CODES, encode
from gdnbench.sim.machine import tensormap
from gdnbench.sim.virtual.refusals import refusal
from gdnbench.sim.virtual.triton_autotune import fixed_configurations
from gdnbench.sim.virtual.triton_launch import Launcher, LoadedKernel

if TYPE_CHECKING:
    from gdnbench.sim.ptx.ir import Module
    from gdnbench.sim.virtual.gpu import VirtualGpu

# Numbers of cudaDeviceAttr.
MAX_THREADS, MAX_REGISTERS, MAX_SHARED = 1, 12, 97


@contextmanager
def triton_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block Triton's driver is a stand-in that launches on `gpu`. Raises ImportError if Triton is
    not installed."""
    from triton.runtime import driver

    with ExitStack() as stack:
        stack.enter_context(_compiler_without_assembler())
        stack.enter_context(fixed_configurations())
        before = dict(vars(driver))
        stack.callback(vars(driver).update, before)
        driver.set_active(_driver(gpu))
        yield


@contextmanager
def _compiler_without_assembler() -> Iterator[None]:
    """Inside this block Triton's compiler for CUDA leaves its PTX where the cubin would be. Such kernels have
    entries of their own in Triton's cache on disk."""
    from triton.backends import backends
    from triton.backends.nvidia.compiler import CUDABackend

    class PtxBackend(CUDABackend):  # type: ignore[misc]  # Triton is not typed
        """Triton's compiler for CUDA, without ptxas."""

        def add_stages(self, stages: dict[str, Callable[..., Any]], *args: Any) -> None:
            super().add_stages(stages, *args)
            stages["cubin"] = lambda ptx, metadata: ptx.encode()

        def hash(self) -> str:
            return f"gdnbench-ptx-{super().hash()}"

    found = backends["nvidia"]
    backends["nvidia"] = replace(found, compiler=PtxBackend)
    try:
        yield
    finally:
        backends["nvidia"] = found


class _DeviceKey(int):
    """The device number 0. As a key of a dict it differs from that of a real GPU: a JITFunction keeps the
    kernels that it has compiled by device."""

    capability: tuple[int, int]

    @classmethod
    def of(cls, device: Device) -> _DeviceKey:
        key = cls(0)
        key.capability = device.capability
        return key

    def __hash__(self) -> int:
        return hash(("gdnbench.sim", self.capability))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _DeviceKey):
            return self.capability == other.capability
        return int(self) == other


def _driver(gpu: VirtualGpu) -> Any:
    """A driver of Triton's for `gpu`."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver as module

    device = gpu.device
    major, minor = device.capability

    class VirtualDriver(module.CudaDriver):  # type: ignore[misc]  # Triton is not typed
        """Triton's driver for CUDA, without CUDA. Launchers outlive it: they ask the active driver for its
        GPU."""

        def __init__(self) -> None:
            key = _DeviceKey.of(device)
            self.gpu = gpu
            self.utils = SimpleNamespace(
                load_binary=functools.partial(_load_binary, gpu),
                get_device_properties=lambda index: _properties(device),
                fill_tma_descriptor=_fill_descriptor(module),
                fill_tma_descriptor_tiled=_encode_descriptor,
                fill_tma_descriptor_im2col=_no_im2col,
                set_printf_fifo_size=lambda size: None,
            )
            self.launcher_cls = Launcher
            self.get_device_capability = lambda index=0: device.capability
            self.get_current_stream = lambda index=0: 0
            self.get_current_device = lambda: key
            self.set_current_device = lambda index: None

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 10 * major + minor, 32)

    return VirtualDriver()


def _properties(device: Device) -> dict[str, int]:
    """What Triton asks of a device; clocks and bus width are those of no device, as nothing is timed."""
    attributes = device.attributes
    return {
        "max_shared_mem": attributes[MAX_SHARED],
        "max_num_regs": attributes[MAX_REGISTERS],
        "multiprocessor_count": attributes[MULTIPROCESSORS],
        "warpSize": 32,
        "sm_clock_rate": 0,
        "mem_clock_rate": 0,
        "mem_bus_width": 0,
    }


def _load_binary(
    gpu: VirtualGpu, name: str, code: bytes, shared: int, device: int
) -> tuple[Module, LoadedKernel, int, int, int]:
    """Module, function, registers and spills (none are known without ptxas), and threads per block at
    most."""
    module = gpu.load_module(code.decode())
    return module, LoadedKernel(module, name), 0, 0, gpu.device.attributes[MAX_THREADS]


def _encode_descriptor(
    address: int,
    swizzle: int,
    element_bytes: int,
    element_type: int,
    block: Sequence[int],
    shape: Sequence[int],
    strides: Sequence[int],
    padding: int = 0,
) -> bytes:
    """The 128 bytes that cuTensorMapEncodeTiled makes of a descriptor of Triton's; extents and strides, in
    elements, are those of dimensions from the outermost."""
    tf32 = 11
    if element_type not in ELEMENT_CODES:
        raise refusal(f"a TMA descriptor of CUtensorMapDataType {element_type}")
    return encode(
        ELEMENT_CODES[element_type],
        address,
        tuple(map(int, reversed(shape))),
        tuple(element_bytes * int(stride) for stride in reversed(strides[:-1])),
        tuple(map(int, reversed(block))),
        (1,) * len(block),
        swizzle,
        fill_nan=bool(padding),
        tf32=element_type == tf32,
    )


def _fill_descriptor(module: Any) -> Callable[..., bytes | None]:
    """`fill_tma_descriptor` of Triton's driver module. That of Triton 3.4 writes to an address."""
    if not hasattr(module, "TmaDescKernelParam"):
        return _encode_descriptor

    def fill(out: int, *given: Any) -> None:
        ctypes.memmove(out, _encode_descriptor(*given), tensormap.TENSORMAP_BYTES)

    return fill


def _no_im2col(*given: Any) -> None:
    raise refusal("a TMA descriptor in im2col mode")
