# SPDX-License-Identifier: Apache-2.0
"""The uses of CuTe DSL's private interfaces to compile and to export; for nvidia-cutlass-dsl 4.5 to 4.8.

CuTeDSL._get_dsl().envar        the settings that CUTE_DSL_* variables give, read once at import; the
                                architecture is `_arch`, before 4.7 `arch`
cute.compile._compile_options   the options of compilations, into which the settings are written
compiled.artifacts              PTX and IR as kept at compilation
compiled.function_name, .ir_module, .dump_to_object, .execution_args
tvm-ffi form: export_to_c(object_file_path=, function_name=)
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import re
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnbench.sim.errors import CompileRefusedError, ExportError, LaunchError
from gdnbench.sim.host.arguments import address_of
from gdnbench.sim.host.device import DEVICES, device_for
from gdnbench.sim.host.device_queries import device_queries_answered

PREFIX = "gdnbench_sim"
DEFAULT_ARCH = "sm_100a"
ALIGN = 16  # bytes, for TMA and vector accesses
KEEP = "CUTE_DSL_KEEP=ptx,ir-debug"
HOW_TO_KEEP = f"compile it with gdnbench.sim.compile, inside gdnbench.sim.keep_ptx(), or with {KEEP} set"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WRITTEN_AGAINST = "; the simulator is written against 4.5 to 4.8.1: install one of these"
SETTINGS = ("keep_ptx", "keep_ir", "lineinfo", "dump_dir")
ARCH_WITHOUT_GPU = "sm_100"  # what releases before 4.7 take when they find no GPU
_LLVM_FUNCTION = re.compile(r"!llvm\.func<.*\)>")


@dataclass(frozen=True, slots=True)
class Exported:
    """A compiled kernel in a form that can be loaded without CUDA. `ir` is None if it was not kept, `ptx`
    empty if the function has host code alone."""

    function: str
    ptx: str
    ir: str | None
    data: bytes  # the host object
    tvm_ffi: bool
    prefix: str = PREFIX  # of the host object's symbols


@contextmanager
def keep_ptx(arch: str | None = None) -> Iterator[None]:
    """Inside this block compilations keep PTX, source lines and argument types for the simulator, and what
    they ask of the GPU is answered from the simulated device.

    `arch` is sm_100a, sm_103a or sm_90a; None takes CUTE_DSL_ARCH, or sm_100a if that is not set.
    """
    if arch is not None and arch not in DEVICES:
        raise LaunchError(f"arch {arch!r}; there are {', '.join(DEVICES)}")
    settings = _settings()
    lazy = hasattr(settings, "_arch")
    before = {name: getattr(settings, name) for name in (*SETTINGS, "_arch" if lazy else "arch")}
    undecided = before["_arch"] is None if lazy else before["arch"] == ARCH_WITHOUT_GPU
    with _options_of_their_own(), tempfile.TemporaryDirectory(prefix="gdnbench-sim-") as folder:
        settings.keep_ptx = settings.keep_ir = settings.lineinfo = True
        settings.dump_dir = folder  # the artifacts are read back as soon as they are written
        if arch is not None or undecided:
            settings.arch = arch or DEFAULT_ARCH
        try:
            with device_queries_answered(lambda: device_for(settings.arch)):
                yield
        finally:
            for name, value in before.items():
                setattr(settings, name, value)


def decide_arch_without_gpu() -> None:
    """Settle the architecture on what CuTe DSL takes where it finds no driver, unless it is settled.

    If a driver answers that there is no device, 4.7 and later ask it again for the text of that error, and so
    on until Python's recursion limit.
    """
    settings = _settings()
    if getattr(settings, "_arch", DEFAULT_ARCH) is None:
        settings.arch = DEFAULT_ARCH


@contextmanager
def _options_of_their_own() -> Iterator[None]:
    """`cute.compile` writes the settings into options that it keeps; this block gives it a copy."""
    import cutlass.cute as cute

    compiler: Any = cute.compile
    before = compiler._compile_options
    compiler._compile_options = copy.deepcopy(before)
    try:
        yield
    finally:
        compiler._compile_options = before


def compile_kept(function: Any, *args: Any, arch: str | None, **options: Any) -> Any:
    """`cute.compile(function, *args, **options)` inside `keep_ptx(arch)`."""
    import cutlass.cute as cute

    with keep_ptx(arch):
        return cute.compile(function, *args, **options)


def _settings() -> Any:
    try:
        from cutlass.cutlass_dsl import CuTeDSL
    except ImportError as error:
        raise ExportError(f"CuTe DSL is not installed ({error}): pip install nvidia-cutlass-dsl") from None
    settings = CuTeDSL._get_dsl().envar
    backend = getattr(settings, "compiler_backend", "legacy")
    if backend != "legacy":
        raise ExportError(f"CUTE_DSL_COMPILER_BACKEND={backend} gives no PTX to simulate: unset it")
    lacks = [name for name in SETTINGS if not hasattr(settings, name)]
    if lacks:
        raise ExportError(f"{_installed()} has no setting {', '.join(lacks)}{WRITTEN_AGAINST}")
    return settings


def _installed() -> str:
    return f"nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')}"


def is_jit(value: object) -> bool:
    """Whether `value` is a host function decorated with `@cute.jit`, or an object whose `__call__` is one."""
    return any(getattr(found, "_decorator_kind", None) == "jit" for found in (value, type(value).__call__))


def _jit_source(value: Any) -> Any:
    """The Python function behind a `@cute.jit` one; for an object, that of its `__call__`, without self."""
    found = value if hasattr(value, "_decorator_kind") else type(value).__call__
    return getattr(found, "__wrapped__", found)


def jit_name(value: Any) -> str:
    """The name of a host function for messages."""
    return str(getattr(value, "__name__", type(value).__name__))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a host function: whether it is a stream, is compiled in, or is required; its number
    type."""

    name: str
    stream: bool
    compiled_in: bool
    required: bool
    number: Any


