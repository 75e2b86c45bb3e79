# SPDX-License-Identifier: Apache-2.0
"""The adapter protocol: which functions of a framework are captured, and how a call maps to a contract.

An adapter is one small file in `gdnbench.capture.adapters`, or an `Adapter` object named by an entry point of
the group `gdnbench.adapters`. Every captured process loads all adapters at its first import from outside the
standard library, so an adapter imports torch and its framework only inside its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gdnbench.capture.claims import Claims
    from gdnbench.capture.kept_states import KeptStates
    from gdnbench.capture.parts import Part
    from gdnbench_kernels.contract import Scalar


class NotCaptured(Exception):
    """An adapter raises it for a call that it recognises and does not record. It is no failure.

    The summary counts these calls by message, so the message must not contain figures of the call.
    """


class OnlyPadding(NotCaptured):
    """A `Finish` raises it for a call all of whose sequences are padding: it touches no state."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function to wrap: a module-level name, or `Class.method`."""

    module: str
    function: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}"


class Seen(NamedTuple):
    """A tensor of a call, with the contract's shape and the tensor that the caller passed.

    `tensor` holds the elements. `shape` (default: the shape of `tensor`) holds the same elements in row-major
    order; storing the shape makes flattening [B, T, ...] into [B*T, ...] free even where torch would copy.
    `caller` is None where it is `tensor` itself.
    """

    tensor: Tensor
    shape: tuple[int, ...] | None = None
    caller: Tensor | None = None


Finish = Callable[["dict[str, Tensor]"], "tuple[dict[str, Tensor], dict[str, Any]]"]
"""A function of the CPU copies of the inputs, by contract name. It returns the tensors to store (it may
shrink or drop some) and additions to `dispatch`. It may raise `NotCaptured`."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a capture of digests knows of an observation whose other tensors it has let go."""

    sample: int  # of `gdnbench.digests`
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # of all inputs
    before: frozenset[str]  # states whose rows are digested before the call
    after: frozenset[str]  # and after it, if the call leaves them
    columns: Mapping[str, int] = field(default_factory=dict)
    """Of states whose rows keep several windows of so many columns: each window has its digest."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A call before it runs, by contract names and in the caller's own conventions."""

    op: str
    tensors: Mapping[str, Seen]  # inputs and mutated tensors
    scalars: Mapping[str, Scalar]
    conventions: Mapping[str, str]
    dispatch: Mapping[str, Any] = field(default_factory=dict)
    # Pools whose rows the call touches all; capture need not ask the operation for rows.
    whole_pools: frozenset[str] = frozenset()
    finish: Finish | None = None  # for tensors on a GPU, the writing thread calls it
    part: Part | None = None  # which sequences of its step the call has, for the claims of the step
    claims: Claims | None = None  # of the call's sequences; None: the step around the call may know
    reduced: Reduced | None = None  # set by capture, if only digests of it are kept
    watched: Reduced | None = None  # set by capture, if its lineage is checked
    kept_states: KeptStates | None = None  # states that the call keeps outside its pool

    def with_only(
        self,
        tensors: Mapping[str, Seen],
        claims: Claims | None,
        reduced: Reduced | None,
        kept_states: KeptStates | None,
    ) -> Observation:
        """As `dataclasses.replace`, which takes twice as long."""
        return Observation(
            self.op, tensors, self.scalars, self.conventions, self.dispatch, self.whole_pools, self.finish,
            self.part, claims, reduced, self.watched, kept_states,
        )  # fmt: skip

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The contract's shape of an input, of which a capture of digests has no tensor any more."""
        seen = self.tensors.get(name)
        if seen is None:
            assert self.reduced is not None
            return self.reduced.shapes[name][0]
        return tuple(seen.tensor.shape) if seen.shape is None else seen.shape


class Adapter(Protocol):
    """`gdnbench.capture.steps` describes what an adapter may have besides, to name a call's requests."""

    @property
    def framework(self) -> str: ...

    @property
    def targets(self) -> tuple[Target, ...]:
        """Functions whose calls are captured."""

    @property
    def scopes(self) -> tuple[Target, ...]:
        """Forward methods of layer modules. A captured call belongs to the module whose scope it runs in."""

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        """Map the call to the contract.

        `arguments` holds the passed arguments and the defaults of the others, by parameter name; `layer` is
        the module of the innermost scope. Raises `NotCaptured` to leave the call unrecorded for a known
        reason. Capture counts any other exception as a failure and does not record the call.
        """

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        """Outputs, and mutated tensors as the call left them."""

    def implementation(self, function: Callable[..., Any]) -> str | None:
        """The function that runs below the wrapped `function`, as `module.qualname`; None if unknown. Called
        once."""


def operations_of(adapter: Adapter, target: Target) -> frozenset[str] | None:
    """The operations that calls of `target` can be recorded as; None if the adapter does not declare them.

    An adapter declares them with an optional method `operations(target)`. `--op` then rejects calls without
    calling `before`.
    """
    ask = getattr(adapter, "operations", None)
    return None if ask is None else frozenset(ask(target))
