# SPDX-License-Identifier: Apache-2.0
"""What a stage adds to an error and what it inherits, against the formulas of a chunk in NumPy, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gdnbench.judge.error_attribution import StageShare, attribute_errors
from gdnbench.judge.rule import Bound
from gdnbench.judge.stages import exact_stages, judge_stages
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_decode.contract import OPERATION as DECODE
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from gdnbench_kernels.swa_decode.contract import OPERATION as SWA

TOKENS, CHUNK = 5, 64
PLANTED = 0.25
ROUNDED = 1e-12
"""RMS of what fp64 leaves of values around 1 after a few hundred operations of 1e-16 each."""


@pytest.fixture(scope="module")
def call() -> Call:
    """One chunk of 5 tokens, one head."""
    return PREFILL.synth(
        seqlens=(TOKENS,), heads=(1, 1), head_dim=(16, 8), initial_state=True, dtype="float32"
    )


def by_hand(call: Call, planted: float) -> dict[str, np.ndarray]:
    """The stages of that chunk in NumPy, every one of what the ones before it are; A[3, 1] is off by
    `planted`."""
    q, k, v, g, beta = (call.tensors[name][:, 0].double().numpy() for name in ("q", "k", "v", "g", "beta"))
    state = call.tensors["initial_state"][0, 0].double().numpy()  # [V, K]
    sums = g.cumsum().astype(np.float32).astype(np.float64)  # the contract keeps them in fp32
    decay = np.exp(sums[:, None] - sums[None, :])
    a = np.tril(beta[:, None] * (k @ k.T) * decay, -1)
    a[3, 1] += planted
    ai = np.linalg.inv(np.eye(TOKENS) + a)
    u = (ai * beta) @ v
    w = (ai * (beta * np.exp(sums))) @ k
    new = u - w @ state.T
    final = np.exp(sums[-1]) * state + (new * np.exp(sums[-1] - sums)[:, None]).T @ k
    p = np.tril(q @ k.T * decay)
    o = (np.exp(sums)[:, None] * (q @ state.T) + p @ new) * 16**-0.5
    return {
        "g_cu": sums, "A": a, "Ai": ai, "U": u, "W": w,
        "h": state, "V_new": new, "final_state": final, "P": p, "o": o,
    }  # fmt: skip


def as_contract(name: str, value: np.ndarray) -> Tensor:
    """One chunk's stage in the contract's shape; NaN where no token owns anything."""
    tensor = torch.from_numpy(value)
    if name in ("A", "Ai", "P"):
        full = torch.full((1, 1, CHUNK, CHUNK), torch.nan, dtype=torch.float64)
        full[0, 0, :TOKENS] = 0
        full[0, 0, :TOKENS, :TOKENS] = tensor
        return full
    if name in ("U", "W", "V_new"):
        full = torch.full((CHUNK, 1, tensor.shape[1]), torch.nan, dtype=torch.float64)
        full[:TOKENS, 0] = tensor
        return full
    return tensor[None, None] if name in ("h", "final_state") else tensor[:, None]


def shares(operation: Operation, call: Call, shown: dict[str, Tensor]) -> dict[str, StageShare]:
    found = attribute_errors(operation, call, shown, exact_stages(operation, call))
    assert found is not None
    return {share.stage: share for share in found}


def rms(values: np.ndarray, count: int | None = None) -> float:
    return float(np.sqrt((values**2).sum() / (count or values.size)))


@pytest.fixture(scope="module")
def planted(call: Call) -> dict[str, StageShare]:
    return shares(PREFILL, call, {name: as_contract(name, x) for name, x in by_hand(call, PLANTED).items()})


def test_an_error_is_added_where_it_is_made_and_inherited_behind(
    call: Call, planted: dict[str, StageShare]
) -> None:
    right, wrong = by_hand(call, 0.0), by_hand(call, PLANTED)
    assert list(planted) == ["g_cu", "A", "Ai", "U", "W", "h", "V_new", "final_state", "P", "o"]
    for name, share in planted.items():
        columns = CHUNK if name in ("A", "Ai", "P") else None  # of a square stage, all 64 columns count
        count = TOKENS * columns if columns else right[name].size
        error = rms(wrong[name] - right[name], count)
        assert share.count == count
        assert share.reference == pytest.approx(rms(right[name], count), rel=1e-9)
        assert share.error == pytest.approx(error, rel=1e-9, abs=ROUNDED)
        if name == "A":
            assert share.added == pytest.approx(PLANTED / math.sqrt(TOKENS * CHUNK), rel=1e-9)
            assert share.inherited < ROUNDED
        else:
            assert share.added < ROUNDED, name
            assert share.inherited == pytest.approx(error, rel=1e-9, abs=ROUNDED), name
    assert all(planted[name].inherited > 1e-4 for name in ("Ai", "U", "W", "V_new", "final_state", "o"))


def test_a_stage_that_is_not_shown_is_charged_to_the_next(call: Call) -> None:
    wrong = {name: as_contract(name, x) for name, x in by_hand(call, PLANTED).items() if name != "A"}
    found = shares(PREFILL, call, wrong)
    assert "A" not in found
    assert found["Ai"].inherited < ROUNDED
    assert found["Ai"].added == pytest.approx(found["Ai"].error, rel=1e-9)
    assert found["U"].added < ROUNDED < found["U"].inherited


def test_a_step_names_what_it_gives(planted: dict[str, StageShare]) -> None:
    assert {share.step for share in planted.values()} == {
        "sum_gates", "form_a", "invert", "form_uw", "scan", "form_p", "read_out",
    }  # fmt: skip


def test_the_error_is_that_of_the_stage_as_it_is_judged() -> None:
    made = PREFILL.synth(seqlens=(70, 0, 3), heads=(1, 2), head_dim=(32, 16), initial_state=True)
    stages: dict[str, Tensor] = {}
    stages |= run_kernel(PREFILL, "torch", made, stages)
    judged = {one.tensor: one for one in judge_stages(PREFILL, made, stages, Bound()) if one.errors}
    found = shares(PREFILL, made, stages)
    assert set(found) == set(judged)
    for name, share in found.items():
        errors = judged[name].errors
        assert errors is not None
        assert share.error == pytest.approx(errors.rms, rel=1e-9)
        assert share.error <= (share.added + share.inherited) * (1 + 1e-9)


def test_what_is_not_finite_does_not_count(call: Call) -> None:
    wrong = {name: as_contract(name, x) for name, x in by_hand(call, 0.0).items()}
    wrong["U"][2] = torch.nan
    found = shares(PREFILL, call, wrong)
    assert found["U"].count == (TOKENS - 1) * 8
    assert found["U"].error < ROUNDED
    wrong["W"][:] = torch.inf
    found = shares(PREFILL, call, wrong)
    assert found["W"].count == 0
    assert math.isnan(found["W"].added)


def test_a_stage_of_another_shape_counts_as_not_shown(call: Call) -> None:
    wrong = {name: as_contract(name, x) for name, x in by_hand(call, 0.0).items()}
    wrong["Ai"] = wrong["Ai"][:, :, :32]
    found = shares(PREFILL, call, wrong)
    assert "Ai" not in found
    assert found["U"].error < ROUNDED


def test_decode_has_its_state_among_the_stages() -> None:
    made = DECODE.synth(batch=3, heads=(1, 2), head_dim=(16, 8))
    stages: dict[str, Tensor] = {}
    outputs = run_kernel(DECODE, "reference_staged", made, stages)
    stages |= outputs
    before = {name: tensor.clone() for name, tensor in made.tensors.items()}
    stages["beta_t"] = stages["beta_t"] + PLANTED
    found = shares(DECODE, made, stages)
    assert found["beta_t"].added == pytest.approx(PLANTED, rel=1e-9)
    # `stages` has the right delta_t, state and o: exact steps on a wrong beta_t do not lead there.
    for name in ("delta_t", "state", "o"):
        # delta_t is looked at in fp32, in which rounding moves an element by 2^-24 of itself at most.
        assert found[name].error < ROUNDED + 2**-24 * found[name].reference
        assert found[name].added == pytest.approx(found[name].inherited, rel=1e-6)
        assert found[name].inherited > 1e-3
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.tensors.items())


def test_an_operation_without_steps_has_none() -> None:
    made = SWA.synth()
    assert attribute_errors(SWA, made, {}, {}) is None
