"""Runs a compiled kernel's own host code on CPU tensors and returns the launches that it asks for."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from gdnbench.sim.errors import ExportError, LaunchError
from gdnbench.sim.host import cutlass_dsl, tvm_ffi
from gdnbench.sim.host.arguments import (
    Packed,
    Region,
    pack_arguments,
    regions_in,
    replace_tensors,
)
from gdnbench.sim.host.cutlass_dsl import Exported
from gdnbench.sim.host.device import device_for
from gdnbench.sim.host.elf import Elf
from gdnbench.sim.host.layouts import parameter_types
from gdnbench.sim.host.loader import HostObject, load
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.host.runtime import Runtime
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse

STREAM = "!cuda.stream"
NO_STREAM = Packed(bytes(8))  # the default stream, a null pointer


@dataclass(frozen=True, slots=True)
class Host:
    """A compiled kernel, exported and loaded."""

    exported: Exported
    module: Module
    code: HostObject


@dataclass(frozen=True, slots=True)
class Capture:
    """The launches of one call, in order, the parsed PTX that they name kernels of, and the tensors it was
    given."""

    module: Module
    requests: tuple[LaunchRequest, ...]
    regions: tuple[Region, ...]


_loaded: WeakKeyDictionary[Any, Host] = WeakKeyDictionary()


def capture(compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Capture:
    """What `compiled(*args, **kwargs)` would launch, on torch CPU tensors, without the stream.

    ExportError if the kernel cannot be loaded, LaunchError if the arguments do not fit it.
    """
    host = _host(compiled)
    arguments = cutlass_dsl.bind(compiled, args, kwargs or {}, NO_STREAM)
    regions = regions_in(arguments)
    call = _tvm_ffi_call if host.exported.tvm_ffi else _plain_call
    with host.code.running() as runtime:
        status = call(compiled, host, arguments)
        if runtime.error is not None:
            raise runtime.error
        if status:
            raise ExportError(f"the host code of {host.exported.function} ends with CUDA error {status}")
        return Capture(host.module, tuple(runtime.launches), tuple(regions))


def _host(compiled: Any) -> Host:
    found = _loaded.get(compiled) if cutlass_dsl.is_compiled(compiled) else None
    if found is None:
        found = _load(cutlass_dsl.export(compiled))
        _loaded[compiled] = found
    return found


def _load(exported: Exported) -> Host:
    module = parse(exported.ptx)

    def param_sizes(entry: str) -> list[int]:
        if entry not in module.kernels:
            raise ExportError(f"the PTX kept has no kernel {entry}")
        return [param.size for param in module.kernels[entry].params]

    runtime = Runtime(exported.ptx, device_for(module.target), param_sizes)
    extra = tvm_ffi.symbols(Elf.parse(exported.data).undefined()) if exported.tvm_ffi else {}
    code = load(exported.data, runtime, extra)
    if not exported.tvm_ffi:
        _initialise(code)
    return Host(exported, module, code)


def _initialise(code: HostObject) -> None:
    """Load the cubin and look its kernels up, as the header that the DSL exports does before a first call."""
    library, error = ctypes.c_void_p(), ctypes.c_int32()
    storage, device = ctypes.pointer(library), ctypes.c_int32(0)
    with code.running() as runtime:
        _call_packed(code, f"_mlir_{cutlass_dsl.PREFIX}_cuda_init", [storage], error)
        if not error.value:
            _call_packed(code, f"_mlir_{cutlass_dsl.PREFIX}_cuda_load_to_device", [storage, device], error)
        if runtime.error is not None:
            raise runtime.error
    if error.value:
        raise ExportError(f"the kernel's host code cannot be set up: CUDA error {error.value}")


def _call_packed(code: HostObject, name: str, values: Sequence[Any], result: ctypes.c_int32) -> None:
    """A function whose arguments, and last its result, come as an array of pointers to them."""
    slots = (ctypes.c_void_p * (len(values) + 1))(*map(ctypes.addressof, values), ctypes.addressof(result))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.function(name))(ctypes.addressof(slots))


def _plain_call(compiled: Any, host: Host, arguments: Mapping[str, Any]) -> int:
    """Call the host function through the C interface that it is exported with; returns its CUDA error."""
    function = host.exported.function
    packed = list(arguments.values())
    if host.exported.ir is not None:
        packed = pack_arguments(arguments, parameter_types(host.exported.ir, function))
    elif any(isinstance(region.keeper, Tensor) for region in regions_in(arguments)):
        raise ExportError(
            f"{function} was compiled without its argument types kept: {cutlass_dsl.HOW_TO_KEEP}"
        )
    addresses, keep = cutlass_dsl.argument_pointers(compiled, packed)
    wanted = cutlass_dsl.host_parameter_count(compiled)
    if len(addresses) != wanted:
        raise LaunchError(f"the arguments make {len(addresses)} values where {function} takes {wanted}")
    result = ctypes.c_int32()
    slots = (ctypes.c_void_p * (wanted + 1))(*addresses, ctypes.addressof(result))
    entry = host.code.function(f"_mlir_{cutlass_dsl.PREFIX}__mlir_ciface_{function}")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(entry)(ctypes.addressof(slots), wanted + 1)
    del keep  # until here
    return result.value


def _tvm_ffi_call(compiled: Any, host: Host, arguments: Mapping[str, Any]) -> int:
    """Call the tvm-ffi entry. A stream is passed only if the entry takes one: it may come from the
    environment."""
    streams = cutlass_dsl.stream_names(compiled)
    entry = tvm_ffi.Entry(host.code.function(f"__tvm_ffi_{cutlass_dsl.PREFIX}"))
    given = {name: 0 if name in streams else value for name, value in arguments.items()}
    if entry.parameter_count() == len(given) - len(streams):
        given = {name: value for name, value in given.items() if name not in streams}
    runtime = host.code.runtime
    entry.call(replace_tensors(given, tvm_ffi.as_cuda), lambda: runtime.error)
    return 0
