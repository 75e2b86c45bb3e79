"""Kernels that receive a call as one object, and are called with its tensors and scalars by name.

`<operation>/params.py` has a dataclass with a field for each argument of a call. A kernel is written as a
function of it; `takes_params` gives the function the interface of `contract.Kernel`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, getdoc, signature
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Params = TypeVar("Params")
Result = TypeVar("Result")
Fields = TypeVar("Fields", bound="DataclassInstance")


def takes_params(
    params: type[Params], *, without: tuple[str, ...] = (), required: tuple[str, ...] = ()
) -> Callable[[Callable[Concatenate[Params, ...], Result]], Callable[..., Result]]:
    """Decorates `function(params, *, others)`, which is then called with the fields of `params` and with the
    others, all by name; its signature lists them, and its docstring names `params`.

    `without`: fields that are no arguments of this function and keep their defaults. `required`: fields whose
    default this function does not accept. The function raises TypeError for an argument that is missing or
    that it does not have.
    """
    taken = [
        field.replace(default=Parameter.empty) if field.name in required else field
        for field in signature(params).parameters.values()
        if field.name not in without
    ]
    needed = {field.name for field in taken if field.default is Parameter.empty}

    def decorate(function: Callable[Concatenate[Params, ...], Result]) -> Callable[..., Result]:
        own = signature(function)
        others = list(own.parameters.values())[1:]
        known = Signature([*taken, *others], return_annotation=own.return_annotation)

        @wraps(function)
        def kernel(**arguments: Any) -> Result:
            if not needed <= arguments.keys() <= known.parameters.keys():
                try:
                    known.bind(**arguments)
                except TypeError as error:
                    raise TypeError(f"{function.__name__}() {error}") from None
            given = {one.name: arguments.pop(one.name) for one in others if one.name in arguments}
            return function(params(**arguments), **given)

        kernel.__signature__ = known  # type: ignore[attr-defined]
        kernel.__doc__ = (
            f"{getdoc(function)}\n\n`{params.__module__}.{params.__name__}` describes the other arguments."
        )
        return kernel

    return decorate


def by_name(params: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass of parameters by name, not copied."""
    return {field.name: getattr(params, field.name) for field in fields(params)}


def from_call(params: type[Fields], call: Mapping[str, Any]) -> Fields:
    """The fields of `params` from a call that may have more names; None means the default. Raises TypeError
    for a missing one."""
    given = {field.name: call.get(field.name) for field in fields(params)}
    return params(**{name: value for name, value in given.items() if value is not None})
