"""Everything private of CuTe DSL that the simulator touches; written against nvidia-cutlass-dsl 4.8.1.

CuTeDSL._get_dsl().envar        the settings that CUTE_DSL_* variables give, read once at import
compiled.artifacts              PTX and IR as kept at compilation
compiled.function_name, .ir_module, .dump_to_object, .execution_args
tvm-ffi form: export_to_c(object_file_path=, function_name=)
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.sim.errors import ExportError, LaunchError

PREFIX = "gdnbench_sim"
DEFAULT_ARCH = "sm_100a"
KEEP = "CUTE_DSL_KEEP=ptx,ir-debug"
HOW_TO_KEEP = f"compile it with gdnbench.sim.compile, inside gdnbench.sim.keep_ptx(), or with {KEEP} set"
SETTINGS = ("keep_ptx", "keep_ir", "lineinfo", "dump_dir", "_arch")


@dataclass(frozen=True, slots=True)
class Exported:
    """A compiled kernel in a form that can be loaded without CUDA. `ir` is None if it was not kept."""

    function: str
    ptx: str
    ir: str | None
    data: bytes  # the host object
    tvm_ffi: bool


@contextmanager
def keep_ptx(arch: str | None = None) -> Iterator[None]:
    """While kernels are compiled that are to be simulated: keeps PTX, source lines and argument types.

    `arch` is sm_100a or sm_90a; None for what CUTE_DSL_ARCH says, sm_100a if it says nothing.
    """
    settings = _settings()
    before = {name: getattr(settings, name) for name in SETTINGS}
    with tempfile.TemporaryDirectory(prefix="gdnbench-sim-") as folder:
        settings.keep_ptx = settings.keep_ir = settings.lineinfo = True
        settings.dump_dir = folder  # the artifacts are read back as soon as they are written
        if arch is not None or before["_arch"] is None:
            settings.arch = arch or DEFAULT_ARCH
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(settings, name, value)


def compile_kept(function: Any, *args: Any, arch: str | None, **options: Any) -> Any:
    """`cute.compile(function, *args, **options)` inside `keep_ptx(arch)`."""
    import cutlass.cute as cute

    with keep_ptx(arch):
        return cute.compile(function, *args, **options)


@contextmanager
def calls_go_to(handler: Callable[..., object]) -> Iterator[None]:
    """While a call of what `cute.compile` returned is a call of `handler(compiled, *args, **kwargs)`."""
    kinds = [kind for kind in _compiled_kinds() if "__call__" in vars(kind)]
    before = [vars(kind)["__call__"] for kind in kinds]

    def call(compiled: Any, *args: Any, **kwargs: Any) -> None:
        handler(compiled, *args, **kwargs)

    for kind in kinds:
        kind.__call__ = call
    try:
        yield
    finally:
        for kind, original in zip(kinds, before, strict=True):
            kind.__call__ = original


def _compiled_kinds() -> list[Any]:
    """The class of compiled functions and all that derive from it."""
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    with suppress(ImportError):  # without tvm-ffi its kinds do not exist
        import cutlass.cutlass_dsl.tvm_ffi_provider  # noqa: F401
    kinds: list[Any] = [CudaDialectJitCompiledFunction]
    for kind in kinds:
        kinds += [derived for derived in kind.__subclasses__() if derived not in kinds]
    return kinds


def _settings() -> Any:
    try:
        from cutlass.cutlass_dsl import CuTeDSL
    except ImportError as error:
        raise ExportError(f"CuTe DSL is not installed ({error}): pip install nvidia-cutlass-dsl") from None
    return CuTeDSL._get_dsl().envar


def is_compiled(value: object) -> bool:
    """Whether `value` is what `cute.compile` returns."""
    return hasattr(value, "artifacts") and hasattr(value, "execution_args")


def is_tvm_ffi(compiled: Any) -> bool:
    """Whether it was compiled with --enable-tvm-ffi."""
    return any(kind.__name__ == "TVMFFIJitCompiledFunctionBase" for kind in type(compiled).__mro__)


def export(compiled: Any) -> Exported:
    """PTX, IR and host object of what `cute.compile` returned; ExportError says what is missing."""
    if not is_compiled(compiled):
        raise ExportError(f"{type(compiled).__name__} is not what cute.compile returns")
    name = str(getattr(compiled, "function_name", "kernel"))
    ptx = _text(compiled.artifacts and compiled.artifacts.PTX)
    if ptx is None:
        raise ExportError(f"{name} was compiled without its PTX kept: {HOW_TO_KEEP}")
    tvm_ffi = is_tvm_ffi(compiled)
    try:
        data = _tvm_ffi_object(compiled) if tvm_ffi else compiled.dump_to_object(PREFIX)
    except Exception as error:  # whatever a compiler may raise
        raise ExportError(f"{name} cannot be exported: {_first_line(error)}") from error
    return Exported(name, ptx, _text(compiled.artifacts.MLIR), data, tvm_ffi)


def _text(artifact: object) -> str | None:
    """An artifact's text; it is still a path, without a line end, where the file was not there."""
    return artifact if isinstance(artifact, str) and "\n" in artifact else None


def _tvm_ffi_object(compiled: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gdnbench-sim-") as folder:
        path = Path(folder) / "host.o"
        compiled.export_to_c(object_file_path=str(path), function_name=PREFIX)
        return path.read_bytes()


def parameter_names(compiled: Any) -> list[str]:
    """Names of the run-time parameters, the stream among them."""
    return list(compiled.execution_args.signature.parameters)


def stream_names(compiled: Any) -> list[str]:
    """Which of the parameters are CUDA streams: those annotated so, and one without annotation of that
    name."""
    found = []
    for name, parameter in compiled.execution_args.signature.parameters.items():
        annotation = parameter.annotation
        if annotation is parameter.empty:
            is_stream = name == "stream"
        else:
            is_stream = "CUstream" in str(getattr(annotation, "__name__", annotation))
        if is_stream:
            found.append(name)
    return found


def bind(compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any], stream: Any) -> dict[str, Any]:
    """Arguments by parameter name, in the kernel's order; streams, given or not, are replaced by `stream`."""
    streams = stream_names(compiled)
    names = parameter_names(compiled)
    positional = [name for name in names if name not in streams]
    if len(args) == len(names):
        positional = names
    if len(args) > len(positional):
        raise LaunchError(f"{len(args)} arguments for {len(positional)}: {', '.join(positional)}")
    given = dict(zip(positional, args, strict=False)) | dict(kwargs)
    given |= dict.fromkeys(streams, stream)
    try:
        rectified = compiled.execution_args.get_rectified_args((), given)
    except Exception as error:
        missing = [name for name in positional if name not in given]
        raise LaunchError(
            f"arguments missing: {', '.join(missing)}" if missing else _first_line(error)
        ) from None
    return dict(zip(names, rectified, strict=True))


def argument_pointers(compiled: Any, arguments: Sequence[Any]) -> tuple[list[int], object]:
    """(address of each argument of the host function, what keeps them alive), packed by the DSL itself."""
    try:
        pointers, keep = compiled.execution_args.generate_execution_args(tuple(arguments), {})
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
    """The message without the DSL's colours and frames."""
    import re

    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def host_parameter_count(compiled: Any) -> int:
    """Number of values that the exported host function takes, from its lowered type."""
    name = f"_mlir_ciface_{compiled.function_name}"
    for operation in compiled.ir_module.body.operations:
        attributes = operation.attributes
        if "sym_name" in attributes and attributes["sym_name"].value == name:
            return int(attributes["function_type"].value.num_inputs)
    raise ExportError(f"{compiled.function_name} has no C interface")
