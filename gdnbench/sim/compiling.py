# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels so that the simulator can run them: keeps PTX, source lines and argument types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host import cutlass_dsl


@contextmanager
def keep_ptx(arch: str | None = None) -> Iterator[None]:
    """Inside this block every CuTe DSL compilation keeps what the simulator needs; no environment variable is
    needed.

    `arch` is sm_100a, sm_103a or sm_90a; None takes CUTE_DSL_ARCH, or sm_100a if that is not set.
    """
    with cutlass_dsl.keep_ptx(arch):
        yield


def compile(function: Any, *args: Any, arch: str | None = None, **kwargs: Any) -> Any:
    """`cute.compile(function, *args, **kwargs)`, within `keep_ptx(arch)`."""
    return cutlass_dsl.compile_kept(function, *args, arch=arch, **kwargs)


@dataclass(frozen=True, slots=True)
class Call:
    """A compiled kernel and the arguments to call it with, by parameter name."""

    compiled: Any
    arguments: Mapping[str, Any]


def compile_for(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[int, tuple[bool, ...]],
    arch: str | None = None,
) -> Call:
    """Compile a `@cute.jit` function for these arguments, which leave out the stream.

    The compiler fixes extents and strides of tensors, except the extents that `dynamic` marks under the `id`
    of their tensor and the strides that depend on them. Raises LaunchError if the arguments do not fit the
    function's parameters.
    """
    parameters = cutlass_dsl.jit_parameters(function)
    names = [parameter.name for parameter in parameters if not parameter.stream]
    bound = dict(zip(names, args, strict=False)) | dict(kwargs)
    required = {parameter.name for parameter in parameters if parameter.required and not parameter.stream}
    if len(args) > len(names) or set(bound) - set(names) or required - set(bound):
        given = _given(args, kwargs)
        raise LaunchError(f"{cutlass_dsl.jit_name(function)} takes {', '.join(names)}; given were {given}")
    compiled = cutlass_dsl.compile_from_examples(function, parameters, bound, dynamic, arch)
    passed = {
        parameter.name: bound[parameter.name]
        for parameter in parameters
        if parameter.name in bound and not parameter.compiled_in
    }
    return Call(compiled, passed)


def call_of(returned: object, name: str) -> Call | None:
    """Convert what a function returned, (compiled, args) or (compiled, args, kwargs), to a `Call`; None stays
    None. Raises LaunchError for any other value. `name` is the function's name for the message."""
    if returned is None:
        return None
    parts = returned if isinstance(returned, tuple) else (returned,)
    if not 2 <= len(parts) <= 3 or not cutlass_dsl.is_compiled(parts[0]):
        raise LaunchError(f"{name} returned {type(returned).__name__}, not (compiled, args)")
    compiled, args, kwargs = (*parts, {})[:3]
    return Call(compiled, cutlass_dsl.name_arguments(compiled, args, kwargs))


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    kinds = ["a tensor" if isinstance(value, Tensor) else repr(value) for value in args]
    return ", ".join([*kinds, *(f"{name}=" for name in kwargs)]) or "none"
