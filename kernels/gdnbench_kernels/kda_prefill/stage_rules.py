"""Limits of kda_prefill's stages, for cases in which the ratio to torch's error says too little.

The inverse. As in gdn_prefill, similar keys make (I + A)^-1 ill-conditioned, and torch's own stages, which
store A in bf16, have large errors there. So A, Ai and U have their own limits. A kernel meets them if it
multiplies decayed keys in bf16 or better, stores A in fp16 or better, loses no more than that by the
inversion, and rounds only Ai beta to bf16 before U. The limits are twice what such a kernel with an exact
inverse costs, measured for keys of correlation 0 to 1, gate spans of 0 to 320, alike and by channel, and beta
up to 1 and up to 2 (tests/kernels/test_kda_prefill_stages.py). The worst are keys of correlation 1 with slow
gates and beta at its maximum. A in bf16 costs Ai 5.8e-3 and, with beta 2, 8.7e-2.

    stage  chunks   limit for every chunk and head           a kernel as above
    A      all      3e-3, C 2^-25, and a leeway, see below   4.5e-4 where its operands are exact
    Ai     to 16    2e-3 (beta up to 2: 1.2e-2)              8.0e-4 (5.2e-3)
           more     3e-3 (beta up to 2: 2.2e-1)              1.3e-3 (1.1e-1)
    U      to 16    6e-3 (beta up to 2: 1.2e-2)              2.9e-3 (5.6e-3)
           more     6e-3 (beta up to 2: 5e-2)                2.9e-3 (2.5e-2)

The limit of Ai is also that of its 16 x 16 parts. C 2^-25 is half of fp16's subnormal step for each row of A,
and U may be off by half a subnormal step of its dtype for each element.

The operands of A. A = beta_i sum_c t_c with t_c = k_i[c] k_j[c] exp(g_cu[i,c] - g_cu[j,c]). Gates of channels
differ, so that a kernel must round decayed keys before it multiplies them: k_i exp(g_cu[i] - r) and k_j
exp(r - g_cu[j]). Where keys are not alike the terms cancel, and these roundings are larger than any part of
A. Each is off by at most u, the unit roundoff of q's dtype, and its error has a variance of at most u^2 / 3.
Those of the channels are independent, so the error of a sum of terms with two rounded factors has a standard
deviation of at most u sqrt(2/3 sum t_c^2); the exponents and fp32 sums add 2^-24 of |g_cu| and less. An
element of A may be off by 4 deviations besides its limit, which an error exceeds with a probability of 6e-5.
For similar keys this is 1/sqrt(K) of that relative to A, 1.2e-3.

The gate. See `delta_prefill.stage_rules.gate_sum_limit`. Where the call has raw or bounded gates, a kernel
computes them by approximate functions (`gate_errors`), whose errors have one direction where gates are alike
and add up along a chunk. g_cu is float32 whatever the dtype of v, and its
rounding changes the exponents of every later stage. A stage is compared with the exact result for the actual
g_cu, so the exact stages use the rounded sums.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gdnbench_kernels.chunks import gather_chunks, plan_chunks, scatter_chunks
from gdnbench_kernels.contract import Call, Limit
from gdnbench_kernels.delta_prefill.chunked import ChunkedPrefill, published_stages, put_stage
from gdnbench_kernels.delta_prefill.stage_rules import HALF_TINY, gate_sum_limit, half_tiny, rounded_gates
from gdnbench_kernels.delta_prefill.sums import sum_leeway
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.kda_prefill.chunked import MATH, form_a, inputs_of
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.kda_prefill.sizes import CHUNK
from gdnbench_kernels.params import from_call
from gdnbench_kernels.rounding import EXACT, Arithmetic

INVERSE_BLOCK = 16
DEVIATIONS = 4
"""Standard deviations of the rounding of decayed keys that A may be off."""
_A = 3e-3
_LIMITS = {
    (True, False): (2e-3, 6e-3),
    (True, True): (1.2e-2, 1.2e-2),
    (False, False): (3e-3, 6e-3),
    (False, True): (2.2e-1, 5e-2),
}
"""Limits of Ai and U, by whether chunks have at most 16 tokens and whether beta may be beyond 1."""


def stage_limit(call: Call, stage: str) -> Limit | None:
    """The limit of the table above; None for other stages."""
    chunk_size = _chunk_size(call)
    of_inverse, of_updates = _LIMITS[chunk_size <= CHUNK, float(call.scalars.get("beta_max") or 1.0) > 1]
    if stage == "g_cu":
        return gate_sum_limit(chunk_size)
    if stage == "A":
        return Limit(_A, absolute=chunk_size * HALF_TINY, instead=True)
    if stage == "Ai":
        return Limit(of_inverse, block=INVERSE_BLOCK, instead=True)
    if stage == "U":
        v = call.tensors["v"]
        return Limit(of_updates, absolute=(chunk_size * v.shape[-1]) ** 0.5 * half_tiny(v.dtype))
    return None


def with_rounded_sums(call: Call) -> Call:
    """The call with fp64 log-space gates whose sums in each chunk are the exact sums rounded to float32."""
    gates = gates_of_call(call).log_decay(call.tensors["g"], torch.float64)
    plan = plan_chunks(call.tensors["cu_seqlens"], _chunk_size(call))
    tensors = {name: tensor for name, tensor in call.tensors.items() if name not in ("A_log", "dt_bias")}
    scalars = {name: value for name, value in call.scalars.items() if name != "lower_bound"}
    return Call({**tensors, "g": rounded_gates(gates, plan)}, scalars, {**call.conventions, "gate": "log"})


def stage_leeway(call: Call, stage: str, exact: Mapping[str, Tensor]) -> Tensor | None:
    """What approximate functions may cost g_cu, the rounding of decayed keys A, and the order of sums the
    other stages, see `delta_prefill.sums`."""
    if stage == "g_cu":
        return _gate_sum_leeway(call)
    call = with_rounded_sums(call)
    given = {**call.tensors, **call.scalars, **call.conventions}
    inputs = inputs_of(from_call(KdaPrefillParams, given))
    if stage != "A":
        return sum_leeway(inputs, stage, exact)
    run = ChunkedPrefill(replace(inputs, math=replace(MATH, form_a=_squared_terms)), EXACT)
    put_stage(run, "g_cu", exact["g_cu"].to(run.k))
    run.form_a()
    unit = torch.finfo(call.tensors["q"].dtype).eps / 2
    run.stages["A"] = DEVIATIONS * unit * (2 / 3 * run.stages["A"]).sqrt()
    return published_stages(run, ("A",))["A"].nan_to_num(0.0, 0.0, 0.0)


def _gate_sum_leeway(call: Call) -> Tensor:
    """By how much each sum of gates may be off: the errors of all of its gates, in one direction."""
    gates = gates_of_call(call)
    g = gates.log_decay(call.tensors["g"], torch.float64)
    error = gates.decay_error(g.abs().nan_to_num(0.0, 0.0, 0.0))
    plan = plan_chunks(call.tensors["cu_seqlens"], _chunk_size(call))
    rows = plan.part(0, plan.total)
    found = torch.zeros_like(error)
    scatter_chunks(found, gather_chunks(error, *rows).cumsum(2), *rows)
    return found


def _squared_terms(k: Tensor, g_cu: Tensor, beta: Tensor, arithmetic: Arithmetic) -> Tensor:
    """The sum of squares of the terms of each element of A."""
    return form_a(k.square(), 2 * g_cu, beta.square(), arithmetic)


def _chunk_size(call: Call) -> int:
    return int(call.scalars.get("chunk_size") or CHUNK)
