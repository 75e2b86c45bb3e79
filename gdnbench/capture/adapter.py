"""What an adapter is: a table of a framework's functions, and how a call of one reads in a contract's terms.

An adapter is one small file. It is found among `gdnbench.capture.adapters` or behind an entry point of the
group `gdnbench.adapters` that names an `Adapter` object. It is loaded at the start of every captured Python
process, so it imports its framework, and torch, only inside its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench_kernels.contract import Scalar


class NotCaptured(Exception):
    """A call that the adapter knows and leaves alone: no failure. The message is a reason without figures of
    the call, as the summary counts calls by it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function to wrap: a name of a module, or `Class.method` in one."""

    module: str
    function: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}"


class Seen(NamedTuple):
    """A tensor of a call: its elements, the contract's shape of them, and the tensor as the caller holds it.

    `shape` holds the same elements in row-major order, so that flattening [B, T, ...] into [B*T, ...] is free
    even where torch would have to copy; None: the shape of `tensor`. `caller`: None where it is `tensor`
    itself.
    """

    tensor: Tensor
    shape: tuple[int, ...] | None = None
    caller: Tensor | None = None


Finish = Callable[["dict[str, Tensor]"], "tuple[dict[str, Tensor], dict[str, Any]]"]
"""Gets the CPU copies of the inputs by contract name; may make some smaller, leave out what is no tensor of
the operation, and add to `dispatch`. May raise `NotCaptured`."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A call before it runs, by contract names and in the caller's own conventions."""

    op: str
    tensors: Mapping[str, Seen]  # inputs and mutated tensors
    scalars: Mapping[str, Scalar]
    conventions: Mapping[str, str]
    dispatch: Mapping[str, Any] = field(default_factory=dict)
    # Pools of which the call touches every row: spares asking the operation.
    whole_pools: frozenset[str] = frozenset()
    finish: Finish | None = None  # off the hot path where the tensors are on a GPU


class Adapter(Protocol):
    @property
    def framework(self) -> str: ...

    @property
    def targets(self) -> tuple[Target, ...]:
        """Functions whose calls are captured."""

    @property
    def scopes(self) -> tuple[Target, ...]:
        """Methods of modules inside whose calls a target belongs to that module, the layer."""

    def before(self, target: Target, arguments: Mapping[str, Any], layer: object | None) -> Observation:
        """The call in the contract's terms.

        `arguments` holds what was passed, by parameter name, and defaults of the rest; `layer` is the module
        of the innermost scope. `NotCaptured` leaves this call uncaptured for its reason; anything else raised
        does too, and is counted as a failure.
        """

    def after(self, seen: Observation, arguments: Mapping[str, Any], result: Any) -> Mapping[str, Seen]:
        """Outputs, and mutated tensors as the call left them."""

    def implementation(self, function: Callable[..., Any]) -> str | None:
        """What runs below the wrapped `function`, as `module.qualname`, if that can be told; asked once."""


def operations_of(adapter: Adapter, target: Target) -> frozenset[str] | None:
    """Operations that calls of `target` can be recorded as; None where the adapter does not say, for which it
    may have a method `operations(target)`. With it, `--op` spares it calls that are not kept."""
    ask = getattr(adapter, "operations", None)
    return None if ask is None else frozenset(ask(target))
