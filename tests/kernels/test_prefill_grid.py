# SPDX-License-Identifier: Apache-2.0
"""The grid that a prefill kernel is proven on: what is in it, what it finds, and its quick cases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench_kernels.cases import Case
from gdnbench_kernels.gdn_prefill.cases import cases
from gdnbench_kernels.gdn_prefill.contract import OPERATION
from tests.kernels.proving import GRIDS, Prover
from tests.messages import wording
from tests.subset import quick

QUICK = [case for case in cases() if case.quick]

Proof = Callable[..., tuple[Exit, str]]


@pytest.fixture
def proof(prove: Callable[..., tuple[Exit, str]]) -> Proof:
    return partial(prove, "gdn_prefill")


def test_the_grid_has_what_kernels_go_wrong_on() -> None:
    made = {case.name: OPERATION.synth(**case.options) for case in cases()}
    assert len(made) == len(list(cases()))
    calls = [made[case.name] for case in cases() if not case.refused]
    lengths = {int(n) for call in calls for n in call.tensors["cu_seqlens"].diff()}
    assert {0, 1, 63, 64, 65, 127, 129, 500} <= lengths
    assert {1, 5, 257} <= {len(call.tensors["cu_seqlens"]) - 1 for call in calls}
    ratios = {(call.tensors["k"].shape[1], call.tensors["v"].shape[1]) for call in calls}
    assert {value_heads // heads for heads, value_heads in ratios} == {1, 2, 3, 4}
    states = {call.tensors["initial_state"].dtype for call in calls if "initial_state" in call.tensors}
    assert states == {torch.float32, torch.bfloat16}
    assert any("initial_state" not in call.tensors for call in calls)
    assert any(call.tensors["k"].isnan().any() for call in calls)
    assert min(float(call.tensors["g"].nan_to_num().min()) for call in calls) <= -1e5
    for name in ("log", "linear"):
        assert any(call.conventions["gate"] == name for call in calls)


def test_a_spike_is_one_gate_of_each_block_and_head() -> None:
    options = {"seqlens": (130,), "heads": (1, 3), "head_dim": (4, 4), "gate_span": 1.0}
    plain, spiked = OPERATION.synth(**options), OPERATION.synth(**options, gate_spike=1e5)
    wide = spiked.tensors["g"] < -1e5 / 2
    for start in (0, 64, 128):
        assert wide[start : start + 64].sum(0).tolist() == [1, 1, 1]
    assert torch.equal(plain.tensors["g"][~wide], spiked.tensors["g"][~wide])
    assert all(torch.equal(plain.tensors[name], spiked.tensors[name]) for name in ("q", "k", "v", "beta"))
    for size in (-1.0, float("inf")):
        with pytest.raises(ValueError, match=wording("kernels.gate-spike")):
            OPERATION.synth(**options, gate_spike=size)


def test_a_design_with_a_in_bf16_fails_on_keys_that_are_alike(
    proof: Proof,
) -> None:
    code, out = proof("--kernel", "torch", "--on", "cpu", "keys alike 0, beta 1", "keys alike 1, beta 1")
    lines = out.splitlines()
    assert lines[1].split()[:6] == ["keys", "alike", "0,", "beta", "1", "pass"]
    assert lines[2].split()[:6] == ["keys", "alike", "1,", "beta", "1", "FAIL"]
    assert "Ai: " in lines[2]
    assert lines[3] == "2 cases, 1 failed"
    assert code is Exit.MISMATCH


def test_names_that_choose_nothing_prove_nothing(proof: Proof) -> None:
    assert proof("no such case")[0] is Exit.BAD_INPUT


@pytest.mark.slow
@pytest.mark.parametrize("case", quick(QUICK, 0, ids=[case.name for case in QUICK]))
def test_the_sm100_kernels_pass(case: Case) -> None:
    verdict, record = Prover(GRIDS["gdn_prefill"], "sm100", "sim").case(case)
    assert verdict == ("refused" if case.refused else "pass"), record.reason
    if not case.refused:
        stages = {tensor.tensor for tensor in record.tensors if tensor.stage}
        assert stages == {"g_cu", "A", "Ai", "U", "W", "h", "V_new"}
