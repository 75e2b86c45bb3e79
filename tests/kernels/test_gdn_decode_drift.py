# SPDX-License-Identifier: Apache-2.0
"""Errors over many tokens: what they are measured on, what the rule calls growth, and which kernels fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from gdnbench.errors import Exit
from gdnbench.replay.kernels import load_function
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_decode.contract import OPERATION
from gdnbench_kernels.gdn_decode.drift import Curve, faults, growth_exponent, rms_by_stretch, rollout_states
from gdnbench_kernels.gdn_prefill.contract import OPERATION as PREFILL
from gdnbench_kernels.run import run_kernel
from tests.seeds import drawn

FAULTY = Path(__file__).with_name("faulty_gdn_decode.py")
EPS = 2.0**-24


@pytest.fixture
def drift(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("drift_gdn_decode")


@pytest.mark.parametrize("per_call", [1, 3, 8])
def test_states_are_those_of_one_prefill(drift: ModuleType, per_call: int) -> None:
    """The oracle's state after 29 tokens, carried from call to call, against the prefill oracle's."""
    tokens = drift.captured(29, slow=8.0)
    oracle = drift.stepper(drift.load("reference", OPERATION), "cpu")
    found = list(rollout_states(oracle, tokens, per_call, torch.float64))
    assert len(found) == 29
    raw = {name: tensor.unsqueeze(0) for name, tensor in tokens.by_token.items()}
    pool = {"state": tokens.state.unsqueeze(0), "state_indices": torch.zeros(1, 29, dtype=torch.int32)}
    whole = Call({**raw, **tokens.shared, **pool}, tokens.scalars, tokens.conventions)
    # The same recurrence in one call; carried in fp64 either way, so the same operations in the same order.
    assert found[-1].equal(run_kernel(OPERATION, "reference", whole)["state"][0])
    # And the prefill oracle, whose gates are converted to fp32: relative errors of 2^-24 a token in g (which
    # sums to some 100) and beta, over 29 tokens.
    log = OPERATION.convert(whole, {"gate": "log"})
    rows = {name: log.tensors[name][0] for name in ("q", "k", "v", "g", "beta")}
    scalars = {"beta_max": 1.0}
    prefill = Call(
        {**rows, "cu_seqlens": torch.tensor([0, 29])},
        scalars,
        {"gate": "log", "state_layout": "VK", "qk": "raw"},
    )
    expected = run_kernel(PREFILL, "reference", prefill)["final_state"][0]
    span = float(rows["g"].abs().sum(0).max())
    assert (found[-1] - expected).norm() < (span + 29) * EPS * expected.norm()


def test_the_captured_gates_are_those_of_the_model(drift: ModuleType) -> None:
    with drift.open_store(drift.CAPTURE) as store:
        before = store.records[drift.RECORD].before
        g, beta = (before[name].read()[:256].double() for name in ("g", "beta"))
    tokens = drift.captured(256, slow=1.0)
    given = {name: tensor.unsqueeze(0) for name, tensor in tokens.by_token.items()}
    slots = torch.zeros(1, 256, dtype=torch.int32)
    call = Call(
        {**given, **tokens.shared, "state": tokens.state.unsqueeze(0), "state_indices": slots},
        tokens.scalars,
        tokens.conventions,
    )
    OPERATION.validate(call)
    made = OPERATION.convert(call, {"gate": "log"}).tensors
    # a and b are rounded to bf16, by 2^-8 of themselves. The slope of sigmoid is at most 1/4, that of
    # softplus is 1 - exp(-softplus) <= softplus = |g|; it may be e^(20.5 2^-8) = 1.08 times as much within
    # the rounding, |a| being 20.5 at most. g and beta are then fp32, of a few operations of 2^-24 each.
    a, b = (tokens.by_token[name].double().abs() for name in ("g", "beta"))
    assert float(a.max()) <= 20.5
    assert ((made["beta"][0].double() - beta).abs() <= b * 2**-8 / 4 + 2**-22).all()
    assert ((made["g"][0].double() - g).abs() <= (1.08 * a * 2**-8 + 2**-22) * g.abs()).all()
    # The point of it: beta is no bf16 number.
    assert not made["beta"].equal(made["beta"].bfloat16().float())


def test_states_of_a_dtype_that_no_pool_has_are_a_wrong_argument(
    drift: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Tensor` is in torch, and is no dtype."""
    monkeypatch.setattr("sys.argv", ["drift", "--kernel", "torch", "--on", "cpu", "--states", "Tensor"])
    assert drift.main() is Exit.BAD_INPUT
    assert capsys.readouterr().err == "error: --states has 'Tensor'; there are float32, bfloat16\n"


