# SPDX-License-Identifier: Apache-2.0
"""gdn_decode and kda_decode with plans that they do not choose for small calls, and gdn_decode step by step,
as kernels of a user's."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gdn_decode.cute import cute
from gdnbench_kernels.gdn_decode.cute_steps import gates, update
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan
from gdnbench_kernels.kda_decode import contract as kda
from gdnbench_kernels.kda_decode.cute import cute as kda_cute
from gdnbench_kernels.kda_decode.decode_plan import with_channels

CONVENTIONS = OPERATION.kernels["cute"].conventions


def _dealt(plan: DecodePlan) -> Any:
    kernel: Any = partial(cute, plan=plan)
    kernel.conventions = CONVENTIONS
    return kernel


def _kda(plan: DecodePlan) -> Any:
    kernel: Any = partial(kda_cute, plan=with_channels(plan))
    kernel.conventions = kda.OPERATION.kernels["cute"].conventions
    return kernel


PLANS = {
    "registers": DecodePlan(rows=2, warps=8, passes=2, spread=True, pdl=True),
    "bulk_in": DecodePlan(warps=2, transport="bulk_in", passes=4),
    "bulk": DecodePlan(warps=2, transport="bulk", passes=4),
}
registers, bulk_in, bulk = map(_dealt, PLANS.values())
kda_registers, kda_bulk_in, kda_bulk = map(_kda, PLANS.values())


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
