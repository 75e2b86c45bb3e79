"""Makes Triton launch its kernels on a virtual GPU: `with triton_sees(gpu): ...`.

Triton compiles as for that GPU, down to PTX; its last stage, ptxas, is left out. Tried with Triton 3.4 to
3.7. Where Triton would time the configurations of an autotuned kernel, the first that the GPU can launch is
taken. The environment variable GDNBENCH_TRITON_CONFIG names another: "2" for all kernels, "2,my_kernel=0" for
all but one; the numbers are positions, from 0, in the kernel's own list after its pruning.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.arguments import Region
from gdnbench.sim.host.device import MULTIPROCESSORS, Device
from gdnbench.sim.host.encode_tiled import ELEMENT_CODES, encode
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine import tensormap
from gdnbench.sim.virtual.patches import Patches
from gdnbench.sim.virtual.refusals import refusal

if TYPE_CHECKING:
    from gdnbench.sim.ptx.ir import Module
    from gdnbench.sim.virtual.gpu import VirtualGpu

CONFIG_VARIABLE = "GDNBENCH_TRITON_CONFIG"

# Numbers of cudaDeviceAttr.
MAX_THREADS, MAX_REGISTERS, MAX_SHARED = 1, 12, 97

# What Triton's own launcher passes for each type: the C type of an integer, as a `struct` code.
INTEGERS = {
    "i1": "b",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "B",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
}
FLOATS = ("fp16", "bf16", "fp32", "f32", "fp64")

_TENSOR_DESCRIPTOR = re.compile(r"tensordesc\w*<[^\[>]*\[([^\]]*)\]")


@contextmanager
def triton_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block Triton's driver is a stand-in that launches on `gpu`. Raises ImportError if Triton is
    not installed."""
    from triton.runtime import driver

    with ExitStack() as stack:
        stack.enter_context(_compiler_without_assembler())
        stack.enter_context(_fixed_configurations())
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


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of a loaded module."""

    module: Module
    entry: str


def _load_binary(
    gpu: VirtualGpu, name: str, code: bytes, shared: int, device: int
) -> tuple[Module, LoadedKernel, int, int, int]:
    """Module, function, registers and spills (none are known without ptxas), and threads per block at
    most."""
    module = gpu.load_module(code.decode())
    return module, LoadedKernel(module, name), 0, 0, gpu.device.attributes[MAX_THREADS]


class Launcher:
    """Packs a kernel's arguments and launches it; takes the place of Triton's `CudaLauncher`."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._signature = dict(source.signature)
        self._metadata = metadata

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: LoadedKernel,
        packed_metadata: Sequence[int],
        launch_metadata: Any,
        enter_hook: Callable[[Any], object] | None,
        exit_hook: Callable[[Any], object] | None,
        *args: Any,
    ) -> None:
        from triton.backends.nvidia.driver import make_tensordesc_arg
        from triton.runtime import driver

        gpu: VirtualGpu = driver.active.gpu
        metadata = self._metadata
        if metadata.launch_cooperative_grid:
            raise refusal("a cooperative launch (launch_cooperative_grid of Triton)")
        ctas = getattr(metadata, "num_ctas", 1)
        count = grid_x * grid_y * grid_z * ctas
        keep = [self._scratch("global", count, stream), self._scratch("profile", count, stream)]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if count > 0:
            pack = _Packing(gpu.allocations())
            descriptors = iter(getattr(metadata, "tensordesc_meta", None) or ())
            for index, ((name, type_), value) in enumerate(zip(self._signature.items(), args, strict=True)):
                if isinstance(type_, str) and type_.startswith("tensordesc"):
                    pack.note_tensor(str(name), value.base)
                    pack.descriptor(type_, make_tensordesc_arg(value, next(descriptors, None)))
                else:
                    pack.add(type_, value, index, str(name))
            for buffer in keep[: 1 + hasattr(metadata, "profile_scratch_size")]:
                pack.add("*i8", buffer)
            request = LaunchRequest(
                ptx="",
                entry=function.entry,
                grid=(grid_x * ctas, grid_y, grid_z),
                block=(32 * packed_metadata[0], 1, 1),
                cluster=(ctas, 1, 1),
                shared_bytes=metadata.shared,
                params=tuple(pack.params),
                registers=None,
                stream=stream,
                programmatic=bool(getattr(metadata, "launch_pdl", False)),
            )
            gpu.run(function.module, [request], pack.tensors)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _scratch(self, kind: str, count: int, stream: int) -> Any:
        """Memory for a launch of `count` CTAs from the allocator that Triton's user set, None if the kernel
        needs none."""
        from triton.runtime import _allocation

        size = getattr(self._metadata, f"{kind}_scratch_size", 0)
        if not size:
            return None
        allocator = _allocation._allocator if kind == "global" else _allocation._profile_allocator
        if hasattr(allocator, "get"):  # Triton 3.4 keeps the allocator itself
            allocator = allocator.get()
        return allocator(count * size, getattr(self._metadata, f"{kind}_scratch_align"), stream)


