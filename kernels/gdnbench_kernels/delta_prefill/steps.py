"""The steps of the chunked form of gdn_prefill and kda_prefill, each runnable alone, in any arithmetic.

    step       reads                  returns
    sum_gates                         g_cu
    form_a     g_cu                   A
    invert     A                      Ai
    form_uw    g_cu, Ai               U, W
    scan       g_cu, U, W             h, V_new, final_state
    form_p     g_cu                   P
    read_out   g_cu, h, V_new, P      o

`scan` passes the state from chunk to chunk. `cut_of` makes chunks independent: see `Cut`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gdnbench_kernels.chunks import ChunkPlan
from gdnbench_kernels.contract import Call, Cut, Step
from gdnbench_kernels.delta_prefill.chunked import (
    BY_ROW,
    ChunkedPrefill,
    PrefillInputs,
    PrefillTensors,
    final_dtype,
    final_state,
    published_stages,
    put_stage,
)
from gdnbench_kernels.gdn import in_vk
from gdnbench_kernels.rounding import Arithmetic

Params = TypeVar("Params", bound=PrefillTensors)

_TAKES_AND_GIVES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("sum_gates", (), ("g_cu",)),
    ("form_a", ("g_cu",), ("A",)),
    ("invert", ("A",), ("Ai",)),
    ("form_uw", ("g_cu", "Ai"), ("U", "W")),
    ("scan", ("g_cu", "U", "W"), ("h", "V_new", "final_state")),
    ("form_p", ("g_cu",), ("P",)),
    ("read_out", ("g_cu", "h", "V_new", "P"), ("o",)),
)


class ChunkedSteps(Generic[Params]):
    """The steps in the arithmetic that `arithmetic` returns for v's dtype. `params_of` makes the parameters
    of a call's tensors, scalars and conventions, `inputs_of` the inputs of the chunked form from them. Each
    other method is the function of a step."""

    def __init__(
        self,
        arithmetic: Callable[[torch.dtype], Arithmetic],
        params_of: Callable[[Mapping[str, Any]], Params],
        inputs_of: Callable[[Params], PrefillInputs],
    ) -> None:
        self._arithmetic = arithmetic
        self._params_of = params_of
        self._inputs_of = inputs_of

    def sum_gates(self, **call: Any) -> dict[str, Tensor]:
        run = self._begin(call)
        run.sum_gates()
        return published_stages(run, ("g_cu",))

    def form_a(self, **call: Any) -> dict[str, Tensor]:
        run = self._begin(call)
        run.form_a()
        return published_stages(run, ("A",))

    def invert(self, **call: Any) -> dict[str, Tensor]:
        run = self._begin(call)
        run.invert()
        return published_stages(run, ("Ai",))

    def form_uw(self, **call: Any) -> dict[str, Tensor]:
        run = self._begin(call)
        run.form_uw()
        return published_stages(run, ("U", "W"))

    def scan(self, **call: Any) -> dict[str, Tensor]:
        params, run = self._params_of(call), self._begin(call)
        run.scan()
        found = published_stages(run, ("h", "V_new"))
        if params.output_final_state:
            found["final_state"] = final_state(run, params)
        return found

    def form_p(self, **call: Any) -> dict[str, Tensor]:
        run = self._begin(call)
        run.form_p()
        return published_stages(run, ("P",))

    def read_out(self, **call: Any) -> dict[str, Tensor]:
        return {"o": self._begin(call).read_out()}

    def _begin(self, call: Mapping[str, Any]) -> ChunkedPrefill:
        """A run whose given stages are already computed."""
        inputs = self._inputs_of(self._params_of(call))
        run = ChunkedPrefill(inputs, self._arithmetic(inputs.v.dtype))
        for name, stage in call.get("stages", {}).items():
            put_stage(run, name, stage)
        return run


def steps_of(target: str) -> tuple[Step, ...]:
    """The steps of the `ChunkedSteps` called `target`, "package.module:object"."""
    return tuple(Step(step, takes, gives, f"{target}.{step}") for step, takes, gives in _TAKES_AND_GIVES)


def cut_of(plan_of: Callable[[Call], ChunkPlan]) -> Cut:
    """The cut of calls whose chunks `plan_of` returns."""

    def chunks_apart(call: Call, stages: Mapping[str, Tensor]) -> Call:
        """The call in which each chunk is a sequence whose initial state is the state before it, in fp32."""
        tensors = {
            name: tensor
            for name, tensor in call.tensors.items()
            if name not in ("chunk_indices", "chunk_offsets", "o", "final_state")
        }
        cu_seqlens, h = call.tensors["cu_seqlens"], stages["h"]
        plan = plan_of(call)
        bounds = torch.cat([plan.start, plan.start.new_tensor([plan.tokens])])
        tensors["cu_seqlens"] = bounds.to(cu_seqlens.device, cu_seqlens.dtype)
        states = in_vk(h[: plan.total].float(), call.conventions.get("state_layout", "VK"))
        tensors["initial_state"] = states.to(call.tensors["v"].device).contiguous()
        scalars = {**call.scalars, "output_final_state": True, "final_state_dtype": "float32"}
        return Call(tensors, scalars, call.conventions)

    def cut_rows(call: Call, name: str, stage: Tensor) -> Tensor:
        """Stage `name` with as many rows as `call` needs; NaN past the last chunk."""
        plan = plan_of(call)
        if name == "g_cu":
            return stage
        each = plan.chunk_size if name in BY_ROW else 1
        there = plan.total * each
        found = stage.new_full((plan.bound * each, *stage.shape[1:]), torch.nan)
        found[:there] = stage[:there]
        return found

    def chunks_joined(call: Call, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """h, V_new and final_state of the call, from those of its chunks."""
        found = {name: cut_rows(call, name, made[name]) for name in ("h", "V_new") if name in made}
        if "final_state" in made and call.scalars.get("output_final_state", True):
            plan, states = plan_of(call), made["final_state"]
            first = call.tensors.get("initial_state")
            shape = (len(plan.offsets) - 1, *states.shape[1:])
            last = states.new_zeros(shape) if first is None else first.to(states.dtype, copy=True)
            there = plan.offsets.diff() > 0
            last[there.to(last.device)] = states[(plan.offsets[1:] - 1)[there].to(states.device)]
            asked = call.scalars.get("final_state_dtype")
            found["final_state"] = last.to(final_dtype(first, None if asked is None else str(asked)))
        return found

    return Cut(("h", "V_new", "final_state"), ("h",), chunks_apart, cut_rows, chunks_joined)
