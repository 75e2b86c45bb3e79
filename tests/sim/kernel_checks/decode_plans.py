"""gdn_decode with plans that it does not choose for small calls, and step by step, as kernels of a user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gdn_decode.cute import cute
from gdnbench_kernels.gdn_decode.cute_steps import gates, update
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan

CONVENTIONS = OPERATION.kernels["cute"].conventions


def _dealt(plan: DecodePlan) -> Any:
    kernel: Any = partial(cute, plan=plan)
    kernel.conventions = CONVENTIONS
    return kernel


registers = _dealt(DecodePlan(rows=2, warps=8, passes=2, spread=True, pdl=True))
bulk_in = _dealt(DecodePlan(warps=2, transport="bulk_in", passes=4))
bulk = _dealt(DecodePlan(warps=2, transport="bulk", passes=4))


def by_steps(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor | None = None,
    read_indices: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    beta_max: float = 1.0,
    gate: str = "log",
    qk: str = "normalised",
    o: Tensor | None = None,
) -> dict[str, Tensor]:
    """The build that keeps its gates, then the one that is given them."""
    call = dict(locals())
    found = update(stages=gates(**call), **call)
    return {name: tensor for name, tensor in found.items() if name != "delta_t"}


by_steps.conventions = CONVENTIONS  # type: ignore[attr-defined]