class _Packing:
    """Makes the bytes of a kernel's parameters. `allocations` is the memory of the GPU; `tensors` are those
    of the arguments by their names, at their addresses."""

    def __init__(self, allocations: Sequence[Region]) -> None:
        self.params: list[bytes] = []
        self.tensors: list[Region] = []
        self._allocations = allocations

    def add(self, type_: str | Sequence[Any], value: Any, index: int = -1, name: str = "") -> None:
        """An argument by its type in Triton; constants are compiled in. A tuple's elements follow one
        another. `index` and `name` are those of the kernel's parameter, if it is the caller's argument."""
        if not isinstance(type_, str):
            for i, (each, element) in enumerate(zip(type_, value, strict=True)):
                self.add(each, element, index, f"{name}[{i}]")
        elif type_ == "constexpr":
            pass
        elif type_.startswith("*"):
            self.params.append(struct.pack("<Q", self._address(value, index)))
            self.note_tensor(name, value)
        elif type_ in INTEGERS:
            self.params.append(_integer(INTEGERS[type_], value))
        elif type_ in FLOATS:
            self.params.append(_float(type_, value))
        else:
            raise refusal(f"a Triton kernel's argument of type {type_}")

    def note_tensor(self, name: str, value: Any) -> None:
        """A report names the memory of this argument `name`."""
        if name and hasattr(value, "data_ptr"):
            self.tensors.append(Region(name, value.data_ptr(), 0, value))

    def descriptor(self, type_: str, values: Sequence[Any]) -> None:
        """A tensor descriptor, which Triton expands to `values`: either a tensor map, or the tensor, its
        extents, strides and flags; then extents and strides."""
        shape = _TENSOR_DESCRIPTOR.match(type_)
        if shape is None:
            raise refusal(f"a Triton kernel's argument of type {type_}")
        rank = shape[1].count(",") + 1
        first, *rest = values
        flags = len(rest) - 4 * rank
        if hasattr(first, "tma_desc_cpu_ptr"):  # Triton 3.4
            first = ctypes.string_at(first.tma_desc_cpu_ptr(), tensormap.TENSORMAP_BYTES)
        if isinstance(first, bytes):
            self.params.append(first)
            types = []
        else:
            self.add("*i8", first)
            types = ["i64"] * 2 * rank + ["i1"] * flags
        for each, value in zip([*types, *["i32"] * rank, *["i64"] * rank], rest, strict=True):
            self.add(each, value)

    def _address(self, value: Any, index: int) -> int:
        """As Triton takes a pointer: an integer, None, or an object whose memory is the GPU's."""
        if value is None or isinstance(value, int):
            return value or 0
        if not hasattr(value, "data_ptr"):
            raise TypeError("Pointer argument must be either uint64 or have data_ptr method")
        address: int = value.data_ptr()
        there = (one.address <= address < one.address + max(one.size, 1) for one in self._allocations)
        if address and not any(there):
            raise ValueError(f"Pointer argument (at {index}) cannot be accessed from Triton (cpu tensor?)")
        return address


