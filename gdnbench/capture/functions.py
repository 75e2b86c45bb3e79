# SPDX-License-Identifier: Apache-2.0
"""Captures the user's own functions: the decorator `record` and its adapter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from gdnbench.capture import runtime
from gdnbench.capture.adapter import Observation, Seen, Target
from gdnbench.capture.adapters.paged import at_place, check_claim_places, check_place, claims_at
from gdnbench.capture.call_site import CallSite
from gdnbench.capture.session import count_compiled
from gdnbench.ops import operation
from gdnbench_kernels.contract import Role

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FunctionAdapter:
    """Adapter for a function that takes each tensor and scalar of the contract as one parameter.

    Outputs are buffers that it fills, or its return value: one tensor, a tuple in the contract's order, or a
    mapping by contract name. Mutated tensors are written in place.
    """

    op: str
    names: Mapping[str, str]  # contract name by parameter name, where they differ
    conventions: Mapping[str, str]
    targets: tuple[Target, ...]
    lineage: Mapping[str, str] = field(default_factory=dict)  # places of `Claims` among the parameters
    layer: str | None = None  # place of the layer's name or index
    framework: str = "function"
    scopes: tuple[Target, ...] = ()

    def layer_named(self, arguments: Mapping[str, Any]) -> str | int | None:
        """The name or index of the layer that the arguments give; None without a place for it. LookupError or
        AttributeError as for `at_place`."""
        if self.layer is None:
            return None
        found = at_place(self.layer, arguments)
        return int(found) if isinstance(found, int) else str(found)

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        contract = operation(self.op)
        given = self._by_contract_name(arguments)
        return Observation(
            op=self.op,
            tensors={
                spec.name: Seen(given[spec.name])
                for spec in contract.tensors
                if spec.role is not Role.OUTPUT and isinstance(given.get(spec.name), Tensor)
            },
            scalars={spec.name: given.get(spec.name, spec.default) for spec in contract.scalars},
            conventions=self.conventions,
            claims=claims_at(self.lineage, arguments),
        )

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        contract = operation(self.op)
        given = self._by_contract_name(arguments)
        outputs = [spec.name for spec in contract.tensors if spec.role is Role.OUTPUT]
        found = {name: given[name] for name in outputs if isinstance(given.get(name), Tensor)}
        if isinstance(result, Tensor):
            found[outputs[0]] = result
        elif isinstance(result, Mapping):
            found |= {name: result[name] for name in outputs if isinstance(result.get(name), Tensor)}
        elif isinstance(result, tuple | list):
            found |= {n: one for n, one in zip(outputs, result, strict=False) if isinstance(one, Tensor)}
        mutated = [spec.name for spec in contract.tensors if spec.role is Role.MUTATED]
        found |= {name: given[name] for name in mutated if name in seen.tensors}
        return {name: Seen(tensor) for name, tensor in found.items()}

    def operations(self, target: Target) -> tuple[str, ...]:
        return (self.op,)

    def implementation(self, function: Callable[..., Any]) -> str | None:
        return None  # the decorated function itself, which the record already names

    def _by_contract_name(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names.get(name, name): value for name, value in arguments.items()}


def record(
    op: str,
    *,
    names: Mapping[str, str] | None = None,
    conventions: Mapping[str, str] | None = None,
    lineage: Mapping[str, str] | None = None,
    layer: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record the calls of a function while a capture is running. Without a capture, the function runs
    unchanged.

    `names` maps parameter names to the contract's names where they differ; `conventions` holds those that
    differ from the operation's defaults. `lineage` names the parameters, or places in them such as
    `metadata.ids`, that say whose sequences these are: `requests`, and `positions`, `padding`, `prefixes` and
    `slots` (`gdnbench.capture.claims.Claims`). `layer` is the place of the layer's name or index, for a
    function that several layers call outside any module that capture knows: without it nobody can tell their
    states apart, and lineage does not judge them. BadInputError if the operation does not exist, or for such
    a name or place that cannot be.
    """
    contract = operation(op)
    places = dict(lineage or {})
    check_claim_places(places)
    if layer is not None:
        check_place("layer", layer)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        target = Target(function.__module__, function.__qualname__)
        adapter = FunctionAdapter(
            op,
            dict(names or {}),
            {**contract.default_conventions, **(conventions or {})},
            (target,),
            places,
            layer,
        )
        site = CallSite.from_function(adapter, target, function)

        name = target.name

        @functools.wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                count_compiled(name)
                return function(*args, **kwargs)
            capture = runtime.innermost()
            if capture is None or not capture.selects(adapter, target):
                return function(*args, **kwargs)
            result: R = capture.session.call(site, args, kwargs)
            return result

        return recorded

    return decorate