def jit_parameters(function: Any) -> list[Parameter]:
    """The parameters of a `@cute.jit` function."""
    from cutlass.base_dsl.typing import Constexpr, NumericMeta

    inner = _jit_source(function)
    try:
        signature = inspect.signature(inner, eval_str=True)
    except NameError:  # an annotation that only a type checker can resolve
        signature = inspect.signature(inner)
    found = []
    of_object = not hasattr(function, "_decorator_kind")
    for name, parameter in list(signature.parameters.items())[of_object:]:
        annotation = parameter.annotation
        origin = getattr(annotation, "__origin__", annotation)
        found.append(
            Parameter(
                name,
                stream=_is_stream(parameter),
                compiled_in=origin is Constexpr,
                required=parameter.default is parameter.empty,
                number=annotation if isinstance(annotation, NumericMeta) else None,
            )
        )
    return found


def compile_from_examples(
    function: Any,
    parameters: Sequence[Parameter],
    bound: Mapping[str, Any],
    dynamic: Mapping[int, tuple[bool, ...]],
    arch: str | None,
) -> Any:
    """Compile for the values in `bound`. Raises CompileRefusedError if the DSL refuses the kernel."""
    from cutlass.cute.runtime import make_fake_stream

    examples: dict[str, Any] = {}
    for parameter in parameters:
        value = bound.get(parameter.name)
        if parameter.stream:
            examples[parameter.name] = make_fake_stream()
        elif isinstance(value, Tensor):
            examples[parameter.name] = _fake_tensor(value, dynamic.get(id(value), ()))
        elif parameter.name in bound:
            is_number = parameter.number is not None and isinstance(value, int | float)
            examples[parameter.name] = parameter.number(value) if is_number else value
    try:
        return compile_kept(function, arch=arch, **examples)
    except Exception as error:  # tracing runs the kernel's own Python, which may raise anything
        where = _raised_at(error, _jit_source(function))
        name, said = jit_name(function), _first_line(error)
        raise CompileRefusedError(f"{name} does not compile: {said}{where}") from error


