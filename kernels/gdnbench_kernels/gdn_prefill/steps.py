"""The steps of the chunked form, each runnable alone, in torch's arithmetic and in the oracle's.

    step       reads                  returns
    sum_gates                         g_cu
    form_a     g_cu                   A
    invert     A                      Ai
    form_uw    g_cu, Ai               U, W
    scan       g_cu, U, W             h, V_new, final_state
    form_p     g_cu                   P
    read_out   g_cu, h, V_new, P      o

`scan` passes the state from chunk to chunk. `chunks_apart` makes chunks independent: see `Cut`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.contract import Call, Cut, Step
from gdnbench_kernels.gdn import in_vk
from gdnbench_kernels.gdn_prefill.chunked import ChunkedPrefill, PrefillInputs, published_stages, put_stage
from gdnbench_kernels.gdn_prefill.chunks import ChunkPlan, plan_chunks
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.torch_chunked import final_dtype
from gdnbench_kernels.params import from_call
from gdnbench_kernels.rounding import EXACT, Arithmetic, tensor_core_arithmetic

_TAKES_AND_GIVES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("sum_gates", (), ("g_cu",)),
    ("form_a", ("g_cu",), ("A",)),
    ("invert", ("A",), ("Ai",)),
    ("form_uw", ("g_cu", "Ai"), ("U", "W")),
    ("scan", ("g_cu", "U", "W"), ("h", "V_new", "final_state")),
    ("form_p", ("g_cu",), ("P",)),
    ("read_out", ("g_cu", "h", "V_new", "P"), ("o",)),
)


class ChunkedSteps:
    """The steps in the arithmetic that `arithmetic` returns for v's dtype. Each method is the function of a
    step."""

    def __init__(self, arithmetic: Callable[[torch.dtype], Arithmetic]) -> None:
        self._arithmetic = arithmetic

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
        run = self._begin(call)
        run.scan()
        found = published_stages(run, ("h", "V_new"))
        if call.get("output_final_state", True):
            found["final_state"] = self._final(run, call)
        return found

    def form_p(self, **call: Any) -> dict[str, Tensor]:
        run = self._begin(call)
        run.form_p()
        return published_stages(run, ("P",))

    def read_out(self, **call: Any) -> dict[str, Tensor]:
        return {"o": self._begin(call).read_out()}

    def _begin(self, call: Mapping[str, Any]) -> ChunkedPrefill:
        """A run whose given stages are already computed."""
        inputs = PrefillInputs.from_params(from_call(PrefillParams, call))
        run = ChunkedPrefill(inputs, self._arithmetic(inputs.v.dtype))
        for name, stage in call.get("stages", {}).items():
            put_stage(run, name, stage)
        return run

    def _final(self, run: ChunkedPrefill, call: Mapping[str, Any]) -> Tensor:
        state = in_vk(run.state, call.get("state_layout", "VK")).contiguous()
        if run.arithmetic is EXACT:
            return state
        return state.to(final_dtype(call.get("initial_state"), call.get("final_state_dtype")))


torch_steps = ChunkedSteps(tensor_core_arithmetic)
exact_steps = ChunkedSteps(lambda dtype: EXACT)


def steps_of(name: str) -> tuple[Step, ...]:
    """The steps of `torch_steps` or `exact_steps`."""
    return tuple(
        Step(step, takes, gives, f"{__name__}:{name}.{step}") for step, takes, gives in _TAKES_AND_GIVES
    )


TORCH_STEPS, EXACT_STEPS = steps_of("torch_steps"), steps_of("exact_steps")

_SM100 = "gdnbench_kernels.gdn_prefill.sm100_steps"
SM100_STEPS = (
    Step("form_a", (), ("g_cu", "A"), f"{_SM100}:form_a"),
    Step("invert", ("A",), ("Ai",), f"{_SM100}:invert"),
    Step("form_uw", ("Ai",), ("U", "W"), f"{_SM100}:form_uw"),
    Step("chunk_state", ("g_cu", "U", "W"), ("h", "V_new", "final_state"), f"{_SM100}:carry_state"),
    Step("chunk_output", ("g_cu", "h", "V_new"), ("o",), f"{_SM100}:read_out"),
)
"""The steps of `sm100`: builds of chunk_uw with different taps compute g_cu, A, Ai, U and W one by one."""


def chunks_apart(call: Call, stages: Mapping[str, Tensor]) -> Call:
    """The call in which each chunk is a sequence whose initial state is the state before it, in fp32."""
    tensors = {
        name: tensor
        for name, tensor in call.tensors.items()
        if name not in ("chunk_indices", "chunk_offsets", "o", "final_state")
    }
    cu_seqlens, h = call.tensors["cu_seqlens"], stages["h"]
    plan = _plan(call)
    bounds = torch.cat([plan.start, plan.start.new_tensor([plan.tokens])])
    tensors["cu_seqlens"] = bounds.to(cu_seqlens.device, cu_seqlens.dtype)
    states = in_vk(h[: plan.total].float(), call.conventions.get("state_layout", "VK"))
    tensors["initial_state"] = states.to(call.tensors["v"].device).contiguous()
    scalars = {**call.scalars, "output_final_state": True, "final_state_dtype": "float32"}
    return Call(tensors, scalars, call.conventions)


def cut_rows(call: Call, name: str, stage: Tensor) -> Tensor:
    """Stage `name` with as many rows as `call` needs; NaN past the last chunk."""
    plan = _plan(call)
    if name == "g_cu":
        return stage
    each = plan.chunk_size if name in ("U", "W", "V_new") else 1
    there = plan.total * each
    found = stage.new_full((plan.bound * each, *stage.shape[1:]), torch.nan)
    found[:there] = stage[:there]
    return found


def chunks_joined(call: Call, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """h, V_new and final_state of the call, from those of its chunks."""
    found = {name: cut_rows(call, name, made[name]) for name in ("h", "V_new") if name in made}
    if "final_state" in made and call.scalars.get("output_final_state", True):
        plan, states = _plan(call), made["final_state"]
        first = call.tensors.get("initial_state")
        shape = (len(plan.offsets) - 1, *states.shape[1:])
        last = states.new_zeros(shape) if first is None else first.to(states.dtype, copy=True)
        there = plan.offsets.diff() > 0
        last[there.to(last.device)] = states[(plan.offsets[1:] - 1)[there].to(states.device)]
        asked = call.scalars.get("final_state_dtype")
        found["final_state"] = last.to(final_dtype(first, None if asked is None else str(asked)))
    return found


def _plan(call: Call) -> ChunkPlan:
    return plan_chunks(call.tensors["cu_seqlens"], int(call.scalars.get("chunk_size") or 64))


CUT = Cut(("h", "V_new", "final_state"), ("h",), chunks_apart, cut_rows, chunks_joined)
