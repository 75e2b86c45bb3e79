"""Validation shared by operations: names, dtypes, symbolic axes, scalars, ranges. Checks of values are
vectorised.

Every error is a `ContractError` of one line, `<operation>: <tensor>[<position>] ...`, with the value found.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, ContractError, Convention, Role, Scalar, ScalarSpec, TensorSpec

LARGEST = torch.finfo(torch.float32).max
LARGEST_INT = torch.iinfo(torch.int32).max


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype without the prefix, as in contracts and records."""
    return str(dtype).removeprefix("torch.")


def resolved_scalars(specs: Sequence[ScalarSpec], call: Call) -> dict[str, Scalar]:
    """Every scalar of the contract: the call's value, or the default."""
    return {spec.name: call.scalars.get(spec.name, spec.default) for spec in specs}


def resolved_conventions(conventions: Sequence[Convention], given: Mapping[str, str]) -> dict[str, str]:
    """Every convention of the contract: the given value, or the default."""
    return {convention.name: given.get(convention.name, convention.values[0]) for convention in conventions}


def check_conventions(op: str, conventions: Sequence[Convention], given: Mapping[str, str]) -> None:
    """Raises ContractError for a convention or value that the contract does not have."""
    known = {convention.name: convention.values for convention in conventions}
    for name, value in given.items():
        if name not in known:
            raise ContractError(
                f"{op}: convention {name!r} is not in the contract; it has {', '.join(known)}"
            )
        if value not in known[name]:
            raise ContractError(
                f"{op}: convention {name} is {value!r}; it must be {' or '.join(known[name])}"
            )


def check_scalars(op: str, specs: Sequence[ScalarSpec], call: Call) -> None:
    """Raises ContractError for a scalar that the contract does not have, or one of another type or too large
    for int32 or float32. An int is accepted as a float."""
    known = {spec.name: spec for spec in specs}
    for name, value in call.scalars.items():
        if name not in known:
            raise ContractError(f"{op}: scalar {name!r} is not in the contract; it has {', '.join(known)}")
        spec = known[name]
        if value is None and spec.default is None:
            continue
        integer = isinstance(value, int) and not isinstance(value, bool)
        right = isinstance(value, spec.kind) and not (spec.kind is int and isinstance(value, bool))
        if not (right or (spec.kind is float and integer)):
            raise ContractError(f"{op}: scalar {name} is {value!r}; it must be of type {spec.kind.__name__}")
        if spec.kind is float and isinstance(value, int | float) and not abs(value) <= LARGEST:
            # An int may be too large for a float.
            shown = "too large" if isinstance(value, int) else f"{value:.9g}"
            raise ContractError(f"{op}: scalar {name} is {shown}; it must be finite, in float32 too")
        if spec.kind is int and isinstance(value, int) and abs(value) > LARGEST_INT:
            raise ContractError(f"{op}: scalar {name} is too large; it must lie within {LARGEST_INT}")


def check_tensors(
    op: str, specs: Sequence[TensorSpec], call: Call, *, partial: bool = False
) -> dict[str, int]:
    """Check presence, dtype, rank and shape of every input and mutated tensor; returns sizes by axis symbol.
    With `partial` any of them may be missing.

    An axis is a number, a symbol, or a symbol plus a number ("N+1"). The first tensor of the table with a
    symbol sets its size; the error for a later tensor with another size names both.
    """
    inputs = {spec.name: spec for spec in specs if spec.role is not Role.OUTPUT}
    for name in call.tensors:
        if name not in inputs:
            raise ContractError(
                f"{op}: tensor {name!r} is not an input of the contract; it has {', '.join(inputs)}"
            )
    sizes: dict[str, int] = {}
    sources: dict[str, str] = {}
    for name, spec in inputs.items():
        if name not in call.tensors:
            if not spec.optional and not partial:
                raise ContractError(f"{op}: tensor {name} is missing; its axes are [{', '.join(spec.axes)}]")
            continue
        tensor: object = call.tensors[name]
        if not isinstance(tensor, Tensor):
            raise ContractError(
                f"{op}: {name} is a {type(tensor).__name__}; give a tensor of {' or '.join(spec.dtypes)}, or"
                " leave it out if it is optional"
            )
        if dtype_name(tensor.dtype) not in spec.dtypes:
            raise ContractError(
                f"{op}: {name} is {dtype_name(tensor.dtype)}; it must be {' or '.join(spec.dtypes)}"
            )
        _bind_axes(op, name, tensor, spec.axes_in(call.conventions), sizes, sources)
    return sizes


def _bind_axes(
    op: str, name: str, tensor: Tensor, axes: tuple[str, ...], sizes: dict[str, int], sources: dict[str, str]
) -> None:
    shape = list(tensor.shape)
    if len(shape) != len(axes):
        raise ContractError(
            f"{op}: {name} has shape {shape}, rank {len(shape)}; its axes are [{', '.join(axes)}]"
        )
    for axis, (text, size) in enumerate(zip(axes, shape, strict=True)):
        symbol, _, extra = text.partition("+")
        if symbol.isdigit():
            if size != int(symbol):
                raise ContractError(f"{op}: {name} has size {size} on axis {axis}; it must be {symbol}")
            continue
        bound = size - int(extra or 0)
        if bound < 0:
            raise ContractError(
                f"{op}: {name} has size {size} on axis {axis} ({text}); it must be at least {extra}"
            )
        if sizes.setdefault(symbol, bound) != bound:
            raise ContractError(
                f"{op}: {name} has {symbol} = {bound} on axis {axis};"
                f" {sources[symbol]} has {symbol} = {sizes[symbol]}"
            )
        sources.setdefault(symbol, name)


def check_one_dtype(op: str, call: Call, names: Sequence[str]) -> None:
    """Raises ContractError if these tensors have different dtypes."""
    first = call.tensors[names[0]].dtype
    for name in names[1:]:
        dtype = call.tensors[name].dtype
        if dtype != first:
            raise ContractError(
                f"{op}: {name} is {dtype_name(dtype)} and {names[0]} is {dtype_name(first)};"
                " they must be of one dtype"
            )


def first_true(mask: Tensor) -> tuple[int, ...] | None:
    """The position of the first true element in row-major order, or None."""
    if not bool(mask.any()):
        return None
    return tuple(int(index) for index in torch.nonzero(mask)[0])


def element_name(name: str, position: Sequence[int]) -> str:
    """`name[position]`, as in error messages."""
    return f"{name}[{', '.join(map(str, position))}]"


def check_range(op: str, call: Call, name: str, low: float, high: float) -> None:
    """Raises ContractError for finite values outside [low, high]. NaN and Inf are valid."""
    values = call.tensors[name]
    found = first_true(values.isfinite() & ((values < low) | (values > high)))
    if found is not None:
        value = float(values[found])
        raise ContractError(
            f"{op}: {element_name(name, found)} is {value:.9g}; it must lie in [{low:g}, {high:g}]"
        )


def check_integers(op: str, call: Call, name: str, expected: Tensor, why: str) -> None:
    """Raises ContractError if an integer tensor differs from `expected` (on the host) in the rows that it
    has."""
    values = call.tensors[name].cpu()[: len(expected)].long()
    found = first_true(values != expected)
    if found is not None:
        raise ContractError(
            f"{op}: {element_name(name, found)} is {int(values[found])}; {why} makes it"
            f" {int(expected[found])}"
        )
