"""Limits of kda_prefill's stages, for cases in which the ratio to torch's error says too little."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Call, Limit
from gdnbench_kernels.delta_prefill_rules import gate_sum_limit, rounded_gates
from gdnbench_kernels.delta_prefill_sums import sum_leeway
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.kda_prefill.chunked import inputs_of
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.kda_prefill.sizes import CHUNK
from gdnbench_kernels.params import from_call


def stage_limit(call: Call, stage: str) -> Limit | None:
    """The limit of g_cu; None for other stages."""
    return gate_sum_limit(int(call.scalars.get("chunk_size") or CHUNK)) if stage == "g_cu" else None


def with_rounded_sums(call: Call) -> Call:
    """The call with fp64 log-space gates whose sums in each chunk are the exact sums rounded to float32."""
    gates = gates_of_call(call).log_decay(call.tensors["g"], torch.float64)
    plan = plan_chunks(call.tensors["cu_seqlens"], int(call.scalars.get("chunk_size") or CHUNK))
    tensors = {name: tensor for name, tensor in call.tensors.items() if name not in ("A_log", "dt_bias")}
    scalars = {name: value for name, value in call.scalars.items() if name != "lower_bound"}
    return Call({**tensors, "g": rounded_gates(gates, plan)}, scalars, {**call.conventions, "gate": "log"})


def stage_leeway(call: Call, stage: str, exact: Mapping[str, Tensor]) -> Tensor | None:
    """What the order of sums may cost a stage; see `delta_prefill_sums`."""
    given = {**call.tensors, **call.scalars, **call.conventions}
    return sum_leeway(inputs_of(from_call(KdaPrefillParams, given)), stage, exact)