def _fake_tensor(tensor: Tensor, dynamic: tuple[bool, ...]) -> Any:
    """A tensor that has only a type. A stride that spans an open extent is open too."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    dtype = _numeric_types().get(tensor.dtype)
    if dtype is None:
        raise LaunchError(f"CuTe DSL has no element type for {tensor.dtype}")
    open_ = dynamic or (False,) * tensor.dim()
    shape = tuple(
        cute.sym_int() if is_open else extent for extent, is_open in zip(tensor.shape, open_, strict=True)
    )
    unit = max(1, ALIGN // tensor.element_size())
    strides = tuple(
        cute.sym_int64(divisibility=unit if stride % unit == 0 else 1) if spans else stride
        for stride, spans in zip(tensor.stride(), _spans_open(tensor, open_), strict=True)
    )
    align = ALIGN if address_of(tensor) % ALIGN == 0 else tensor.element_size()
    return make_fake_tensor(dtype, shape, strides, assumed_align=align)


def _spans_open(tensor: Tensor, open_: Sequence[bool]) -> list[bool]:
    """For each dimension, whether a dimension of smaller stride has an open extent."""
    order = sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim))
    spans, met = [False] * tensor.dim(), False
    for dim in order:
        spans[dim] = met
        met = met or open_[dim]
    return spans


def _numeric_types() -> dict[torch.dtype, Any]:
    import cutlass

    return {
        torch.float64: cutlass.Float64,
        torch.float32: cutlass.Float32,
        torch.float16: cutlass.Float16,
        torch.bfloat16: cutlass.BFloat16,
        torch.float8_e4m3fn: cutlass.Float8E4M3FN,
        torch.float8_e5m2: cutlass.Float8E5M2,
        torch.float8_e8m0fnu: cutlass.Float8E8M0FNU,
        torch.int64: cutlass.Int64,
        torch.int32: cutlass.Int32,
        torch.int16: cutlass.Int16,
        torch.int8: cutlass.Int8,
        torch.uint64: cutlass.Uint64,
        torch.uint32: cutlass.Uint32,
        torch.uint16: cutlass.Uint16,
        torch.uint8: cutlass.Uint8,
        torch.bool: cutlass.Boolean,
    }


def is_compiled(value: object) -> bool:
    """Whether `value` is what `cute.compile` returns."""
    return hasattr(value, "artifacts") and hasattr(value, "execution_args")


def is_tvm_ffi(compiled: Any) -> bool:
    """Whether it was compiled with --enable-tvm-ffi."""
    return any(kind.__name__ == "TVMFFIJitCompiledFunctionBase" for kind in type(compiled).__mro__)


def has_kernels(compiled: Any) -> bool:
    """Whether it launches anything: a `@cute.jit` function may have host code alone."""
    return bool(compiled.has_gpu_module)


def export(compiled: Any) -> Exported:
    """PTX, IR and host object of what `cute.compile` returned. Raises ExportError, which names what is
    missing."""
    if not is_compiled(compiled):
        raise ExportError(f"{type(compiled).__name__} is not what cute.compile returns")
    name = str(getattr(compiled, "function_name", "kernel"))
    ptx = _text(compiled.artifacts and compiled.artifacts.PTX) if has_kernels(compiled) else ""
    if ptx is None and getattr(compiled, "load_from_binary", False):
        raise ExportError(
            f"{name} is loaded from an object file, which has machine code and no PTX: {HOW_TO_KEEP}"
        )
    if ptx is None:
        raise ExportError(f"{name} was compiled without its PTX kept: {HOW_TO_KEEP}")
    tvm_ffi = is_tvm_ffi(compiled)
    try:
        with _streams_without_defaults(compiled):
            data = _tvm_ffi_object(compiled) if tvm_ffi else compiled.dump_to_object(PREFIX)
    except Exception as error:  # whatever a compiler may raise
        raise ExportError(f"{name} cannot be exported: {_first_line(error)}") from error
    return Exported(name, ptx, _text(compiled.artifacts and compiled.artifacts.MLIR), data, tvm_ffi)


@contextmanager
def _streams_without_defaults(compiled: Any) -> Iterator[None]:
    """Inside this block no parameter has a stream as its default: the DSL copies the defaults of what it
    exports, and a stream cannot be copied."""
    execution = compiled.execution_args
    signature = execution.signature
    execution.signature = signature.replace(
        parameters=[
            parameter.replace(default=None) if type(parameter.default).__name__ == "CUstream" else parameter
            for parameter in signature.parameters.values()
        ]
    )
    try:
        yield
    finally:
        execution.signature = signature


def _text(artifact: object) -> str | None:
    """An artifact's text. If the file did not exist, the DSL leaves its path, which has no line end; 4.5 ends
    PTX with a NUL."""
    return artifact.rstrip("\0") if isinstance(artifact, str) and "\n" in artifact else None


def _tvm_ffi_object(compiled: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gdnbench-sim-") as folder:
        path = Path(folder) / "host.o"
        compiled.export_to_c(object_file_path=str(path), function_name=PREFIX)
        return path.read_bytes()


def parameter_names(compiled: Any) -> list[str]:
    """Names of the run-time parameters, including the stream."""
    return list(compiled.execution_args.signature.parameters)


def stream_names(compiled: Any) -> list[str]:
    """Which of the parameters are CUDA streams."""
    return [
        name
        for name, parameter in compiled.execution_args.signature.parameters.items()
        if _is_stream(parameter)
    ]


def _is_stream(parameter: inspect.Parameter) -> bool:
    """Whether the annotation is a stream, or, without annotation, the name says so."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return parameter.name == "stream"
    return "CUstream" in str(getattr(annotation, "__name__", annotation))


