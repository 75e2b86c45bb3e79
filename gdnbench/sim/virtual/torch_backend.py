# SPDX-License-Identifier: Apache-2.0
"""A CUDA backend for torch whose tensors are in CPU memory.

Tensors are torch's own, with the device and the dispatch key of CUDA, so that all of torch (device checks,
autograd and its threads, autocast, DLPack, C++ extensions) takes them for what they claim to be. The kernels
of the dispatch key CUDA are replaced: each makes CPU tensors of the same memory, runs the CPU's kernel and
writes the results to new CUDA tensors. Nothing of torch is compiled or changed on disk.

torch's interfaces used here: `torch.library` (kernels and the fallback of a dispatch key), DLPack (memory
that claims to be on CUDA), `torch._C._ensureCUDADeviceGuardSet` (FakeTensor uses it for the same purpose).
"""

from __future__ import annotations

import ctypes
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.virtual.device_memory import DeviceMemory
from gdnbench.sim.virtual.graph_recorder import GraphRecorder
from gdnbench.sim.virtual.refusals import refusal
from gdnbench.sim.virtual.scaled_mm import RESULTS_OF_OTHER_DTYPES, has_block_scales, product_in, scaled_mm

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
DL_CUDA = 2  # kDLCUDA of dlpack.h
DL_DEVICE_AT = 8  # of DLTensor: after the data pointer
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
CUDA_NUMBER = 1  # of c10::DeviceType
HOOKS = "_ZN2at6detail12getCUDAHooksEv"  # at::detail::getCUDAHooks()
HOOKS_HEADER = "ATen/detail/AcceleratorHooksInterface.h"
AFFIRMED = ("isBuilt", "isAvailable", "hasPrimaryContext", "init", "deviceCount")
PINNED, CPU_ALLOCATOR = "getPinnedMemoryAllocator", "_ZN3c1015GetCPUAllocatorEv"  # c10::GetCPUAllocator()
# A table of virtual functions by the Itanium C++ ABI: two words, the functions, of which destructors are two.
TABLE_HEAD, DESTRUCTORS = 2, 2
TABLE_SIZE = 96  # functions to copy: more than there are

# Kernels of torch that only change or create metadata, or that consist of other operations: these stay.
KEEP = {
    "as_strided_",
    "detach_",
    "empty_like",
    "is_coalesced",
    "is_same_size",
    "lift",
    "resize_as_",
    "squeeze_",
    "swapaxes_",
    "swapdims_",
    "t_",
    "transpose_",
    "unsqueeze_",
    "_assert_tensor_metadata",
    "_has_same_storage_numel",
    "_to_copy",
    "_version",
}
# Operations that take CPU tensors of any size beside CUDA tensors.
MIXED = {"_index_put_impl_", "copy_", "index", "index_put_", "_unsafe_index", "_foreach_copy_", "set_"}
SYNCHRONISING = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}


@dataclass(slots=True)
class Backend:
    """The state behind the kernels. `memory` is None while no virtual GPU is active. `on_work` is called for
    each operation that a GPU would launch a kernel or a copy for."""

    memory: DeviceMemory | None = None
    generator: torch.Generator | None = None
    recorder: GraphRecorder | None = None
    libraries: list[Any] = field(default_factory=list)
    on_work: Callable[[], None] = lambda: None


_backend = Backend()


def device_memory() -> DeviceMemory:
    """The active GPU's memory. Raises AssertionError, as torch does without CUDA."""
    if _backend.memory is None:
        raise AssertionError("Torch not compiled with CUDA enabled, and no virtual GPU is active")
    return _backend.memory


def backend() -> Backend:
    """The state that `torch.cuda`'s replacements share with the kernels."""
    return _backend


@contextmanager
def cuda_tensors(memory: DeviceMemory, on_work: Callable[[], None]) -> Iterator[None]:
    """Inside this block operations may make tensors on `cuda`; they live in `memory`. What remains of them
    afterwards stays usable. `on_work` is that of `Backend`."""
    _register()
    before = _backend.memory, _backend.generator, _backend.on_work
    _backend.memory, _backend.generator, _backend.on_work = memory, torch.Generator(), on_work
    try:
        with _accelerated():
            yield
    finally:
        _backend.memory, _backend.generator, _backend.on_work = before


