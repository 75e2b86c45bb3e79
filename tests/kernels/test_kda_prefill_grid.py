# SPDX-License-Identifier: Apache-2.0
"""The grid that a KDA prefill kernel is proven on: what is in it, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench_kernels.kda_contract import gates_of_call
from gdnbench_kernels.kda_prefill.cases import cases
from gdnbench_kernels.kda_prefill.contract import OPERATION

Proof = Callable[..., tuple[Exit, str]]


@pytest.fixture
def proof(prove: Callable[..., tuple[Exit, str]]) -> Proof:
    return partial(prove, "kda_prefill", "--on", "cpu")


def test_the_grid_has_what_kernels_go_wrong_on() -> None:
    made = {case.name: OPERATION.synth(**case.options) for case in cases()}
    assert len(made) == len(list(cases()))
    calls = [made[case.name] for case in cases() if not case.refused]
    for call in calls:
        OPERATION.validate(call)
    lengths = {int(n) for call in calls for n in call.tensors["cu_seqlens"].diff()}
    assert {0, 1, 15, 16, 17, 63, 64, 65, 129, 300} <= lengths
    assert {1, 5, 257} <= {len(call.tensors["cu_seqlens"]) - 1 for call in calls}
    states = {call.tensors["initial_state"].dtype for call in calls if "initial_state" in call.tensors}
    assert states == {torch.float32, torch.bfloat16}
    assert any("initial_state" not in call.tensors for call in calls)
    assert any(call.tensors["k"].isnan().any() for call in calls)
    assert {call.conventions["gate"] for call in calls} == {"log", "raw", "bounded"}
    assert {call.conventions["beta_form"] for call in calls} == {"value", "logit"}
    assert {call.scalars["beta_max"] for call in calls} == {1.0, 2.0}
    gates = [gates_of_call(call).log_decay(call.tensors["g"], torch.float64) for call in calls]
    finite = [g[g.isfinite()] for g in gates]
    assert min(float(g.min()) for g in finite if g.numel()) <= -1e5
    assert any(g.isneginf().any() and g.isfinite().any() for g in gates)
    # One head has a channel that keeps a state for 100 tokens beside one that loses it in one.
    means = [head for g in gates if len(g) for head in g.mean(0)]
    assert any(float(head.max()) > -1e-2 and float(head.min()) < -100 for head in means)


def test_a_design_with_a_in_bf16_fails_on_keys_that_are_alike(proof: Proof) -> None:
    code, out = proof("--kernel", "torch", "keys alike 0, beta 1", "keys alike 1, beta 1")
    lines = out.splitlines()
    assert lines[1].split()[:6] == ["keys", "alike", "0,", "beta", "1", "pass"]
    assert lines[2].split()[:6] == ["keys", "alike", "1,", "beta", "1", "FAIL"]
    assert "Ai: " in lines[2]
    assert lines[3] == "2 cases, 1 failed"
    assert code is Exit.MISMATCH


ANCHORED = """
import torch
from gdnbench_kernels.kda_prefill.chunked import MATH, gates_of_params
from gdnbench_kernels.kda_prefill.params import KdaPrefillParams
from gdnbench_kernels.delta_prefill.chunked import prefill_inputs, run_chunked
from gdnbench_kernels.gdn import per_value_head
from gdnbench_kernels.params import from_call
from gdnbench_kernels.rounding import tensor_core_arithmetic
from dataclasses import replace


def products(x, k, g_cu, arithmetic):
    x, k = (per_value_head(arithmetic.load(one), g_cu.shape[1], axis=1) for one in (x, k))
    anchor = g_cu[:, :, {row}, None]
    return ((x * (g_cu - anchor).exp()) @ (k * (anchor - g_cu).exp()).mT).tril()


def form_a(k, g_cu, beta, arithmetic):
    return arithmetic.store((beta.unsqueeze(-1) * products(k, k, g_cu, arithmetic)).tril(-1))


def form_p(q, k, g_cu, arithmetic):
    return arithmetic.store(products(q, k, g_cu, arithmetic))


def prefill(q, k, v, g, beta, cu_seqlens, initial_state=None, output_final_state=True):
    call = dict(q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens, initial_state=initial_state)
    params = from_call(KdaPrefillParams, call)
    math = replace(MATH, form_a=form_a, form_p=form_p)
    inputs = prefill_inputs(params, gates_of_params(params), math)
    return run_chunked(inputs, tensor_core_arithmetic(v.dtype), params)
"""


@pytest.mark.parametrize("row", [0, 8])
def test_one_anchor_for_a_chunk_fails_beyond_the_served_gates(proof: Proof, row: int, tmp_path: Path) -> None:
    """cudnn-frontend#1017: exponentials relative to one row of a chunk. Gates of -5 a token, drawn up to -10,
    overflow relative to the first row of 16, and not relative to the middle one; gates of -150 always do."""
    path = tmp_path / "anchored.py"
    path.write_text(ANCHORED.replace("{row}", str(row)))
    names = ("gate span 100", "gate span 320", "gate span 10000")
    _, out = proof("--kernel", f"{path}:prefill", *names)
    verdicts = [line.split()[3] for line in out.splitlines()[1:4]]
    assert verdicts == ["pass", "FAIL" if row == 0 else "pass", "FAIL"]