def name_arguments(compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name without streams. Raises LaunchError if there are too many."""
    streams = stream_names(compiled)
    names = parameter_names(compiled)
    expected = [name for name in names if name not in streams]
    if len(args) != len(names):  # else streams were given too
        names = expected
    if len(args) > len(names):
        raise LaunchError(f"{len(args)} arguments for {len(expected)}: {', '.join(expected)}")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    return {name: value for name, value in given.items() if name not in streams}


def bind(compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any], stream: Any) -> dict[str, Any]:
    """All arguments by parameter name, in the kernel's order; `stream` in place of every stream."""
    given = name_arguments(compiled, args, kwargs)
    streams = dict.fromkeys(stream_names(compiled), stream)
    try:
        rectified = compiled.execution_args.get_rectified_args((), given | streams)
    except Exception as error:
        missing = [name for name in parameter_names(compiled) if name not in (given | streams)]
        raise LaunchError(
            f"arguments missing: {', '.join(missing)}" if missing else _first_line(error)
        ) from None
    return dict(zip(parameter_names(compiled), rectified, strict=True))


class _NoPointers:
    """Stands for a type among the arguments, `Type[X]`: it decided over the code and is not passed."""

    def __c_pointers__(self) -> list[int]:
        return []


def argument_pointers(compiled: Any, arguments: Sequence[Any]) -> tuple[list[int], object]:
    """(address of each argument of the host function, the object that keeps them alive), packed by the
    DSL. A type is no argument of the host function."""
    passed = tuple(_NoPointers() if isinstance(argument, type) else argument for argument in arguments)
    try:
        pointers, keep = compiled.execution_args.generate_execution_args(passed, {})
    except Exception as error:
        raise LaunchError(f"an argument does not fit: {_first_line(error)}") from error
    addresses = [pointer if isinstance(pointer, int) else _address(pointer) for pointer in pointers]
    return addresses, (pointers, keep, arguments)


def _address(pointer: Any) -> int:
    value = ctypes.cast(pointer, ctypes.c_void_p).value
    if value is None:
        raise LaunchError("an argument packs to a null pointer")
    return value


def _first_line(error: BaseException) -> str:
    """One line of an error: the DSL's messages have colours, frames and a heading."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")
    return f"{type(error).__name__}: {said.removeprefix('error: ')}".rstrip(": ")


def _raised_at(error: BaseException, function: Any) -> str:
    """The last line of the function's own file in the traceback, in brackets."""
    file = inspect.getsourcefile(function)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({file}:{frames[-1].lineno})" if frames else ""


def host_parameter_count(compiled: Any) -> int:
    """Number of values that the exported host function takes, from its lowered type."""
    name = f"_mlir_ciface_{compiled.function_name}"
    for operation in compiled.ir_module.body.operations:
        attributes = operation.attributes
        if "sym_name" in attributes and attributes["sym_name"].value == name:
            return count_inputs(str(attributes["function_type"].value))
    raise ExportError(f"{compiled.function_name} has no C interface")


def count_inputs(function_type: str) -> int:
    """The number of parameters of a function type as MLIR prints it: `!llvm.func<i32 (ptr, i32)>` has 2.
    Raises ExportError for any other text."""
    if _LLVM_FUNCTION.fullmatch(function_type) is None:
        raise ExportError(
            f"{_installed()} gives a host function the type {function_type[:60]!r}{WRITTEN_AGAINST}"
        )
    depth, commas, inside = 0, 0, function_type.removesuffix(")>")
    for at in range(len(inside) - 1, -1, -1):  # from the end: the return type may have brackets too
        char = inside[at]
        depth += (char in ")]}>") - (char in "([{<")
        if depth < 0:
            return commas + 1 if inside[at + 1 :].strip() else 0
        commas += depth == 0 and char == ","
    return 0
