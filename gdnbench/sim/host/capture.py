# SPDX-License-Identifier: Apache-2.0
"""Runs a compiled kernel's own host code on CPU tensors and returns the launches that it requests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from gdnbench.sim.errors import ExportError, LaunchError
from gdnbench.sim.host import cutlass_dsl, exported_kernel, tvm_ffi
from gdnbench.sim.host.arguments import Region, map_leaves, pack_arguments, regions_in, tensors_in
from gdnbench.sim.host.cutlass_dsl import Exported
from gdnbench.sim.host.device import Device, device_for, device_of_host_code
from gdnbench.sim.host.elf import Elf
from gdnbench.sim.host.exported_kernel import NO_STREAM, ExportedKernel
from gdnbench.sim.host.layouts import parameter_types
from gdnbench.sim.host.loader import HostObject, load_host_object
from gdnbench.sim.host.ptx_kernel import PtxKernel, bind_positional
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.host.runtime import Runtime
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse


@dataclass(frozen=True, slots=True)
class Host:
    """A compiled kernel, exported and loaded."""

    exported: Exported
    module: Module
    code: HostObject


@dataclass(frozen=True, slots=True)
class Capture:
    """The launches of one call in order, the parsed PTX with their kernels, and the call's tensors."""

    module: Module
    requests: tuple[LaunchRequest, ...]
    regions: tuple[Region, ...]


NO_KERNELS = ".version 8.8\n.target sm_100a\n.address_size 64\n"
"""The PTX of a function that has host code alone."""

_loaded: WeakKeyDictionary[Any, Host] = WeakKeyDictionary()


def capture_launches(compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Capture:
    """The launches that `compiled(*args, **kwargs)` would make, on torch CPU tensors and without the stream.
    `compiled` is what `cute.compile` returned, an `ExportedKernel`, or a `PtxKernel`, which has one launch.

    Raises ExportError if the kernel cannot be loaded, LaunchError if the arguments do not fit it.
    """
    if isinstance(compiled, PtxKernel):
        request, memory = compiled.request(bind_positional(compiled, args, kwargs or {}))
        return Capture(compiled.module, (request,), tuple(memory))
    host = _host(compiled)
    call: Callable[..., int]
    if isinstance(compiled, ExportedKernel):
        arguments = exported_kernel.bind_arguments(compiled, args, kwargs or {})
        call = _exported_call
    else:
        arguments = cutlass_dsl.bind(compiled, args, kwargs or {}, NO_STREAM)
        call = _tvm_ffi_call if host.exported.tvm_ffi else _plain_call
    regions = regions_in(arguments)
    with host.code.running() as runtime:
        runtime.device = _device(host.exported, host.module)
        status = call(compiled, host, arguments)
        if runtime.error is not None:
            raise runtime.error
        if status:
            raise ExportError(f"the host code of {host.exported.function} ends with CUDA error {status}")
        return Capture(host.module, tuple(runtime.launches), tuple(regions))


def _host(compiled: Any) -> Host:
    whole = isinstance(compiled, ExportedKernel)
    found = _loaded.get(compiled) if whole or cutlass_dsl.is_compiled(compiled) else None
    if found is None:
        found = _load(_exported(compiled) if whole else cutlass_dsl.export(compiled))
        _loaded[compiled] = found
    return found


def _exported(kernel: ExportedKernel) -> Exported:
    return Exported(
        kernel.function, kernel.ptx, None, kernel.host_object, tvm_ffi=False, prefix=kernel.symbol
    )


def _load(exported: Exported) -> Host:
    module = parse(exported.ptx or NO_KERNELS)

    def param_sizes(entry: str) -> list[int]:
        if entry not in module.kernels:
            raise ExportError(f"the PTX kept has no kernel {entry}")
        return [param.size for param in module.kernels[entry].params]

    runtime = Runtime(exported.ptx, _device(exported, module), param_sizes)
    extra = tvm_ffi.tvm_ffi_symbols(Elf.parse(exported.data).undefined()) if exported.tvm_ffi else {}
    code = load_host_object(exported.data, runtime, extra)
    if not exported.tvm_ffi and exported.ptx:
        _initialise(code, exported.prefix)
    return Host(exported, module, code)


def _device(exported: Exported, module: Module) -> Device:
    return device_for(module.target) if exported.ptx else device_of_host_code()


def _initialise(code: HostObject, prefix: str) -> None:
    """Load the cubin and look up its kernels, as the DSL's exported header does before a first call."""
    library, error = ctypes.c_void_p(), ctypes.c_int32()
    storage, device = ctypes.pointer(library), ctypes.c_int32(0)
    with code.running() as runtime:
        _call_packed(code, f"_mlir_{prefix}_cuda_init", [storage], error)
        if not error.value:
            _call_packed(code, f"_mlir_{prefix}_cuda_load_to_device", [storage, device], error)
        if runtime.error is not None:
            raise runtime.error
    if error.value:
        raise ExportError(f"the kernel's host code cannot be set up: CUDA error {error.value}")


def _call_packed(code: HostObject, name: str, values: Sequence[Any], result: ctypes.c_int32) -> None:
    """Call a function that takes an array of pointers to its arguments, the last one to its result."""
    slots = (ctypes.c_void_p * (len(values) + 1))(*map(ctypes.addressof, values), ctypes.addressof(result))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.function(name))(ctypes.addressof(slots))


