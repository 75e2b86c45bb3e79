"""Compiles a `Source` with CuTe DSL and keeps all of its artifacts. Needs no GPU.

Public interfaces: `cute.compile` with the options --gpu-arch, --keep-ptx, --keep-cubin and
--generate-line-info; `artifacts`, `export_to_c`. Private ones, written against nvidia-cutlass-dsl 4.8.1:

    CuTeDSL._get_dsl().envar    CUTE_DSL_* variables, read at import: .keep_ir, .dump_dir, .lineinfo, .arch,
                                .enable_tvm_ffi, .dryrun
    cutlass._mlir.ir            parses the kept IR for the types of the host function's parameters
    compiled.execution_args     .signature: names of the host function's parameters
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdnbench_kernels.artifacts import STREAM, Artifacts, Parameter
from gdnbench_kernels.source import Source


class CompileError(RuntimeError):
    """The compiler succeeded, but its output does not fit a `Artifacts`."""


def compile_source(source: Source, arch: str, key: str) -> Artifacts:
    """Compile for `arch`; errors of the compiler pass through."""
    import cutlass.cute as cute

    host, arguments = source.build()
    options = f"--gpu-arch={arch} --keep-ptx --keep-cubin --generate-line-info"
    with tempfile.TemporaryDirectory(prefix="gdnbench-") as folder, _settings(folder, arch):
        start = time.perf_counter()
        compiled = cute.compile(host, *arguments, options=options)
        seconds = time.perf_counter() - start
        compiled.export_to_c(folder, "program", source.symbol)
        header = Path(folder, "program.h").read_text()
        host_object = Path(folder, "program.o").read_bytes()
    function = str(compiled.function_name)
    names = list(compiled.execution_args.signature.parameters)
    types = _parameter_types(compiled.artifacts.MLIR, function)
    return Artifacts(
        name=source.name,
        arch=arch,
        key=key,
        symbol=source.symbol,
        function=function,
        parameters=_parameters(source, names, types, _bound(host, names, arguments)),
        ptx=compiled.artifacts.PTX,
        header=header,
        host_object=host_object,
        cubin=compiled.artifacts.CUBIN,
        compile_seconds=seconds,
    )


@contextmanager
def _settings(folder: str, arch: str) -> Iterator[None]:
    """Inside this block compilations write all artifacts, with the IR before any pass, to `folder`. The IR
    has no source lines, because with them it cannot be parsed. The code uses the C interface, whatever the
    environment says about dry runs and TVM FFI.

    The option --gpu-arch alone does not suffice for an architecture older than the DSL's default without a
    GPU: the DSL could not write the host object.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    settings: Any = CuTeDSL._get_dsl().envar
    names = ("keep_ir", "dump_dir", "lineinfo", "enable_tvm_ffi", "dryrun", "_arch")
    before = {name: getattr(settings, name) for name in names}
    settings.keep_ir, settings.dump_dir, settings.lineinfo, settings.arch = True, folder, False, arch
    settings.enable_tvm_ffi = settings.dryrun = False
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


def _parameter_types(text: str, function: str) -> list[str]:
    """The type of each parameter of the host function, from the module's IR."""
    from cutlass._mlir import ir

    with ir.Context():
        for operation in ir.Module.parse(text).body.operations:
            attributes = operation.attributes
            if "function_type" in attributes and attributes["sym_name"].value == function:
                return [str(kind) for kind in attributes["function_type"].value.inputs]
    raise CompileError(f"the compiler's IR has no function {function}")


def _bound(host: Any, names: list[str], arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Example arguments by parameter name, limited to `names`; the others were compile-time constants."""
    called = host if inspect.isroutine(host) or hasattr(host, "_decorator_kind") else type(host).__call__
    signature = inspect.signature(getattr(called, "__wrapped__", called))
    given = (host, *arguments) if called is not host else arguments
    bound = signature.bind(*given)
    bound.apply_defaults()
    return {name: bound.arguments[name] for name in names}


def _parameters(
    source: Source, names: list[str], types: list[str], examples: dict[str, Any]
) -> tuple[Parameter, ...]:
    """The parameters: a None example was compiled in, every other one is one value at run time."""
    passed = [name for name in names if examples[name] is not None]
    if len(passed) != len(types):
        raise CompileError(
            f"{source.name} takes {', '.join(passed)}, and the compiler made {len(types)} values of them:"
            " a program takes tensors and numbers, no containers of them"
        )
    by_name = dict(zip(passed, types, strict=True))
    if STREAM not in types:
        raise CompileError(f"{source.name} takes no stream")
    return tuple(Parameter(name, by_name.get(name)) for name in names)