def _integer(code: str, value: Any) -> bytes:
    """Signed values have to fit, unsigned ones are cut, as Python's C interface has it."""
    value = int(value)
    if code.isupper():
        return struct.pack("<" + code, value & (1 << 8 * struct.calcsize(code)) - 1)
    try:
        return struct.pack("<" + code, value)
    except struct.error:
        raise OverflowError(f"{value} does not fit {8 * struct.calcsize(code)} signed bits") from None


def _float(type_: str, value: Any) -> bytes:
    """The bytes of a double in the type: rounded to nearest, but cut to bf16, as Triton's launcher has it."""
    value = float(value)
    if type_ == "fp64":
        return struct.pack("<d", value)
    if type_ == "fp16":
        return struct.pack("<e", value)
    with np.errstate(over="ignore"):
        single = np.float32(value).tobytes()
    return single[2:] if type_ == "bf16" else single


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


@contextmanager
def _fixed_configurations() -> Iterator[None]:
    """Inside this block an autotuned kernel runs with one configuration, and nothing is timed. Triton's cache
    of timings on disk is left alone, and what kernels remember of their tuning is forgotten at the end."""
    from triton.runtime.autotuner import Autotuner

    tuned: WeakSet[Any] = WeakSet()
    prune = Autotuner.prune_configs

    def prune_configs(self: Any, kwargs: dict[str, Any], *more: Any) -> list[Any]:
        tuned.add(self)
        configs = prune(self, kwargs, *more)
        at, chosen = _choose(self, configs, kwargs)
        name = self.base_fn.__name__
        note = f"triton: autotuned kernel {name}: configuration {at} of {len(configs)}: {chosen}"
        if note not in _printed:
            _printed.add(note)
            print(note, file=sys.stderr)
        return [chosen]

    def bench(self: Any, *args: Any, **kwargs: Any) -> list[float]:
        return [0.0, 0.0, 0.0]

    def check_disk_cache(self: Any, key: Any, configs: Any, tune: Callable[[], None]) -> bool:
        tune()
        return False

    patches = Patches()
    patches.replace(Autotuner, "prune_configs", prune_configs)
    patches.replace(Autotuner, "_bench", bench)
    patches.replace(Autotuner, "check_disk_cache", check_disk_cache)
    try:
        yield
    finally:
        patches.restore()
        for autotuner in tuned:
            autotuner.cache.clear()


_printed: set[str] = set()  # the notes on kernels' configurations: each is printed once in a process


def wanted_configuration(name: str, setting: str) -> int | None:
    """The number that `setting`, a value of GDNBENCH_TRITON_CONFIG, has for the kernel `name`. Raises
    LaunchError for one that is not understood."""
    numbers: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        kernel, _, number = part.rpartition("=")
        if not number.strip().isdecimal():
            raise LaunchError(
                f"{CONFIG_VARIABLE}={setting}: {part!r} is neither a number nor KERNEL=NUMBER; write 2 or"
                " 2,my_kernel=0"
            )
        numbers[kernel.strip()] = int(number)
    return numbers.get(name, numbers.get(""))


def _choose(autotuner: Any, configs: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, Any]:
    """Position and configuration of the one to run: the one asked for, or else the first that the GPU can
    launch, or that fails with a reason if there is none."""
    name = autotuner.base_fn.__name__
    wanted = wanted_configuration(name, os.environ.get(CONFIG_VARIABLE, ""))
    if wanted is not None:
        if wanted >= len(configs):
            raise LaunchError(
                f"{CONFIG_VARIABLE}: kernel {name} has configurations 0 to {len(configs) - 1}, not {wanted}"
            )
        return wanted, configs[wanted]
    for at, config in enumerate(configs):
        if _launchable(autotuner, config, kwargs):
            return at, config
    return 0, configs[0]


def _launchable(autotuner: Any, config: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the kernel compiles with `config` and fits the GPU."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources

    current = {**kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**autotuner.nargs, **current})
    try:
        kernel = autotuner.fn.run(*autotuner.nargs.values(), **{**current, "warmup": True})
        if hasattr(kernel, "result"):  # it is compiled in another thread
            kernel = kernel.result()
        kernel._init_handles()
    except (OutOfResources, CompileTimeAssertionFailure):
        return False
    return True
