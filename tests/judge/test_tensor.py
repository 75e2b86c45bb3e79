# SPDX-License-Identifier: Apache-2.0
"""The pass rule, on tensors whose errors are known by construction."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from gdnbench.errors import BadInputError
from gdnbench.judge.block_stats import Tolerance
from gdnbench.judge.row_source import Memory
from gdnbench.judge.rule import Bitwise, Bound, make_rule
from gdnbench.judge.tensor import Subject, judge, judge_against_target, show_difference
from gdnbench.record import When
from gdnbench_kernels.contract import Partition, Region
from tests.messages import wording

INF, NAN = math.inf, math.nan


def subject(rows: int = 64, head_axis: int | None = 1, slots: tuple[int, ...] | None = None) -> Subject:
    half = rows // 2
    regions = (Region(0, half, 0, 0, 0), Region(half, rows, 1, 0, 0))
    return Subject("o", When.AFTER, Partition(regions, head_axis), ("T", "Hv", "V"), rows=slots)


def tensors(error: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """An oracle of ones with noise, and two tensors off by exactly `error` and -`error` everywhere."""
    oracle = torch.ones(64, 2, 8, dtype=torch.float64)
    return oracle, (oracle + error).to(dtype), (oracle - error).to(dtype)


@pytest.mark.parametrize(("factor", "passes"), [(0.0, True), (1.9, True), (2.1, False), (50.0, False)])
def test_twice_the_yardsticks_error_is_allowed(factor: float, passes: bool) -> None:
    oracle, yardstick, _ = tensors(2.0**-10)
    # fp32 holds these sums exactly enough: the rounding floor is 2**-24 of ones, 2**-14 of the error.
    candidate = (oracle - factor * 2.0**-10).float()
    result = judge(subject(), candidate, oracle, yardstick, Bound())
    assert result.passed == passes
    if not passes:
        gain = ["gain"] if factor == 50 else []  # 2^-10 x 2.1 is below what a gain may have besides
        assert [reason.split()[0] for reason in result.reasons] == ["RMS", "RMS", *gain, "largest"]


def test_k_by_tensor() -> None:
    oracle, yardstick, _ = tensors(2.0**-10)
    candidate = (oracle - 3 * 2.0**-10).float()
    assert not judge(subject(), candidate, oracle, yardstick, Bound(2.0, {"state": 4.0})).passed
    assert judge(subject(), candidate, oracle, yardstick, Bound(2.0, {"o": 4.0})).passed


def test_one_head_of_one_sequence_fails_alone() -> None:
    oracle, yardstick, candidate = tensors(2.0**-10)
    candidate[40:44, 1] += 4 * 2.0**-10  # 4 of 32 rows: RMS over the head 1.8 x, hidden in the whole
    yardstick[:32] = (oracle + 2 * 2.0**-10).float()[:32]
    candidate[40:44, 1] += 2.0**-10
    yardstick[0, 0, 0] += 0.1  # so that the largest error is no help
    result = judge(subject(), candidate, oracle, yardstick, Bound(k=1.5))
    assert len(result.reasons) == 1
    assert re.search(wording("judge.rms-over", count=1, of=4, sequence=1, head=1), result.reasons[0])


def test_one_wild_element_fails_by_its_size_alone() -> None:
    oracle, yardstick, candidate = tensors(2.0**-10)
    candidate[50, 0, 3] += 8 * 2.0**-10  # RMS over 256 elements of the head grows by a fifth
    result = judge(subject(), candidate, oracle, yardstick, Bound())
    assert len(result.reasons) == 1
    assert result.reasons[0].startswith("largest error")
    assert "[50, 0, 3] (sequence 1, chunk 0, token 18, head 0, V 3)" in result.reasons[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_correctly_rounded_result_passes_even_against_a_perfect_yardstick(dtype: torch.dtype) -> None:
    """The floor is what rounding costs; the next value further away does not pass by it."""
    generator = torch.Generator().manual_seed(0)
    oracle = torch.randn(64, 2, 8, dtype=torch.float64, generator=generator)
    rounded = oracle.to(dtype)
    perfect = Bound(k=0.0)
    assert judge(subject(), rounded, oracle, rounded, perfect).passed
    two_off = (oracle * (1 + 2 * torch.finfo(dtype).eps)).to(dtype)
    assert not judge(subject(), two_off, oracle, rounded, perfect).passed
    # A yardstick in fp64, as one that was moved with the exact result by a leeway, takes no rounding away.
    assert judge(subject(), rounded, oracle, oracle, perfect).passed
    assert not judge(subject(), two_off, oracle, oracle, perfect).passed


def test_subnormals_have_a_floor() -> None:
    oracle = torch.full((64, 2, 8), 2.0**-134 * 0.5, dtype=torch.float64)  # half of bf16's smallest subnormal
    candidate = torch.zeros(64, 2, 8, dtype=torch.bfloat16)
    assert judge(subject(), candidate, oracle, candidate.clone(), Bound(k=0.0)).passed


# oracle, torch, kernel: the table in gdnbench/diff/judge.py, line by line; fp16 overflows past 65504.
ALLOWED = [
    (NAN, NAN, NAN),
    (NAN, NAN, INF),
    (NAN, 1.0, -INF),
    (INF, INF, INF),
    (-INF, 3.0, -INF),
    (INF, NAN, NAN),
    (1e6, INF, INF),
    (1e6, 65504.0, 65504.0),
    (1e6, NAN, NAN),
    (-1e6, 65504.0, -INF),
    (1.0, NAN, 5.0),
    (1.0, INF, NAN),
    (1.0, 1.0, 1.0),
]
REFUSED = [
    (NAN, NAN, 1.0),
    (NAN, 1.0, 1.0),
    (INF, INF, -INF),
    (INF, INF, NAN),
    (INF, INF, 65504.0),
    (INF, 1.0, 1.0),
    (1e6, INF, -INF),
    (1e6, INF, 65504.0),
    (1.0, 1.0, NAN),
    (1.0, 1.0, INF),
]


def judged_at(
    oracle: float, yardstick: float, kernel: float, row: int = 7
) -> tuple[bool, int, tuple[str, ...]]:
    """One element of these values among ones."""
    three = [torch.ones(64, 2, 8, dtype=dtype) for dtype in (torch.float64, torch.float16, torch.float16)]
    for tensor, value in zip(three, (oracle, yardstick, kernel), strict=True):
        tensor[row, 1, 2] = value
    result = judge(subject(), three[2], three[0], three[1], Bound())
    return result.passed, result.excluded, result.reasons


@pytest.mark.parametrize(("oracle", "yardstick", "kernel"), ALLOWED)
def test_non_finite_allowed(oracle: float, yardstick: float, kernel: float) -> None:
    passed, excluded, reasons = judged_at(oracle, yardstick, kernel)
    assert passed, reasons
    only_torch = oracle == 1.0 and not math.isfinite(yardstick)
    assert excluded == int(only_torch)


@pytest.mark.parametrize(("oracle", "yardstick", "kernel"), REFUSED)
def test_non_finite_refused(oracle: float, yardstick: float, kernel: float) -> None:
    passed, _, reasons = judged_at(oracle, yardstick, kernel)
    assert not passed
    assert "first [7, 1, 2] (sequence 0, chunk 0, token 7, head 1, V 2)" in reasons[0]


def test_non_finite_padding_is_ignored() -> None:
    regions = Partition((Region(0, 60, 0, 0, 0),), 1)
    padded = Subject("o", When.AFTER, regions, ("T", "Hv", "V"))
    oracle, yardstick, candidate = tensors(0.0)
    candidate[60:], oracle[62:], yardstick[61:] = NAN, INF, NAN
    result = judge(padded, candidate, oracle, yardstick, Bound())
    assert result.passed, result.reasons
    assert result.excluded == 0
    assert result.elements == 60 * 16


def test_shape_and_dtype_must_match() -> None:
    oracle, yardstick, candidate = tensors(0.0)
    assert judge(subject(), candidate[:63], oracle, yardstick, Bound()).reasons == (
        "shape [63, 2, 8] against [64, 2, 8]",
    )
    assert judge(subject(), candidate.half(), oracle, yardstick, Bound()).reasons == (
        "dtype float16 against float32",
    )


def test_bitwise_sees_a_sign_of_zero_but_no_payload() -> None:
    x, y = torch.zeros(64, 2, 8), torch.zeros(64, 2, 8)
    x[0], y[0] = NAN, -NAN
    assert judge_against_target(subject(), Memory(x), Memory(y), Bitwise()).passed
    x[9, 1, 1] = -0.0
    result = judge_against_target(subject(), Memory(x), Memory(y), Bitwise())
    assert re.match(
        wording("judge.bits-differ", count="1 of 1024 elements", worst="[9, 1, 1]"), result.reasons[0]
    )


def test_tolerance_and_non_finite() -> None:
    x, y = torch.ones(64, 2, 8), torch.ones(64, 2, 8)
    x[5, 0, 0] = 1.2
    assert judge_against_target(subject(), Memory(x), Memory(y), Tolerance(0.1, 0.11)).passed
    assert not judge_against_target(subject(), Memory(x), Memory(y), Tolerance(0.1)).passed
    x[5, 0, 0] = NAN
    result = judge_against_target(subject(), Memory(x), Memory(y), Tolerance(1e9))
    assert re.search(wording("judge.nonfinite-one-side", first="[5, 0, 0]"), result.reasons[0])


def test_a_shown_difference_decides_nothing() -> None:
    x, y = torch.ones(64, 2, 8), torch.zeros(64, 2, 8)
    result = show_difference(subject(), Memory(x), Memory(y))
    assert result.passed
    assert not result.judged
    assert result.errors is not None
    assert result.errors.max_abs == 1.0


def test_slots_are_named_as_the_caller_knows_them() -> None:
    x, y = torch.ones(64, 2, 8), torch.ones(64, 2, 8)
    x[3, 1, 2] = 2.0
    slots = tuple(range(100, 164))
    result = judge_against_target(subject(slots=slots), Memory(x), Memory(y), Bitwise())
    assert result.worst is not None
    assert result.worst.at.index == (103, 1, 2)


def test_rules_contradict_or_make_no_sense() -> None:
    with pytest.raises(BadInputError, match=wording("judge.bitwise-or-tol")):
        make_rule(tol=(1.0, 0.0), bitwise=True)
    with pytest.raises(BadInputError, match=wording("judge.tol-negative", abs=-1)):
        make_rule(tol=(-1.0, 0.0))
    for number in (NAN, math.inf):
        with pytest.raises(BadInputError, match=wording("judge.k-infinite", k=number)):
            make_rule(k=number)
        with pytest.raises(BadInputError, match=wording("judge.k-infinite", k=number)):
            make_rule(k_by_tensor={"o": number})
        with pytest.raises(BadInputError, match=wording("judge.tol-infinite", abs=0, rel=number)):
            make_rule(tol=(0.0, number))
        with pytest.raises(BadInputError, match=wording("judge.tol-infinite", abs=number)):
            make_rule(tol=(number, 0.0))
    with pytest.raises(BadInputError, match=wording("judge.k-negative", k=-3)):
        make_rule(k_by_tensor={"o": -3.0})
    with pytest.raises(BadInputError, match=wording("judge.k-unused", output="p")):
        make_rule(k_by_tensor={"p": 3.0})
    with pytest.raises(BadInputError, match=wording("judge.k-without-oracle")):
        make_rule(k=2.0, tol=(1.0, 0.0))


@pytest.mark.parametrize("shape", [(5, 0, 8), (5, 2, 0)])
def test_no_heads_or_no_elements_pass(shape: tuple[int, ...]) -> None:
    """There is no element that could be wrong."""
    nothing = torch.zeros(shape)
    part = Partition((Region(0, 5, 0, 0, 0),), 1)
    with_grid = Subject("o", When.AFTER, part, ("T", "Hv", "V"), grid=True)
    assert judge(with_grid, nothing, nothing.double(), nothing, Bound()).passed
