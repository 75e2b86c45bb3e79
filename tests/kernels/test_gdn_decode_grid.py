# SPDX-License-Identifier: Apache-2.0
"""The grid that a kernel of gdn_decode is proven on: what is in it, and what the proof finds."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gdnbench.errors import Exit
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.cases import cases
from gdnbench_kernels.gdn_decode.contract import OPERATION, slots_of
from tests.kernels.proving import GRIDS, Prover
from tests.seeds import drawn

Proof = Callable[..., tuple[Exit, str]]

FAULTY = Path(__file__).with_name("faulty_gdn_decode.py")


@pytest.fixture
def proof(prove: Callable[..., tuple[Exit, str]]) -> Proof:
    return partial(prove, "gdn_decode")


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
    sizes = [call.tensors["v"].shape for call in calls]
    assert {0, 1, 2, 3, 64} <= {size[0] for size in sizes}
    assert set(range(1, 9)) == {size[1] for size in sizes}
    # Per-rank heads of Qwen3-Next and Qwen3.5 models with tensor parallelism of 1 to 8, from their configs.
    served = {(16 // tp, hv // tp) for tp in (1, 2, 4, 8) for hv in (16, 32, 48, 64)}
    assert served <= {(call.tensors["q"].shape[2], call.tensors["v"].shape[2]) for call in calls}
    assert {call.conventions["gate"] for call in calls} == {"log", "linear", "raw"}
    assert {call.conventions["qk"] for call in calls} == {"normalised", "raw"}
    raw = [call for call in calls if call.conventions["gate"] == "raw"]
    assert {call.tensors["dt_bias"].dtype for call in raw} == {torch.float32, torch.bfloat16}
    assert {call.scalars["beta_max"] for call in raw} == {1.0, 2.0}
    strides = {call.tensors["state"].stride(0) - call.tensors["state"][0].numel() for call in calls if sizes}
    assert len(strides) >= 4
    plans = [slots_of(call) for call in calls]
    assert any(
        len(plan.active) == 0 and call.tensors["v"].numel() for plan, call in zip(plans, calls, strict=True)
    )
    assert any((plan.write == -1).any() and (plan.write != -1).any() for plan in plans)
    assert any(len(plan.read) > len(plan.read.unique()) for plan in plans)
    assert any(len(plan.active) > 1 and not len(plan.written) for plan in plans)
    assert any(
        "num_accepted" in call.tensors and len(call.tensors["num_accepted"].unique()) > 2 for call in calls
    )
    assert any(float(call.tensors["state"].abs().max()) > 1e29 for call in calls if len(call.tensors["v"]))


def test_the_quick_cases_pass_with_torchs_kernel_and_other_numbers(proof: Proof) -> None:
    seed = drawn("gdn_decode grid", 20)
    code, out = proof("--kernel", "torch", "--on", "cpu", "--quick", "--seed", str(seed))
    assert code is Exit.PASS, out
    quick = [case for case in cases() if case.quick and not case.refused]
    assert out.splitlines()[-1] == f"{len(quick)} cases, 0 failed"


@pytest.mark.slow  # the two below start one too
def test_one_process_runs_all_cases(tmp_path: Path) -> None:
    """On a GPU each would import torch and compile the kernel again: 29 cases took 200 s."""
    processes, kernel = tmp_path / "processes", tmp_path / "kernel.py"
    kernel.write_text(
        "import os\n"
        "from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent as recurrent\n"
        f"with open({str(processes)!r}, 'a') as file:\n"
        "    print(os.getpid(), file=file)\n"
    )
    proofs: list[Any] = []
    prover = Prover(GRIDS["gdn_decode"], f"{kernel}:recurrent", "cpu")
    prover.prove(["fp32, [23] sequences", "bf16, drafts", "capture decode 3*"], False, proofs.append)
    names = ["fp32, 2 sequences", "fp32, 3 sequences", "bf16, drafts"]
    captured = [f"capture decode {number}" for number in (3, 30, 31)]
    assert [name for name, _, _ in proofs] == [*names, *captured]
    # What was captured has raw q and k and its state the other way round. Replay converts both, and judges
    # the kernel on what it was handed.
    assert [verdict for _, verdict, _ in proofs] == ["pass"] * 6
    # One for the made calls and one for a store of captured ones, beside this one, which looks for stages.
    assert len(set(processes.read_text().split()) - {str(os.getpid())}) == 2


@pytest.mark.slow
def test_a_verdict_is_of_its_own_case(tmp_path: Path) -> None:
    """Of more than ten, which names of numbers would order otherwise: one sequence count is refused."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "import functools\n"
        "from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent\n"
        "@functools.wraps(torch_recurrent)\n"
        "def recurrent(**call):\n"
        "    if call['q'].shape[:2] == (2, 1) and call['state'].stride(0) == call['state'][0].numel():\n"
        "        raise NotImplementedError('no two')\n"
        "    return torch_recurrent(**call)\n"
    )
    proofs: list[Any] = []
    Prover(GRIDS["gdn_decode"], f"{kernel}:recurrent", "cpu").prove(["fp32*"], True, proofs.append)
    made = {case.name: OPERATION.synth(**case.options) for case in cases() if case.quick}
    assert len(proofs) > 12
    for name, verdict, _ in proofs:
        q, state = made[name].tensors["q"], made[name].tensors["state"]
        refused = q.shape[:2] == (2, 1) and state.stride(0) == state[0].numel()
        assert verdict == ("FAIL" if refused else "pass"), name


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("kernel", "case", "reason"),
    [
        ("rounds_beta", "fp32, raw", "state: "),
        ("rounds_beta", "fp32, beta to 2", "state: "),
        ("coarse_softplus", "fp32, raw", "state: "),
        ("bias_in_bf16", "fp32, raw", "state: "),
        ("beta_to_one", "bf16, raw, bf16 dt_bias", "state: "),
        ("ignores_accepted", "bf16, drafts", "state: "),
        ("ignores_reads", "fp32, reads last, 3 tokens, holes", "state: "),
        ("own_scale", "bf16, scale 1", "o: "),
        ("other_heads", "fp32, heads 2 and 4", "state: "),
        ("writes_what_it_reads", "bf16, reads shared", "state: "),
        ("writes_holes", "fp32, half is padding", "state: "),
    ],
)
def test_a_wrong_kernel_fails_for_what_it_does(proof: Proof, kernel: str, case: str, reason: str) -> None:
    right = proof("--kernel", f"{FAULTY}:correct", "--on", "cpu", case)
    assert right[0] is Exit.PASS, right[1]
    code, out = proof("--kernel", f"{FAULTY}:{kernel}", "--on", "cpu", case)
    assert code is Exit.MISMATCH, out
    assert reason in out.splitlines()[1], out
