"""What the order of a sum may cost a stage of gdn_prefill or kda_prefill, where torch's sum may happen to be
exact.

The contract leaves the order of a sum to the kernel. A sum of n products in float32, in any order, errs by
at most gamma_n sum |terms|, with gamma_n = n u / (1 - n u) and u = 2^-24 (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1). A stage that is stored in 16 bits hardly shows it. One in float32 does,
and torch's own error may be 0 by luck: P of a single token is one number.

    stage  terms                                bound
    P      exp(g_cu[i] - g_cu[j]) q_i k_j       gamma_K sum |terms|
    U, W   Ai beta v, Ai beta exp(g_cu) k       gamma_C sum |terms|
    V_new  U - W S^T                            gamma_(K+1) sum |terms|, and the bounds of U and of W |S|^T
    h      exp(g_last) S + (V_new exp(..))^T k  gamma_(C+1) sum |terms|, what the bound of V_new adds, and
                                                exp(g_last) times the bound of the state before

The bound of the state before does not enter V_new: |W| |K|^T would multiply it in every chunk, and soon
excuse any error. torch's error has that part too. g_cu has a limit, see `stage_rules`; those of A and Ai are
larger than any rounding of a sum.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench_kernels.chunks import gather_chunks
from gdnbench_kernels.delta_prefill.chunked import ChunkedPrefill, PrefillInputs, published_stages, put_stage
from gdnbench_kernels.delta_prefill.stage_rules import UNIT
from gdnbench_kernels.gdn import normalised
from gdnbench_kernels.rounding import EXACT

NEEDS = {
    "P": ("g_cu",),
    "U": ("g_cu", "Ai"),
    "W": ("g_cu", "Ai"),
    "V_new": ("g_cu", "Ai", "U", "W", "h"),
    "h": ("g_cu", "Ai", "U", "W", "h"),
}


def gamma(terms: int) -> float:
    return terms * UNIT / (1 - terms * UNIT)


def sum_leeway(inputs: PrefillInputs, stage: str, exact: Mapping[str, Tensor]) -> Tensor | None:
    """By how much the order of sums may move each element of a stage; fp64, in its shape, zero where an
    element belongs to no token or is not finite. None for a stage without a bound above. `exact`: the exact
    stages of the call."""
    if stage not in NEEDS:
        return None
    run = ChunkedPrefill(inputs, EXACT)
    for name in NEEDS[stage]:
        put_stage(run, name, exact[name].to(run.k))
    run.stages[stage] = _bound(run, stage)
    return published_stages(run, (stage,))[stage].nan_to_num(0.0, 0.0, 0.0)


def _bound(run: ChunkedPrefill, stage: str) -> Tensor:
    """The bound of a stage by chunk, heads first."""
    inputs, stages, keys, math = run.inputs, run.stages, run.k.abs(), run.inputs.math
    rows, size, key_dim = run.plan.part(0, run.plan.total), run.plan.chunk_size, run.k.shape[-1]
    g_cu = stages["g_cu"]
    if stage == "P":
        queries = normalised(gather_chunks(inputs.q, *rows), inputs.qk, torch.float64).abs()
        return gamma(key_dim) * math.form_p(queries, keys, g_cu, EXACT)
    step_size = inputs.gates.step_size(inputs.beta, torch.float64)
    values, beta = (gather_chunks(one, *rows).abs() for one in (inputs.v.double(), step_size))
    u, w = (gamma(size) * one for one in math.form_uw(keys, values, g_cu, beta, stages["Ai"].abs(), EXACT))
    if stage in ("U", "W"):
        return u if stage == "U" else w
    state = stages["h"].abs()
    _, terms, next_terms = math.advance_state(state, keys, stages["U"].abs(), -stages["W"].abs(), g_cu, EXACT)
    v_new = gamma(key_dim + 1) * terms + u + w @ state.mT
    if stage == "V_new":
        return v_new
    _, _, added = math.advance_state(torch.zeros_like(state), keys, v_new, torch.zeros_like(w), g_cu, EXACT)
    added += gamma(size + 1) * next_terms
    before = torch.zeros_like(state)
    # [c, Hv, 1, 1], or [c, Hv, 1, K] with a gate for each channel.
    state_decay = g_cu[:, :, -1].exp().reshape(*g_cu.shape[:2], 1, -1)
    for chunk, index in enumerate(run.plan.index.tolist()):
        if index:
            before[chunk] = before[chunk - 1] * state_decay[chunk - 1] + added[chunk - 1]
    return before