def made_curve(by_head: Tensor) -> Curve:
    return Curve(by_head.square().mean(1).sqrt(), by_head)


def test_roundings_of_one_side_grow_by_half_a_power() -> None:
    """Sums of t random signs go like t^(1/2), of t equal ones like t; noise of a tenth is on both."""
    generator = torch.Generator().manual_seed(drawn("drift", 31))
    t = torch.arange(1, 257, dtype=torch.float64)
    noise = [1 + 0.1 * torch.randn(256, generator=generator, dtype=torch.float64) for _ in range(3)]
    like_torch, other, leaning = 1e-8 * t.sqrt() * noise[0], 1e-8 * t.sqrt() * noise[1], 2e-9 * t * noise[2]
    # Over stretches of 16 of 256 tokens: the mean of 16 draws of 0.1, hence 0.035 for a ratio's log, over
    # logs of t that spread by 0.71 at 16 points: the slope is off by 0.035 / (0.71 * 4) = 0.012; 5 times it.
    # Stretches are not points in t: sqrt(mean t^2) over the first is 9.7 against 8.5, which adds 0.05.
    assert abs(growth_exponent(rms_by_stretch(other), rms_by_stretch(like_torch))) < 0.06
    assert abs(growth_exponent(rms_by_stretch(leaning), rms_by_stretch(like_torch)) - 0.5) < 0.11
    yardstick = made_curve(like_torch.unsqueeze(1))
    assert faults(made_curve(other.unsqueeze(1)), yardstick, EPS) == []
    (whole, head) = faults(made_curve(leaning.unsqueeze(1)), yardstick, 1.0)
    assert whole.startswith("state: error from ")
    assert head.startswith("state of head 0: error from ")


def test_one_head_cannot_hide_behind_the_others() -> None:
    right = torch.full((64, 32), 1e-7, dtype=torch.float64)
    wrong = right.clone()
    wrong[40, 5] = 4e-6  # one token of one head: over its stretch 1e-6
    found = faults(made_curve(wrong), made_curve(right), EPS)
    assert [line.split(",")[0] for line in found if "head" in line] == ["state of head 5"]
    assert "tokens from 32: error 1e-06 over 2.6e-07 = 2 x torch's 1e-07" in found[-1]


def test_nan_is_a_fault() -> None:
    right = torch.full((32, 2), 1e-7, dtype=torch.float64)
    wrong = right.clone()
    wrong[20, 1] = torch.nan
    assert any("head 1" in line for line in faults(made_curve(wrong), made_curve(right), EPS))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("kernel", "slow", "passes"),
    [("correct", 1.0, True), ("correct", 64.0, True), ("rounds_beta", 1.0, False), ("leans", 64.0, False)],
)
def test_256_tokens_of_a_trained_model(drift: ModuleType, kernel: str, slow: float, passes: bool) -> None:
    """beta in bf16 is off by up to 2^-8 in every token; roundings that lean pile up where gates are slow."""
    found = load_function(f"{FAULTY}:{kernel}")
    mine, theirs = drift.curves(found, "cpu", drift.captured(256, slow), 1, torch.float32)
    assert len(mine.whole) == 256
    assert (faults(mine, theirs, EPS) == []) is passes