def new_tensor(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A CUDA tensor on new memory, without values. Raises torch.OutOfMemoryError."""
    reach = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + 1
    count = 0 if 0 in size else reach
    try:
        flat = torch.from_numpy(device_memory().allocate(count * dtype.itemsize))
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error)) from None
    return _restrided(_claim_cuda(flat).view(dtype), size, stride, 0)


def cpu_alias(tensor: Tensor) -> Tensor:
    """A CPU tensor of the same memory, shape and strides as a CUDA tensor, which must outlive it."""
    storage = tensor.untyped_storage()
    flat = _bytes_at(storage.data_ptr(), storage.nbytes() // tensor.itemsize * tensor.itemsize)
    alias = _restrided(flat.view(tensor.dtype), tensor.shape, tensor.stride(), int(tensor.storage_offset()))
    if tensor.is_conj():
        alias = alias.conj()
    return torch._neg_view(alias) if tensor.is_neg() else alias


def cuda_alias(tensor: Tensor) -> Tensor:
    """A CUDA tensor of the same memory, shape and strides as a CPU tensor: what a kernel writes to one is in
    the other. The memory is the GPU's for as long as the tensor that this returns lives."""
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    if tensor.numel() == 0:
        return new_tensor(size, stride, tensor.dtype)
    reach = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + 1
    block = device_memory().adopt(tensor.data_ptr(), reach * tensor.itemsize, tensor)
    return _restrided(_claim_cuda(torch.from_numpy(block)).view(tensor.dtype), size, stride, 0)


def to_cuda(tensor: Tensor) -> Tensor:
    """A CUDA tensor with a copy of a CPU tensor's values, and its strides if they are dense."""
    if tensor.layout is not torch.strided:
        raise refusal(f"a CUDA tensor of layout {tensor.layout}")
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    if not torch.ops.aten.is_non_overlapping_and_dense.default(tensor):
        stride = tuple(torch.empty(size, dtype=torch.uint8, device="meta").stride())
    made = new_tensor(size, stride, tensor.dtype)
    if tensor.numel():
        cpu_alias(made).copy_(tensor)
    return made


def _bytes_at(address: int, size: int) -> Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def _restrided(flat: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """`flat`, which nobody else has, with this shape."""
    return flat.as_strided_(tuple(size), tuple(stride), offset)


def _claim_cuda(flat: Tensor) -> Tensor:
    """A tensor of the same memory on CUDA, which keeps `flat` alive."""
    capsule = torch._C._to_dlpack(flat)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    device = get(capsule, b"dltensor") + DL_DEVICE_AT
    ctypes.c_int32.from_address(device).value = DL_CUDA
    ctypes.c_int32.from_address(device + 4).value = 0
    made: Tensor = torch._C._from_dlpack(capsule)
    return made


@functools.cache
def _register() -> None:
    """Register the kernels, once in a process: torch's dispatcher is the process's."""
    _set_device_guard()
    library: Any = torch.library.Library  # typed in part
    fallback = library("_", "IMPL")
    fallback.fallback(_run, "CUDA")
    aten = library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a general kernel is overridden, which is the purpose
        for name, kernel in _SPECIAL.items():
            aten.impl(name, kernel, "CUDA")
        for name in _with_other_kernels():
            aten.impl(name, _kernel_of(name), "CUDA")
    _backend.libraries += [fallback, aten]


def _set_device_guard() -> None:
    """Give torch a device guard for CUDA, without which it refuses the device's tensors in autograd.

    torch sets one by itself if the guard there says that there is no device, which is so in a CUDA build on a
    machine without a GPU. A CPU build has none at all: an object whose every method returns 0 says the same.
    """
    libraries = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(libraries / "libc10.so"))
    try:
        guards = (ctypes.c_void_p * (CUDA_NUMBER + 1)).in_dll(library, GUARDS)
    except ValueError:
        raise UnsupportedError(f"torch {torch.__version__}, whose libc10.so has no {GUARDS}") from None
    if not guards[CUDA_NUMBER]:
        method = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
        methods = (ctypes.c_void_p * 64)(*[ctypes.cast(method, ctypes.c_void_p).value] * 64)
        empty = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
        guards[CUDA_NUMBER] = ctypes.addressof(empty)
    torch._C._ensureCUDADeviceGuardSet()  # replaces the object at once


@contextmanager
def _accelerated() -> Iterator[None]:
    """Inside this block torch says that CUDA is its accelerator and has a device: autograd asks for its
    streams."""
    table, changed = _hooks()
    before = table.value
    table.value = changed
    try:
        if torch.accelerator.current_accelerator() != torch.device("cuda"):
            raise UnsupportedError(f"torch {torch.__version__}, whose accelerator cannot be set")
        yield
    finally:
        table.value = before


@functools.cache
def _hooks() -> tuple[ctypes.c_void_p, int]:
    """Where torch's CUDA hooks have the address of their table of virtual functions, and the address of a
    table that says yes.

    torch asks an object of C++, the CUDA hooks, whose answers are virtual functions. The headers that come
    with torch say at which position of the table each of them is; those in `AFFIRMED` are replaced.
    """
    folder = Path(torch.__file__).parent
    library = ctypes.CDLL(str(folder / "lib" / "libtorch_cpu.so"))
    try:
        hooks = library[HOOKS]
        header = (folder / "include" / HOOKS_HEADER).read_text(encoding="utf-8")
    except (AttributeError, OSError) as error:
        raise UnsupportedError(
            f"torch {torch.__version__}, whose CUDA hooks are not found: {error}"
        ) from None
    names = re.findall(r"^  virtual [^~;{=]*?(\w+)\(", header, re.MULTILINE)
    if missing := [name for name in (*AFFIRMED, PINNED) if name not in names]:
        raise UnsupportedError(f"torch {torch.__version__}, whose hooks have no {', '.join(missing)}")
    hooks.restype, hooks.argtypes = ctypes.c_void_p, []
    table = ctypes.c_void_p.from_address(hooks())
    whole = TABLE_HEAD + TABLE_SIZE
    words = (ctypes.c_uint64 * whole).from_address((table.value or 0) - 8 * TABLE_HEAD)
    # Never freed: C++ destroys the hooks by this table after Python has ended.
    allocate = ctypes.pythonapi.PyMem_RawMalloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    changed = (ctypes.c_uint64 * whole).from_address(allocate(8 * whole))
    ctypes.memmove(changed, words, 8 * whole)
    # A function of C that returns 1 while Python runs, and that needs no lock of Python's.
    yes = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0
    for name in AFFIRMED:
        changed[TABLE_HEAD + DESTRUCTORS + names.index(name)] = yes
    # Pinned memory is the CPU's own.
    base = ctypes.CDLL(str(folder / "lib" / "libc10.so"))
    pinned = ctypes.cast(base[CPU_ALLOCATOR], ctypes.c_void_p).value or 0
    changed[TABLE_HEAD + DESTRUCTORS + names.index(PINNED)] = pinned
    return table, ctypes.addressof(changed) + 8 * TABLE_HEAD


def _with_other_kernels() -> Iterator[str]:
    """Operations that the fallback does not come before: those with a kernel for CUDA, in torch's CUDA build,
    and those with a kernel for all backends. Some of the latter would look for kernels of CUDA; the others
    are faster as one operation on the CPU."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, operation = name.partition("::")
        base, _, overload = operation.partition(".")
        if namespace != "aten" or base in KEEP or operation in _SPECIAL:
            continue
        if has(name, "CUDA"):
            yield operation
            continue
        general = has(name, "CompositeExplicitAutograd")
        if not general and not has(name, "CompositeExplicitAutogradNonFunctional"):
            continue
        schema = torch._C._get_schema(name.removesuffix(f".{overload}") if overload else name, overload)
        makes = any(argument.name == "device" for argument in schema.arguments)
        if not _returns_view(schema) and not (general and makes):
            yield operation


def _returns_view(schema: Any) -> bool:
    return any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)


def _kernel_of(name: str) -> Callable[..., Any]:
    base, _, overload = name.partition(".")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _run(getattr(getattr(torch.ops.aten, base), overload or "default"), *args, **kwargs)

    return kernel


@dataclass(frozen=True, slots=True)
class _Schema:
    """What a schema says: its name, which arguments it writes, which of these each result is, and whether it
    draws random numbers or takes a device."""

    name: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    results: tuple[str | None, ...]
    random: bool
    device: bool
    view: bool


@functools.cache
def _form(op: Any) -> _Schema:
    schema = op._schema
    by_alias = {
        alias: argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for alias in argument.alias_info.before_set
    }
    results = []
    for value in schema.returns:
        aliases = value.alias_info.before_set if value.alias_info is not None else ()
        results.append(next((by_alias[alias] for alias in aliases if alias in by_alias), None))
    names = tuple(argument.name for argument in schema.arguments)
    return _Schema(
        schema.name.partition("::")[2],
        names,
        tuple(dict.fromkeys(by_alias.values())),
        tuple(results),
        "generator" in names,
        "device" in names,
        _returns_view(schema),
    )


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU: its CUDA tensors as CPU tensors of the same memory, its results as CUDA
    tensors."""
    form = _form(op)
    given = dict(zip(form.arguments, args, strict=False)) | kwargs
    if form.view:
        return _run_view(op, given)
    _check_devices(form, given)
    if _backend.recorder is not None and form.name in SYNCHRONISING:
        raise RuntimeError(f"CUDA error: {form.name}: operation not permitted when stream is capturing")
    target = CUDA
    if form.device and given.get("device") is not None:
        target = given["device"]
        given["device"] = CPU
        given.pop("pin_memory", None)
    if form.random and given.get("generator") is None and target.type == "cuda":
        given["generator"] = _backend.generator
    cpu = {name: _map(value, _alias) for name, value in given.items()}
    fresh = [name for name in form.written if _must_grow(given[name])]
    for name in fresh:
        cpu[name] = torch.empty(0, dtype=given[name].dtype)
    done = _call(op, form, cpu)
    for name in form.written:
        _take_shape(given[name], cpu[name], name in fresh)
    if target.type != "cuda":
        return done
    results = [done] if len(form.results) == 1 else list(done or ())
    made = [
        given[name] if name is not None else _map(value, to_cuda)
        for name, value in zip(form.results, results, strict=True)
    ]
    if _backend.recorder is not None:
        _backend.recorder.add(functools.partial(_repeat, op, form, given, made))
    if not form.results:
        return None
    return made[0] if len(made) == 1 else tuple(made)


def _repeat(op: Any, form: _Schema, given: dict[str, Any], made: Sequence[Any]) -> None:
    """Run a recorded operation again, into the tensors that it made."""
    done = _call(op, form, {name: _map(value, _alias) for name, value in given.items()})
    results = [done] if len(form.results) == 1 else list(done or ())
    for name, value, old in zip(form.results, results, made, strict=True):
        if name is None:
            _copy_into(old, value)


def _copy_into(old: Any, new: Any) -> None:
    if isinstance(old, Tensor):
        cpu_alias(old).copy_(new)
    elif isinstance(old, list | tuple):
        for one, other in zip(old, new, strict=True):
            _copy_into(one, other)


def _call(op: Any, form: _Schema, cpu: dict[str, Any]) -> Any:
    _backend.on_work()
    if form.name == "_scaled_mm" and has_block_scales(cpu):
        return scaled_mm(cpu)
    if op in RESULTS_OF_OTHER_DTYPES:
        return product_in(cpu.pop("out_dtype"), form.name, cpu)
    try:
        return op(**cpu)
    except NotImplementedError as error:
        if "'CPU' backend" not in str(error):
            raise
        raise refusal(
            f"torch's {op._schema.name}, which has a kernel in its CUDA build and none on the CPU"
        ) from None


def _map(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """`value` with every tensor in it changed; lists of tensors stay lists."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [_map(item, change) for item in value]
    return value


def _alias(tensor: Tensor) -> Tensor:
    return cpu_alias(tensor) if tensor.is_cuda else tensor


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _check_devices(form: _Schema, given: dict[str, Any]) -> None:
    """Raises what torch's CUDA kernels raise if one of several tensors is on the CPU and no scalar."""
    if form.name in MIXED:
        return
    for tensor in _tensors(given.values()):
        if not tensor.is_cuda and tensor.device.type == "cpu" and tensor.dim() > 0:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! (in aten::{form.name})"
            )


def _must_grow(value: Any) -> bool:
    """Whether this is an output without room, as `out=torch.empty(0)` gives it."""
    return isinstance(value, Tensor) and value.is_cuda and value.numel() == 0


def _take_shape(tensor: Any, alias: Any, fresh: bool) -> None:
    """Give a written tensor the shape that the operation gave its alias."""
    if not isinstance(tensor, Tensor) or not tensor.is_cuda:
        return
    if fresh and alias.numel():
        tensor.data = to_cuda(alias)
    elif tensor.shape != alias.shape or tensor.stride() != alias.stride():
        tensor.as_strided_(alias.shape, alias.stride(), int(alias.storage_offset()))


def _run_view(op: Any, given: dict[str, Any]) -> Any:
    """A view: the CPU computes shape, strides and offset."""
    name, base = next((name, value) for name, value in given.items() if isinstance(value, Tensor))
    done = op(**{**given, name: cpu_alias(base)})
    return _map(done, functools.partial(_view_like, base))


def _view_like(base: Tensor, wanted: Tensor) -> Tensor:
    offset = int(wanted.storage_offset())
    if wanted.dtype != base.dtype:
        storage = base.untyped_storage()
        keep = torch.frombuffer(_kept_buffer(storage), dtype=torch.uint8)
        flat = _claim_cuda(keep).view(wanted.dtype)
        return _restrided(flat, wanted.shape, wanted.stride(), offset)
    return _as_strided(base, wanted.shape, wanted.stride(), offset)


def _kept_buffer(storage: Any) -> Any:
    """A buffer of a storage's bytes that keeps the storage alive."""
    buffer = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    buffer.storage = storage
    return buffer


def _as_strided(
    base: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    offset = base.storage_offset() if storage_offset is None else storage_offset
    return _restrided(torch.ops.aten.alias.default(base), size, stride, int(offset))


def check_index(device: torch.device | None) -> None:
    """Raises what CUDA raises for a device that is not there: there is one."""
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(f"CUDA error: invalid device ordinal: {device}; the virtual machine has one GPU")


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    check_index(device)
    form = torch.empty(size, dtype=torch.uint8, device="meta", memory_format=memory_format)
    return new_tensor(size, form.stride(), dtype or torch.get_default_dtype())


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    check_index(device)
    return new_tensor(size, stride, dtype or torch.get_default_dtype())


def _copy(self: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    def copy() -> None:
        _backend.on_work()
        _alias(self).copy_(_alias(source))

    if _backend.recorder is not None and self.is_cuda:
        _backend.recorder.add(copy)
    copy()
    return self


def _resize(self: Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> Tensor:
    form = torch.empty(size, dtype=torch.uint8, device="meta", memory_format=memory_format)
    room = self.untyped_storage().nbytes() // self.itemsize - int(self.storage_offset())
    if form.numel() > room:
        grown = new_tensor(size, form.stride(), self.dtype)
        kept = min(self.numel(), form.numel())
        if kept:
            flat = cpu_alias(grown).as_strided((kept,), (1,))
            flat.copy_(cpu_alias(self).as_strided((kept,), (1,), int(self.storage_offset())))
        self.data = grown
        return self
    return self.as_strided_(tuple(size), form.stride(), int(self.storage_offset()))


def _set_storage(
    self: Tensor, source: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> Tensor:
    untyped = source.untyped() if hasattr(source, "untyped") else source
    if untyped.nbytes() == 0:
        flat = new_tensor((0,), (1,), self.dtype)
    else:
        flat = _claim_cuda(torch.frombuffer(_kept_buffer(untyped), dtype=torch.uint8)).view(self.dtype)
    steps = tuple(stride) or torch.empty(tuple(size), dtype=torch.uint8, device="meta").stride()
    self.data = _restrided(flat, size, steps, storage_offset)
    return self


def _set_whole_storage(self: Tensor, source: Any) -> Tensor:
    untyped = source.untyped() if hasattr(source, "untyped") else source
    return _set_storage(self, untyped, 0, (untyped.nbytes() // self.itemsize,), (1,))


def _set_nothing(self: Tensor) -> Tensor:
    self.data = new_tensor((0,), (1,), self.dtype)
    return self


def _set_tensor(self: Tensor, source: Tensor) -> Tensor:
    self.data = source
    return self


def _attention_choice(*args: Any, **kwargs: Any) -> int:
    return 0  # sdp::SDPBackend::math, the composition of other operations


def _nothing(self: Tensor, *args: Any, **kwargs: Any) -> None:
    return None


_SPECIAL: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "as_strided": _as_strided,
    "copy_": _copy,
    "resize_": _resize,
    "set_.source_Storage_storage_offset": _set_storage,
    "set_.source_Storage": _set_whole_storage,
    "set_.source_Tensor": _set_tensor,
    "set_": _set_nothing,
    "_fused_sdp_choice": _attention_choice,
    "record_stream": _nothing,
}
