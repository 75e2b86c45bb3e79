# SPDX-License-Identifier: Apache-2.0
"""Stages of a prefill, one by one: what passes, what does not, and where the worst element is said to lie."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.result import Side, TensorResult
from gdnbench.judge.rule import Bitwise, Bound
from gdnbench.judge.stages import exact_stages, judge_stages
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.contract import OPERATION, stage_limit, with_rounded_sums
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

NAMES = ["g_cu", "A", "Ai", "U", "W", "h", "V_new", "P"]


@pytest.fixture(scope="module")
def call() -> Call:
    """Chunks 0 and 1 are sequence 0 (64 and 6 tokens), sequence 1 has none, chunk 2 is sequence 2 (3)."""
    return OPERATION.synth(seqlens=(70, 0, 3), heads=(1, 2), head_dim=(32, 16), initial_state=True)


@pytest.fixture
def exact(call: Call) -> dict[str, Tensor]:
    return stages_of(call, "reference_staged")


def stages_of(call: Call, kernel: str) -> dict[str, Tensor]:
    filled: dict[str, Tensor] = {}
    run_kernel(OPERATION, kernel, call, filled)
    return filled


def judged(call: Call, filled: dict[str, Tensor]) -> dict[str, TensorResult]:
    return {result.tensor: result for result in judge_stages(OPERATION, call, filled, Bound())}


@pytest.mark.parametrize("kernel", ["torch", "reference_staged"])
def test_right_stages_pass_in_the_order_of_the_contract(call: Call, kernel: str) -> None:
    results = judge_stages(OPERATION, call, stages_of(call, kernel), Bound())
    assert [result.tensor for result in results] == NAMES
    assert all(result.passed and result.stage for result in results), results


@pytest.mark.parametrize(
    ("name", "index", "where"),
    [
        ("A", (1, 1, 5, 2), "sequence 0, chunk 1, head 1, row 5, column 2"),
        ("Ai", (2, 0, 2, 1), "sequence 2, chunk 0, head 0, row 2, column 1"),
        ("U", (64 + 5, 1, 9), "sequence 0, chunk 1, token 69, head 1, V 9"),
        ("W", (128 + 2, 0, 31), "sequence 2, chunk 0, token 2, head 0, K 31"),
        ("h", (2, 1, 15, 3), "sequence 2, chunk 0, head 1, V 15, K 3"),
        ("V_new", (63, 0, 0), "sequence 0, chunk 0, token 63, head 0, V 0"),
        ("P", (0, 1, 63, 63), "sequence 0, chunk 0, head 1, row 63, column 63"),
        ("g_cu", (72, 1), "sequence 2, chunk 0, token 2, head 1"),
    ],
)
def test_one_wrong_element_fails_its_stage_and_is_named(
    call: Call, exact: dict[str, Tensor], name: str, index: tuple[int, ...], where: str
) -> None:
    exact[name][index] += 1
    results = judged(call, exact)
    assert [stage for stage, result in results.items() if not result.passed] == [name]
    worst = results[name].worst
    assert worst is not None
    assert worst.at.index == index
    assert f"({where})" in str(worst)
    assert worst.x == pytest.approx(worst.y + 1, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("A", (1, 0, 6)),
        ("Ai", (2, 1, 63)),
        ("U", (64 + 6,)),
        ("W", (128 + 3,)),
        ("h", (3,)),
        ("V_new", (3 * 64,)),
    ],
)
def test_rows_that_no_token_owns_do_not_count(
    call: Call, exact: dict[str, Tensor], name: str, index: tuple[int, ...]
) -> None:
    exact[name][index] = torch.inf
    assert judged(call, exact)[name].passed


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_that_is_not_finite_fails(call: Call, exact: dict[str, Tensor], name: str) -> None:
    exact[name][0] = torch.nan
    result = judged(call, exact)[name]
    assert re.search(wording("judge.nonfinite-wrong"), result.reasons[0])


def test_a_nan_may_reach_all_of_its_chunk_and_head_and_nothing_else() -> None:
    made = OPERATION.synth(seqlens=(70, 70), heads=(1, 2), head_dim=(32, 16), nan_at=(3,))
    made.tensors["v"][3] = 0
    exact = stages_of(made, "reference_staged")
    assert exact["Ai"][0, 0, 0].isfinite().all()  # the row of token 0, which no later token is part of
    for row, passes in ((0, True), (1, False), (2, False)):  # chunk 1 is finite too: its own keys are
        wrong = {name: tensor.clone() for name, tensor in exact.items()}
        wrong["Ai"][row, 0, 0] = torch.nan
        assert judged(made, wrong)["Ai"].passed is passes, row


def test_fewer_stages_are_fewer_results_and_outputs_may_be_among_them(call: Call) -> None:
    stages: dict[str, Tensor] = {}
    outputs = run_kernel(OPERATION, "torch", call, stages)
    results = judge_stages(OPERATION, call, {"o": outputs["o"], "U": stages["U"]}, Bound())
    assert [(result.tensor, result.stage, result.passed) for result in results] == [
        ("U", True, True),
        ("o", False, True),
    ]


def test_shape_and_kind_of_dtype_are_the_contract_s(call: Call, exact: dict[str, Tensor]) -> None:
    results = judged(call, exact | {"U": exact["U"][:-1], "h": exact["h"].int()})
    assert results["U"].reasons == (f"shape {[255, 2, 16]} against {[256, 2, 16]}",)
    (reason,) = results["h"].reasons
    assert re.fullmatch(wording("judge.stage-dtype", dtype="int32"), reason)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_stage_may_be_kept_in_another_float_dtype(call: Call, dtype: torch.dtype) -> None:
    kept = {name: tensor.to(dtype) for name, tensor in stages_of(call, "reference_staged").items()}
    kept["g_cu"] = kept["g_cu"].float() if dtype is torch.float32 else stages_of(call, "torch")["g_cu"]
    results = judged(call, kept)
    assert all(result.passed for result in results.values()), results
    assert results["U"].dtype == str(dtype).removeprefix("torch.")


# The inverse's own limits.


def test_identical_keys_fail_a_design_that_stores_a_in_bf16() -> None:
    alike = OPERATION.synth(seqlens=(128,), heads=(1, 1), key_correlation=1.0, gate_span=0.06, beta=1.0)
    results = judged(alike, stages_of(alike, "torch"))
    assert {name for name, result in results.items() if not result.passed} == {"Ai", "U"}
    assert re.search(wording("judge.states-over", worst="sequence 0 chunk"), results["Ai"].reasons[0])
    exact = stages_of(alike, "reference_staged")
    assert all(result.passed for result in judged(alike, exact).values())
    # An exact inverse rounded to fp16 keeps the limit: it is the method that is judged, not the dtype.
    assert judged(alike, {"Ai": exact["Ai"].half()})["Ai"].passed


def test_a_part_of_the_inverse_is_held_by_itself(call: Call, exact: dict[str, Tensor]) -> None:
    """0.02 in one element: under 3e-3 of the whole, whose norm is over 8, and over 3e-3 of any part's 4."""
    assert float(exact["Ai"][0, 0].norm()) * 3e-3 > 0.02
    exact["Ai"][0, 0, 40, 20] += 0.02
    (reason,) = judged(call, exact)["Ai"].reasons
    assert re.fullmatch(
        wording(
            "judge.parts-over",
            count=1,
            rows=16,
            columns=16,
            worst="sequence 0 chunk 0 head 0 row 32 column 16, |x - y| 0.02 over 0.012, "
            "relative 0.005 over 0.003",
        ),
        reason,
    )