def _plain_call(compiled: Any, host: Host, arguments: Mapping[str, Any]) -> int:
    """Call the host function through its exported C interface; returns its CUDA error."""
    function = host.exported.function
    packed = list(arguments.values())
    if host.exported.ir is not None:
        packed = pack_arguments(arguments, parameter_types(host.exported.ir, function))
    elif tensors_in(arguments):
        raise ExportError(
            f"{function} was compiled without its argument types kept: {cutlass_dsl.HOW_TO_KEEP}"
        )
    addresses, keep = cutlass_dsl.argument_pointers(compiled, packed)
    wanted = cutlass_dsl.host_parameter_count(compiled)
    if len(addresses) != wanted:
        raise LaunchError(f"the arguments make {len(addresses)} values where {function} takes {wanted}")
    status = _call_host(host, addresses)
    del keep  # until here
    return status


def _exported_call(kernel: ExportedKernel, host: Host, arguments: Mapping[str, Any]) -> int:
    """Like `_plain_call`, for a kernel that describes its own parameters."""
    packed = exported_kernel.pack_bound(kernel, arguments)
    return _call_host(host, [address for value in packed for address in value.__c_pointers__()])


def _call_host(host: Host, addresses: Sequence[int]) -> int:
    """Call the host function on the values at `addresses`."""
    result = ctypes.c_int32()
    slots = (ctypes.c_void_p * (len(addresses) + 1))(*addresses, ctypes.addressof(result))
    entry = host.code.function(f"_mlir_{host.exported.prefix}__mlir_ciface_{host.exported.function}")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(entry)(ctypes.addressof(slots), len(slots))
    return result.value


def _tvm_ffi_call(compiled: Any, host: Host, arguments: Mapping[str, Any]) -> int:
    """Call the tvm-ffi entry. The stream is passed only if the entry takes one: it may use the
    environment's."""
    streams = cutlass_dsl.stream_names(compiled)
    entry = tvm_ffi.Entry(host.code.function(f"__tvm_ffi_{host.exported.prefix}"))
    given = {name: 0 if name in streams else value for name, value in arguments.items()}
    if entry.parameter_count() == len(given) - len(streams):
        given = {name: value for name, value in given.items() if name not in streams}
    runtime = host.code.runtime
    entry.call(
        [map_leaves(name, value, tvm_ffi.entry_argument) for name, value in given.items()],
        lambda: runtime.error,
    )
    return 0
