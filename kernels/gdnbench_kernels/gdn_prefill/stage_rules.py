"""Limits of gdn_prefill's stages, for cases in which the ratio to torch's error says too little.

The inverse. Similar keys make (I + A)^-1 ill-conditioned: a method that is correct on random keys can err by
orders of magnitude, and torch's own stages, which store A in bf16, have errors of 1e-2. So A, Ai and U have
their own limits. A kernel meets them if it stores A in fp16 or better, loses no more than that by the
inversion, and rounds nothing else before U. Up to beta 1, identical keys with beta 1 are the hardest case.

    stage  limit for every chunk and head                       where it comes from
    A      3e-3 (beta up to 2: 2e-2), plus C 2^-25 in fp16      as for Ai; half of fp16's subnormal step each
    Ai     3e-3 (beta up to 2: 2e-2), in 16 x 16 parts as well  twice what an exact inverse of A in fp16 costs
    U      5e-3, plus sqrt(C V) 2^-134 in bf16                  twice what an exact inverse in bf16 costs U;
                                                                half of bf16's subnormal step for each element

The gate. A chunk sums up to C gates of one sign in float32. Each of the C - 1 additions rounds a partial sum
by at most u = 2^-24 of it, and no partial sum is larger than the last. So a sum in any order is right to
(C - 1) u, where torch's may happen to be exact. g_cu is float32 whatever the dtype of v, and its rounding
changes the exponent g_cu[i] - g_cu[j] of every later stage by up to an ULP of g_cu: 2^-7 if a chunk's gates
sum to -1e5. A stage is compared with the exact result for the actual g_cu, so the exact stages use the
rounded sums.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Call, Limit
from gdnbench_kernels.delta_prefill.stage_rules import HALF_TINY, gate_sum_limit, half_tiny, rounded_gates
from gdnbench_kernels.delta_prefill.sums import sum_leeway
from gdnbench_kernels.gdn import log_decay
from gdnbench_kernels.gdn_prefill.chunked import inputs_of
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.params import from_call

INVERSE_BLOCK = 16


def stage_limit(call: Call, stage: str) -> Limit | None:
    """The limit of the table above; None for other stages."""
    beyond_one = float(call.scalars.get("beta_max") or 1.0) > 1
    inverse = 2e-2 if beyond_one else 3e-3
    chunk_size = int(call.scalars.get("chunk_size") or CHUNK)
    if stage == "g_cu":
        return gate_sum_limit(chunk_size)
    if stage == "A":
        return Limit(inverse, absolute=chunk_size * HALF_TINY, instead=True)
    if stage == "Ai":
        return Limit(inverse, block=INVERSE_BLOCK, instead=True)
    if stage == "U":
        v = call.tensors["v"]
        elements = chunk_size * v.shape[-1]
        return Limit(5e-3, absolute=elements**0.5 * half_tiny(v.dtype))
    return None


def with_rounded_sums(call: Call) -> Call:
    """The call with fp64 log-space gates whose sums in each chunk are the exact sums rounded to float32."""
    gates = log_decay(call.tensors["g"], call.conventions.get("gate", "log"), torch.float64)
    plan = plan_chunks(call.tensors["cu_seqlens"], int(call.scalars.get("chunk_size") or CHUNK))
    tensors = {**call.tensors, "g": rounded_gates(gates, plan)}
    return Call(tensors, call.scalars, {**call.conventions, "gate": "log"})


def stage_leeway(call: Call, stage: str, exact: Mapping[str, Tensor]) -> Tensor | None:
    """What the order of sums may cost a stage; see `delta_prefill.sums`."""
    call = with_rounded_sums(call)
    given = {**call.tensors, **call.scalars, **call.conventions}
    return sum_leeway(inputs_of(from_call(PrefillParams, given)), stage, exact)
