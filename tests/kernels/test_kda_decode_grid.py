# SPDX-License-Identifier: Apache-2.0
"""The grid that a kernel of kda_decode is proven on: what is in it, and what the proof finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench_kernels.contract import Call
from gdnbench_kernels.kda_decode.cases import cases
from gdnbench_kernels.kda_decode.contract import OPERATION
from gdnbench_kernels.state_pool import slots_of
from tests.seeds import drawn

Proof = Callable[..., tuple[Exit, str]]

FAULTY = Path(__file__).with_name("faulty_kda_decode.py")


@pytest.fixture
def proof(prove: Callable[..., tuple[Exit, str]]) -> Proof:
    return partial(prove, "kda_decode")


@pytest.fixture(scope="module")
def made() -> dict[str, Call]:
    found = {case.name: OPERATION.synth(**case.options) for case in cases()}
    assert len(found) == len(list(cases())), "two cases of one name"
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grid_has_what_kernels_go_wrong_on(made: dict[str, Call], dtype: torch.dtype) -> None:
    inside = [call for name, call in made.items() if not name.startswith("outside")]
    calls = [call for call in inside if call.tensors["state"].dtype == dtype]
    for call in calls:
        OPERATION.validate(call)
    assert set(range(1, 9)) == {call.tensors["v"].shape[1] for call in calls}
    # Kimi Linear has 32 heads, by its config; with tensor parallelism of 1 to 16.
    served = {(32 // tp, 32 // tp) for tp in (1, 2, 4, 8, 16)}
    assert served <= {(call.tensors["q"].shape[2], call.tensors["v"].shape[2]) for call in calls}
    forms = {(call.conventions["gate"], call.conventions["beta_form"]) for call in calls}
    assert {
        ("log", "value"),
        ("log", "logit"),
        ("raw", "value"),
        ("raw", "logit"),
        ("bounded", "logit"),
    } <= forms
    biases = {call.tensors["dt_bias"].dtype for call in calls if "dt_bias" in call.tensors}
    assert biases == {torch.float32, torch.bfloat16}
    assert {call.tensors["g"].dtype for call in calls} == {torch.float32, torch.bfloat16, torch.float16}
    assert {call.scalars["beta_max"] for call in calls} == {1.0, 2.0}
    # A head with a channel that keeps its state and one that forgets it at once.
    log = [call.tensors["g"].float() for call in calls if call.conventions["gate"] == "log"]
    assert any(bool(((g > -1e-4).any(-1) & (g < -100).any(-1)).any()) for g in log)
    assert any(len(slots_of(call).active) == 0 and call.tensors["v"].numel() for call in calls)


@pytest.mark.slow
def test_the_quick_cases_pass_with_torchs_kernel_and_other_numbers(proof: Proof) -> None:
    seed = drawn("kda_decode grid", 20)
    code, out = proof("--kernel", "torch", "--on", "cpu", "--quick", "--seed", str(seed))
    assert code is Exit.PASS, out
    quick = [case for case in cases() if case.quick and not case.refused]
    assert out.splitlines()[-1] == f"{len(quick)} cases, 0 failed"


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        ("one_gate_a_head", "fp32, channels far apart"),
        ("next_channel", "fp32, 2 sequences"),
        ("other_head", "bf16, 2 sequences"),
        ("first_bias", "fp32, raw"),
        ("forgets_the_rate", "fp32, bounded"),
        ("clamped", "fp32, channels far apart"),
        ("rounds_gates", "fp32, 2 sequences"),
        ("value_for_logit", "fp32, raw"),
        ("beta_to_one", "bf16, raw, bf16 dt_bias"),
        ("decays_after_the_update", "fp32, 2 sequences"),
    ],
)
def test_a_wrong_kernel_fails_for_what_it_does(proof: Proof, kernel: str, case: str) -> None:
    right = proof("--kernel", f"{FAULTY}:correct", "--on", "cpu", case)
    assert right[0] is Exit.PASS, right[1]
    code, out = proof("--kernel", f"{FAULTY}:{kernel}", "--on", "cpu", case)
    assert code is Exit.MISMATCH, out
    assert "state: " in out.splitlines()[1], out
