# SPDX-License-Identifier: Apache-2.0
"""`torch.cuda` and what goes with it, as a program sees it on the virtual GPU.

Streams run what they are given at once, so that waiting does nothing. Times are the host's.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.virtual import torch_backend
from gdnbench.sim.virtual.cuda_graphs import CUDAGraph, GraphCapture, capturing, graph_segments
from gdnbench.sim.virtual.gpu import VirtualGpu
from gdnbench.sim.virtual.libcuda import provide_libcuda
from gdnbench.sim.virtual.patches import Patches
from gdnbench.sim.virtual.refusals import refusal

CUDA_VERSION = "13.0"  # what torch.version.cuda says in a build without CUDA
_handles = itertools.count(0x1000, 16)


class Stream:
    """A CUDA stream. Everything is done when it was asked for, so there is nothing to wait for."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch_backend.CUDA
        self.device_index, self.device_type = 0, 1
        self.priority = priority
        self.cuda_stream = next(_handles)
        self.stream_id = self.cuda_stream

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """A launch after this is not dependent on one before."""
        torch_backend.backend().on_work()

    def is_capturing(self) -> bool:
        return capturing()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    @property
    def _as_parameter_(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self.cuda_stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __enter__(self) -> Stream:
        self._around = _current_stream()
        _set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        _set_stream(self._around)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream by its handle."""

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        super().__init__()
        self.cuda_stream = self.stream_id = int(stream_ptr)


class Event:
    """A CUDA event, with the host's time of its record."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self.device = torch_backend.CUDA
        self.cuda_event = next(_handles)
        self._recorded: float | None = None

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """A launch after this is not dependent on one before."""
        torch_backend.backend().on_work()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the host, most of them the simulator's."""
        if self._recorded is None or end_event._recorded is None:
            raise RuntimeError("CUDA error: both events must be recorded before their time is asked for")
        return (end_event._recorded - self._recorded) * 1e3


class _Current(threading.local):
    """The current stream of each thread; None before the first."""

    stream: Any = None


_current = _Current()


def _default_stream(device: Any = None) -> Stream:
    return ExternalStream(0)


def _current_stream(device: Any = None) -> Stream:
    if _current.stream is None:
        _current.stream = _default_stream()
    found: Stream = _current.stream
    return found


def _set_stream(stream: Any) -> None:
    if stream is not None:
        _current.stream = stream


@contextmanager
def _stream_block(stream: Any) -> Iterator[Any]:
    before = _current_stream()
    _set_stream(stream)
    try:
        yield stream
    finally:
        _set_stream(before)


@dataclass(frozen=True)
class Properties:
    """torch.cuda.get_device_properties."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    warp_size: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    @classmethod
    def of_gpu(cls, gpu: VirtualGpu) -> Properties:
        """The properties of a virtual GPU, from its table of attributes."""
        has = gpu.device.attributes
        return cls(
            gpu.machine.product,
            *gpu.device.capability,
            total_memory=gpu.machine.memory,
            multi_processor_count=gpu.device.multiprocessors,
            max_threads_per_multi_processor=has[39],
            max_threads_per_block=has[1],
            warp_size=has[10],
            regs_per_multiprocessor=has[82],
            shared_memory_per_block=has[8],
            shared_memory_per_block_optin=has[97],
            shared_memory_per_multiprocessor=has[81],
            L2_cache_size=gpu.device.l2_bytes,
        )


class _GeneratorKind(type(torch.Generator)):  # type: ignore[misc]  # a class that torch makes in C
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchGenerator)


_TorchGenerator: Any = torch.Generator


class Generator(_TorchGenerator, metaclass=_GeneratorKind):  # type: ignore[misc]
    """torch.Generator; one for `cuda` draws the CPU's numbers, not those of CUDA's Philox."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        wanted = torch.device(device)
        made: Generator = super().__new__(cls, "cpu" if wanted.type == "cuda" else wanted)
        made._wanted = wanted
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch_backend.CUDA if self._wanted.type == "cuda" else self._wanted


def _no_work(*_: Any, **__: Any) -> None:
    """What needs no work here."""


def _wait(device: Any = None) -> None:
    """Launches have run; one after this is not dependent on one before."""
    _index(device)
    torch_backend.backend().on_work()


def _eager(model: Any = None, **_: Any) -> Any:
    """torch.compile: its argument itself."""
    if not _said:
        _said.append("torch.compile")
        print("gdnbench: torch.compile runs eagerly on the virtual GPU", file=sys.stderr)
    if model is None:
        return lambda function: function
    return model


_said: list[str] = []


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            if "device_ready_queues_" not in str(error):
                raise
            raise LaunchError(
                "torch made its threads for backward passes before there was a virtual GPU: make it before"
                " the process's first backward pass"
            ) from None

    return run_backward


def _process_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is None or "nccl" in str(backend).lower():
            raise refusal("NCCL; the virtual machine has one GPU: give init_process_group backend='gloo'")
        return original(backend, *args, **kwargs)

    return init_process_group


def _storage(original: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return original(cls, *args, **({} if device is None else {"device": device}), **kwargs)
        size = args[0] if args and isinstance(args[0], int) else kwargs.get("size")
        if size is None:
            values = torch.tensor(list(args[0]) if args else [], dtype=torch.uint8)
            return values.to("cuda").untyped_storage()
        return torch.empty(size, dtype=torch.uint8, device="cuda").untyped_storage()

    return new


@contextmanager
def torch_sees(gpu: VirtualGpu) -> Iterator[None]:
    """Inside this block torch has one CUDA device, `gpu`. Raises LaunchError where torch sees a real one."""
    if torch.cuda.is_available() and not (torch.version.cuda and provide_libcuda()):
        raise LaunchError(
            "torch sees a real GPU here; hide it with CUDA_VISIBLE_DEVICES='' to use a virtual one"
        )
    patches = Patches()
    with torch_backend.cuda_tensors(gpu.memory, gpu.order.forget):
        try:
            _patch(patches, gpu)
            yield
        finally:
            patches.restore()
            _current.stream = None


def _patch(patches: Patches, gpu: VirtualGpu) -> None:
    cuda: Any = torch.cuda
    put = patches.replace_if_there
    for name, value in {**_functions(gpu), **_memory_functions(gpu)}.items():
        _replace_everywhere(patches, name, value)
    for module in (cuda, cuda.streams):
        for kind in (Stream, ExternalStream, Event):
            put(module, kind.__name__, kind)
    for module in (cuda, cuda.graphs):
        put(module, "CUDAGraph", CUDAGraph)
        put(module, "graph", GraphCapture)
        put(module, "graph_pool_handle", lambda: (0, next(_handles)))
        put(module, "is_current_stream_capturing", capturing)
    put(cuda.nvtx, "_nvtx", SimpleNamespace(**dict.fromkeys(_NVTX, _nvtx)))
    _patch_torch(patches, gpu)


def _replace_everywhere(patches: Patches, name: str, value: Any) -> None:
    """Replace `torch.cuda.NAME`, and the same object where other modules of torch imported it by name."""
    original = getattr(torch.cuda, name, None)
    if not hasattr(torch.cuda, name):
        return
    patches.replace(torch.cuda, name, value)
    if not callable(original):
        return
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.") and vars(module).get(name) is original:
            patches.replace(module, name, value)


_NVTX = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA", "deviceRangeStart", "deviceRangeEnd")


def _nvtx(*_: Any) -> int:
    return 0


def _patch_torch(patches: Patches, gpu: VirtualGpu) -> None:
    put = patches.replace_if_there
    patches.replace(torch, "Generator", Generator)
    put(torch, "compile", _eager)
    autograd: Any = torch.autograd
    patches.replace(autograd, "_engine_run_backward", _backward(autograd._engine_run_backward))
    put(torch.Tensor, "record_stream", _no_work)
    patches.replace(torch.UntypedStorage, "__new__", _storage(torch.UntypedStorage.__new__))
    for name, value in {
        "_cuda_getCurrentStream": lambda _: (_current_stream().cuda_stream, 0, 1),
        "_cuda_getCurrentRawStream": lambda _: _current_stream().cuda_stream,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": _index,
        "_cuda_exchangeDevice": lambda device: 0,
        "_cuda_maybeExchangeDevice": lambda device: 0,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_synchronize": _wait,
        "_cuda_emptyCache": _no_work,
        "_cuda_isCurrentStreamCapturing": capturing,
        "_host_emptyCache": _no_work,
    }.items():
        patches.replace(torch._C, name, value)
    if torch.version.cuda is None:
        patches.replace(torch.version, "cuda", CUDA_VERSION)
    put(torch.backends.cuda, "is_built", lambda: True)
    put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    accelerator: Any = torch.accelerator
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_stream": _current_stream,
        "set_stream": _set_stream,
        "synchronize": _wait,
        "set_device_index": _no_work,
    }.items():
        put(accelerator, name, value)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and hasattr(distributed, "init_process_group"):
        wrapped = _process_group(distributed.init_process_group)
        patches.replace(distributed, "init_process_group", wrapped)


def _index(device: Any) -> int:
    """The index of a device that torch.cuda is given. Raises RuntimeError unless it is 0."""
    if device is None or device == -1:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index or 0
    torch_backend.check_index(torch.device("cuda", index))
    return index


def _functions(gpu: VirtualGpu) -> dict[str, Any]:
    properties = Properties.of_gpu(gpu)

    def get_device_properties(device: Any = None) -> Properties:
        _index(device)
        gpu.asked_device()
        return properties

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        _index(device)
        return gpu.device.capability

    def get_device_name(device: Any = None) -> str:
        _index(device)
        return gpu.machine.product

    def set_device(device: Any) -> None:
        _index(device)

    architecture = "".join(map(str, gpu.device.capability))
    return {
        "_lazy_init": _no_work,
        "_lazy_call": lambda function, **_: function(),
        "_initialized": True,
        "init": _no_work,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "device_count": lambda: 1,
        "_device_count_nvml": lambda: 1,
        "current_device": lambda: 0,
        "set_device": set_device,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "get_device_properties": get_device_properties,
        "_get_device_properties": get_device_properties,
        "get_device_capability": get_device_capability,
        "get_device_name": get_device_name,
        "get_arch_list": lambda: [f"sm_{architecture}"],
        "can_device_access_peer": lambda device, peer: False,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "synchronize": _wait,
        "ipc_collect": _no_work,
        "current_stream": _current_stream,
        "default_stream": _default_stream,
        "get_stream_from_external": ExternalStream,
        "set_stream": _set_stream,
        "stream": _stream_block,
        "StreamContext": _stream_block,
        "set_sync_debug_mode": _no_work,
        "get_sync_debug_mode": lambda: 0,
        "_sleep": _no_work,
        "_is_in_bad_fork": lambda: False,
        "default_generators": (torch_backend.backend().generator,),
    }


def _memory_functions(gpu: VirtualGpu) -> dict[str, Any]:
    memory = gpu.memory

    def reset_peak_memory_stats(device: Any = None) -> None:
        memory.peak = memory.allocated

    def memory_stats(device: Any = None) -> dict[str, Any]:
        return {
            "allocated_bytes.all.current": memory.allocated,
            "allocated_bytes.all.peak": memory.peak,
            "reserved_bytes.all.current": memory.allocated,
            "reserved_bytes.all.peak": memory.peak,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    return {
        "empty_cache": _no_work,
        "memory_allocated": lambda device=None: memory.allocated,
        "max_memory_allocated": lambda device=None: memory.peak,
        "memory_reserved": lambda device=None: memory.allocated,
        "max_memory_reserved": lambda device=None: memory.peak,
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "reset_max_memory_allocated": reset_peak_memory_stats,
        "reset_accumulated_memory_stats": _no_work,
        "memory_stats": memory_stats,
        "memory_snapshot": lambda mempool_id=None: graph_segments(),
        "mem_get_info": lambda device=None: (gpu.machine.memory - memory.allocated, gpu.machine.memory),
        "set_per_process_memory_fraction": _no_work,
        "device_memory_used": lambda device=None: memory.allocated,
    }