@pytest.mark.parametrize(("beta", "limit"), [(1.0, 3e-3), (2.0, 2e-2)])
def test_the_limit_is_wider_where_beta_may_reach_2(beta: float, limit: float) -> None:
    made = OPERATION.synth(seqlens=(64,), heads=(1, 1), beta=(0.0, beta))
    exact = stages_of(made, "reference_staged")
    for stage in ("A", "Ai"):
        found = stage_limit(made, stage)
        assert found is not None
        assert found.relative == limit
        for factor, passes in ((0.99, True), (1.01, False)):
            # The error of a chunk is in proportion to it, so that no part has more than its share, but for
            # the absolute floor of A (64 * 2^-25), which is far below a hundredth of the limit.
            scaled = exact[stage] * (1 + factor * limit)
            assert judged(made, {stage: scaled})[stage].passed is passes


# Sums in another order.


def one_by_one(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the dtype of `a`, from the last product to the first."""
    found = torch.zeros((), dtype=a.dtype)
    for i in reversed(range(a.shape[-1])):
        found = found + a[..., :, i : i + 1] * b[..., i : i + 1, :]
    return found


@pytest.mark.parametrize(("seqlens", "seed"), [((1,), 0), ((2,), 7), ((70,), 0), ((70,), 2)])
def test_the_order_of_a_sum_in_float32_fails_no_stage(
    monkeypatch: pytest.MonkeyPatch, seqlens: tuple[int, ...], seed: int
) -> None:
    """By k times torch's error alone P fails in the first record, U and V_new in the next two, h in the last:
    torch's own error is small there. That depends on the order in which a CPU's BLAS sums."""
    given = {"heads": (1, 2), "head_dim": (32, 32), "key_correlation": 0.5, "gate_span": 1.0}
    made = OPERATION.synth(seqlens=seqlens, dtype="float32", seed=seed, initial_state=seed % 2 == 0, **given)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__matmul__", one_by_one)
        summed = stages_of(made, "torch")
    assert all(result.passed for result in judge_stages(OPERATION, made, summed, Bound()))


@pytest.mark.parametrize("stage", ["P", "U", "W", "V_new", "h"])
def test_what_sums_may_cost_passes_and_three_times_that_fails(stage: str) -> None:
    made = OPERATION.synth(seqlens=(70,), heads=(1, 1), head_dim=(32, 32), dtype="float32", seed=1)
    exact = stages_of(made, "reference_staged")
    bound = OPERATION.stage_leeway(with_rounded_sums(made), stage, exact)
    assert bound is not None
    assert float(bound.max()) < 1e-4 * float(exact[stage].nan_to_num(0.0).abs().max())
    for factor, passes in ((1.0, True), (3.0, False)):
        moved = (exact[stage] + factor * bound).float()
        assert judged(made, {stage: moved})[stage].passed is passes


# Wide gates.


@pytest.mark.parametrize("span", [1.0, 1e5])
def test_the_exact_stages_are_those_of_the_rounded_sums(span: float) -> None:
    made = OPERATION.synth(seqlens=(65, 3), heads=(1, 2), gate_span=span)
    sums = stages_of(made, "reference_staged")["g_cu"]
    rounded = stages_of(with_rounded_sums(made), "reference_staged")["g_cu"]
    # A sum of differences that fp64 holds to 2^-53 of the largest sum is off by at most 64 of those.
    assert (rounded - sums.float().double()).abs().max() <= 64 * 2**-53 * sums.abs().max()
    assert ((rounded - sums).abs() > 0).any()


def test_linear_gates_become_log_space_ones() -> None:
    made = OPERATION.synth(seqlens=(65,), heads=(1, 1), gate="linear", gate_span=3.0)
    rounded = with_rounded_sums(made)
    assert rounded.conventions["gate"] == "log"
    assert torch.allclose(rounded.tensors["g"], made.tensors["g"].double().log(), atol=1e-6)
    assert made.tensors["g"].dtype == torch.float32


def test_a_closed_gate_counts_as_the_contract_says() -> None:
    made = OPERATION.synth(seqlens=(4,), heads=(1, 1))
    made.tensors["g"][:] = torch.tensor([[0.0], [-torch.inf], [-1.0], [-2.0]])
    assert with_rounded_sums(made).tensors["g"].flatten().tolist() == [0.0, -128.0, -1.0, -2.0]


# Against another kernel.


def test_bit_by_bit_and_within_a_tolerance(call: Call) -> None:
    torchs = stages_of(call, "torch")
    nearly = {name: tensor.clone() for name, tensor in torchs.items()}
    nearly["W"][0, 0, 0] = torchs["W"][0, 0, 0] + 0.25
    for rule, wrong in ((Bitwise(), ["W"]), (Tolerance(0.5), []), (Tolerance(0.01), ["W"])):
        results = judge_stages(OPERATION, call, nearly, rule, torchs)
        assert [result.tensor for result in results if not result.passed] == wrong
    # Without another kernel, the oracle's stages are the other side.
    results = judge_stages(OPERATION, call, {"W": torchs["W"]}, Tolerance(0.01))
    assert [result.passed for result in results] == [True]


def test_both_sides_of_the_bound_are_judged_and_their_difference_is_shown(call: Call) -> None:
    torchs, exact = stages_of(call, "torch"), stages_of(call, "reference_staged")
    exact["h"][0] += 1
    results = judge_stages(OPERATION, call, {"U": torchs["U"], "h": torchs["h"]}, Bound(), {"h": exact["h"]})
    assert [(result.tensor, result.side, result.judged, result.passed) for result in results] == [
        ("U", Side.KERNEL, True, True),
        ("U", Side.AGAINST, False, True),  # the other one does not show it
        ("h", Side.KERNEL, True, True),
        ("h", Side.AGAINST, True, False),
        ("h", Side.DIFFERENCE, False, True),
    ]


def test_an_operation_without_rules_of_its_own_has_the_ratio_alone(call: Call) -> None:
    plain = replace(OPERATION, stage_limit=lambda call, name: None, stage_call=lambda call: call)
    exact = stages_of(call, "reference_staged")
    results = judge_stages(plain, call, {"A": exact["A"] * 1.1}, Bound())
    assert "x torch's" in results[0].reasons[0]


@pytest.mark.parametrize(("ulps", "passes"), [(1, True), (200, False)])
def test_gate_sums_in_another_order(ulps: int, passes: bool) -> None:
    """Gates of -2^-6: torch adds them without rounding, a right kernel may not. 63 additions err by up to 63
    units, and an ULP is one or two."""
    call = OPERATION.synth(seqlens=(64,), heads=(1, 1), head_dim=(16, 16))
    gates = torch.full_like(call.tensors["g"], -(2.0**-6))
    call = Call({**call.tensors, "g": gates}, call.scalars, call.conventions)
    sums = exact_stages(OPERATION, call)["g_cu"].float()
    moved = (sums.view(torch.int32) + ulps).view(torch.float32)
    (result,) = judge_stages(OPERATION, call, {"g_cu": moved}, Bound())
    assert result.yardstick is not None
    assert result.yardstick.rms == 0.0
    assert result.passed is passes, result.reasons
