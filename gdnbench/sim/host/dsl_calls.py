# SPDX-License-Identifier: Apache-2.0
"""Sends every way to call a CuTe DSL function to a handler instead of the driver.

    compiled(x)                                              what `cute.compile` returned
    function(x)                                              a `@cute.jit` function, compiled for the call
    compiled.to(device)(x)                                   an executor
    compiled.run_compiled_program(compiled.generate_execution_args(x)[0])      and the same of an executor

The private interfaces: `BaseDSL.generate_mlir` compiles a called function and ends with
`run_compiled_program`; `jit_cache` is the DSL's cache in memory, which calls use unless PTX is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from gdnbench.sim.errors import ExportError, LaunchError
from gdnbench.sim.host import cute_tensors
from gdnbench.sim.host.kernel_caches import how_to_compile
from gdnbench.sim.host.patching import patched

Handler = Callable[..., object]


@dataclass(frozen=True, slots=True)
class _Called:
    """The arguments of a `@cute.jit` function that is being compiled for this call, as the program gave
    them."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


_called: ContextVar[_Called | None] = ContextVar("gdnbench_sim_called", default=None)


class PackedArguments(list[Any]):
    """The result of `generate_execution_args`, which is a list of addresses, with what it was made of."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}


@contextmanager
def calls_go_to(handler: Handler) -> Iterator[None]:
    """Inside this block a call of a CuTe DSL function calls `handler(compiled, *args, **kwargs)`, where
    `compiled` is what `cute.compile` returns for it, and `args` leave out what is compiled in."""
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule
    from cutlass.base_dsl.jit_executor import JitCompiledFunction, JitExecutor

    def call(compiled: Any, *args: Any, **kwargs: Any) -> None:
        handler(compiled, *args, **kwargs)

    def run(compiled: Any, packed: Any) -> None:
        called = _called.get()
        if isinstance(packed, PackedArguments):
            handler(compiled, *packed.args, **packed.kwargs)
        elif called is not None:
            execution = compiled.execution_args
            handler(
                compiled, *execution.get_rectified_args_from_original_args(called.args, dict(called.kwargs))
            )
        else:
            raise LaunchError(
                "run_compiled_program takes what generate_execution_args returned inside sim.active()"
            )

    executor = _simulated_executor(JitExecutor, call, run)

    def to(compiled: Any, device: object = None) -> Any:
        return executor(compiled)

    with ExitStack() as stack:
        replaced = {"__call__": call, "run_compiled_program": run, "to": to, "generate_execution_args": _pack}
        for kind in [JitCompiledFunction, *_compiled_kinds()]:
            own = {name: value for name, value in replaced.items() if name in vars(kind)}
            stack.enter_context(patched(kind, **own))
        stack.enter_context(patched(JitExecutor, __call__=_refuse, run_compiled_program=_refuse))
        stack.enter_context(patched(ExternalBinaryModule, __getattr__=_refuse_binary))
        stack.enter_context(_calls_compile(BaseDSL))
        yield


def _simulated_executor(base: type, call: Handler, run: Handler) -> type:
    """The class of executors that `compiled.to(device)` returns inside the block. They stay simulated after
    it."""

    def __init__(executor: Any, compiled: Any) -> None:
        executor.compiled = compiled

    def __call__(executor: Any, *args: Any, **kwargs: Any) -> None:
        call(executor.compiled, *args, **kwargs)

    def generate_execution_args(executor: Any, *args: Any, **kwargs: Any) -> Any:
        return _pack(executor.compiled, *args, **kwargs)

    def run_compiled_program(executor: Any, packed: Any) -> None:
        run(executor.compiled, packed)

    members = (__init__, __call__, generate_execution_args, run_compiled_program)
    return type("SimulatedExecutor", (base,), {member.__name__: member for member in members})


def _pack(compiled: object, *args: Any, **kwargs: Any) -> tuple[PackedArguments, list[Any]]:
    """In place of `generate_execution_args`."""
    packed = PackedArguments()
    packed.args, packed.kwargs = args, kwargs
    return packed, []


def _refuse(executor: object, *_: object, **__: object) -> None:
    raise LaunchError("an executor of before sim.active() is called inside it: call compiled.to() inside")


def _refuse_binary(module: object, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ExportError(
        f"{name} is loaded from an object file, which has machine code and no PTX: {how_to_compile()}"
    )


class _HostOnlyError(Exception):
    """A function that was traced with tensors on CUDA launches nothing."""


@contextmanager
def _calls_compile(base: Any) -> Iterator[None]:
    """Inside this block a called `@cute.jit` function is compiled once; what was compiled outside of it, or
    lies in the DSL's cache on disk, has no PTX and is not used. A function that launches something is
    compiled for tensors on CUDA, as for a GPU; one with host code alone for those on the CPU, where they
    are."""
    generate, build, warn = base.generate_mlir, base.build_module, base.print_warning
    signature = inspect.signature(generate)
    outside: list[tuple[Any, Any, bool]] = []

    @functools.wraps(generate)  # a block inside this one reads its signature
    def generate_mlir(dsl: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(dsl, *args, **kwargs)
        given = bound.arguments
        compile_only = given["compile_only"] or given.get("compile_to_precompiled_mlir")
        if not compile_only:
            if all(dsl is not known for known, _, _ in outside):
                outside.append((dsl, dsl.jit_cache, dsl.envar.disable_file_caching))
                dsl.jit_cache, dsl.envar.disable_file_caching = type(dsl.jit_cache)(), True
            given["no_cache"] = False
        token = _called.set(None if compile_only else _Called(given["args"], given["kwonlyargs"]))
        options = dsl.compile_options
        try:
            with _on_cuda((*given["args"], *given["kwonlyargs"].values())):
                return generate(*bound.args, **bound.kwargs)
        except _HostOnlyError:
            dsl.compile_options = options
            return generate(*bound.args, **bound.kwargs)
        finally:
            _called.reset(token)

    def print_warning(dsl: Any, message: str) -> None:
        if not message.startswith("Cache is disabled"):  # calls are cached here although PTX is kept
            warn(dsl, message)

    def build_module(dsl: Any, *args: Any, **kwargs: Any) -> Any:
        if dsl.num_kernels == 0 and _claiming.get():
            raise _HostOnlyError
        return build(dsl, *args, **kwargs)

    try:
        replaced = (generate_mlir, build_module, print_warning)
        with patched(base, **{method.__name__: method for method in replaced}):
            yield
    finally:
        for dsl, cache, disabled in outside:
            dsl.jit_cache, dsl.envar.disable_file_caching = cache, disabled


_claiming: ContextVar[list[Any] | None] = ContextVar("gdnbench_sim_claiming", default=None)


@contextmanager
def _on_cuda(arguments: Sequence[Any]) -> Iterator[None]:
    """Inside this block the tensors of CuTe's runtime among `arguments`, and those that are made of other
    arguments, claim to be on CUDA if they are on the CPU."""
    from cutlass.cute.runtime import _Tensor

    claiming: list[Any] = []
    initialise = _Tensor.__init__

    def claim(value: Any) -> None:
        if hasattr(value, "_dlpack_data") and cute_tensors.on_cpu(value):
            cute_tensors.claim_device(value._dlpack_data, cute_tensors.CUDA)
            claiming.append(value)

    def init(value: Any, *args: Any, **kwargs: Any) -> None:
        initialise(value, *args, **kwargs)
        claim(value)

    token = _claiming.set(claiming)
    try:
        for value in _leaves(arguments):
            claim(value)
        with patched(_Tensor, __init__=init):
            yield
    finally:
        _claiming.reset(token)
        for value in claiming:
            cute_tensors.claim_device(value._dlpack_data, cute_tensors.CPU)


def _leaves(value: Any) -> Iterator[Any]:
    """The elements of nested tuples, lists, dicts and dataclasses."""
    if isinstance(value, dict):
        value = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _compiled_kinds() -> list[Any]:
    """The class of compiled functions and all its subclasses."""
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    with suppress(ImportError):  # without tvm-ffi its kinds do not exist
        import cutlass.cutlass_dsl.tvm_ffi_provider  # noqa: F401
    kinds: list[Any] = [CudaDialectJitCompiledFunction]
    for kind in kinds:
        kinds += [derived for derived in kind.__subclasses__() if derived not in kinds]
    return kinds
