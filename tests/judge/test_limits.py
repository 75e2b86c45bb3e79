# SPDX-License-Identifier: Apache-2.0
"""The limits of a bound, on tensors whose errors are known by construction: what each sees, and that a kernel
which rounds as torch's does, with other draws, keeps to them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from gdnbench.judge.limits import GAIN, HEAD_GAIN, LARGEST, OF_HEAD, OF_LINE, RMS
from gdnbench.judge.result import TensorResult
from gdnbench.judge.rule import Bound
from gdnbench.judge.tensor import Subject, judge
from gdnbench.record import When
from gdnbench_kernels.contract import Partition, Region
from tests.messages import wording
from tests.seeds import drawn, fresh

BF16 = 2.0**-8
CHUNK = 64


def tokens(*lengths: int) -> Subject:
    """o [T, Hv, V] of sequences of those lengths, in chunks of 64."""
    regions, start = [], 0
    for sequence, length in enumerate(lengths):
        for first in range(0, length, CHUNK):
            stop = min(first + CHUNK, length)
            regions.append(Region(start + first, start + stop, sequence, first // CHUNK, first))
        start += length
    return Subject("o", When.AFTER, Partition(tuple(regions), 1), ("T", "Hv", "V"))


def exact(rows: int, seed: int, heads: int = 2, width: int = 128) -> Tensor:
    return torch.randn(rows, heads, width, dtype=torch.float64, generator=Generator().manual_seed(seed))


def rounded_twice(y: Tensor, seed: int) -> Tensor:
    """y scaled line by line by a factor rounded to bf16, then rounded: as a kernel that keeps a product of a
    line in bf16."""
    factor = torch.empty(*y.shape[:2], 1, dtype=torch.float64)
    factor.uniform_(-BF16 / 2, BF16 / 2, generator=Generator().manual_seed(seed))
    return (y * (1 + factor)).to(torch.bfloat16)


def judged(subject: Subject, x: Tensor, y: Tensor, seed: int = 1) -> TensorResult:
    return judge(subject, x, y, rounded_twice(y, seed), Bound())


def over(result: TensorResult) -> set[str]:
    return {check.what for check in result.held if check.over}


@pytest.mark.parametrize("seed", [0, fresh(drawn("limits"))])
@pytest.mark.parametrize("lengths", [(1,), (5,), (63, 64, 1), (500,), (65, 0, 130, 2), (1,) * 120])
def test_a_kernel_that_rounds_as_torchs_does_passes(lengths: tuple[int, ...], seed: int) -> None:
    """Its errors have the distribution of torch's and are other draws; none fails."""
    subject = tokens(*lengths)
    for draw in range(8):
        y = exact(sum(lengths), seed + draw)
        result = judged(subject, rounded_twice(y, seed + 1000 + draw), y, seed + 2000 + draw)
        assert result.passed, result.reasons


def test_the_floor_is_the_rounding_itself_and_not_its_bound() -> None:
    """Noise of 0.5 % hides below u rms(y) = 0.39 %, twice over; the rounding of y itself is 0.17 %."""
    y = exact(500, 0)
    noise = exact(500, 1) * 5e-3 * y.std()
    rounded = y.to(torch.bfloat16)
    result = judge(tokens(500), (y + noise).to(torch.bfloat16), y, rounded, Bound())
    assert {RMS, OF_HEAD} <= over(result)
    u_rms = BF16 / 2 * float(y.square().mean().sqrt())
    own = result.errors
    assert own is not None
    assert own.rms < 2 * 1.7e-3 + u_rms  # the limit that it would keep to


@pytest.mark.parametrize("gain", [0.004, -0.004])
def test_a_gain_of_one_head_is_seen_below_the_noise(gain: float) -> None:
    y = exact(500, 0)
    scaled = y.clone()
    scaled[:, 1] *= 1 + gain
    result = judged(tokens(500), rounded_twice(scaled, 7), y)
    assert over(result) == {GAIN}
    text = wording("judge.gain-over", count=1, of=2, place="sequence 0 head 1")
    found = re.search(text, result.reasons[0])
    assert found is not None
    assert abs(float(result.reasons[0].split("head 1, ")[1].split("%")[0]) / 100 - gain) < 5e-4


def test_a_gain_of_a_head_over_many_short_sequences_is_seen() -> None:
    """Decode has a line or two of each sequence, too few for a gain of each."""
    lengths = (1,) * 120
    y = exact(120, 0)
    scaled = y.clone()
    scaled[:, 0] *= 1.005
    result = judged(tokens(*lengths), rounded_twice(scaled, 7), y)
    assert HEAD_GAIN in over(result)
    assert GAIN not in over(result)


@pytest.mark.parametrize("equal", [True, False])
def test_equal_lines_are_one_draw_of_a_common_factor(equal: bool) -> None:
    """A weight of a line that is rounded to bf16 is off by up to 2^-8. Requests with one prompt have one such
    error, which no mean makes smaller; those of other requests are other draws."""
    lengths = (1,) * 64
    y = exact(1, 0).expand(64, -1, -1).contiguous() if equal else exact(64, 0)
    subject = replace(tokens(*lengths), line_factors=1)
    result = judge(subject, (y * 1.003).to(torch.bfloat16), y, y.to(torch.bfloat16), Bound())
    assert (HEAD_GAIN in over(result)) is not equal
    twice = judge(subject, (y * 1.008).to(torch.bfloat16), y, y.to(torch.bfloat16), Bound())
    assert HEAD_GAIN in over(twice)


def test_truncation_is_no_rounding() -> None:
    y = exact(500, 0)
    bits = y.float().view(torch.int32) & -(1 << 16)
    truncated = bits.view(torch.float32).to(torch.bfloat16)
    rounded = y.to(torch.bfloat16)
    assert judge(tokens(500), rounded, y, rounded, Bound()).passed
    assert over(judge(tokens(500), truncated, y, rounded, Bound())) >= {GAIN}


def test_a_state_has_no_gain() -> None:
    """One token writes all rows of a state: their errors are not independent."""
    regions = tuple(Region(slot, slot + 1, slot) for slot in range(3))
    subject = Subject("state", When.AFTER, Partition(regions, 1), ("slots", "Hv", "V", "K"))
    y = torch.randn(3, 2, 16, 32, dtype=torch.float64, generator=Generator().manual_seed(0))
    result = judge(subject, y.float(), y, y.float(), Bound())
    assert {check.what for check in result.held} == {RMS, OF_HEAD, OF_LINE, LARGEST}


def test_one_wrong_line_is_named_by_its_token() -> None:
    y = exact(500, 0)
    x = rounded_twice(y, 7)
    x[330, 1] *= 0.9  # 10 % of 1 of 500 tokens: 0.45 % of the head
    result = judged(tokens(100, 400), x, y)
    assert OF_LINE in over(result)
    assert not over(result) & {RMS, OF_HEAD}
    place = "sequence 1 chunk 3 token 230 head 1"
    assert any(
        re.search(wording("judge.line-over", count=1, of=1000, place=place), r) for r in result.reasons
    )
    (line,) = (check for check in result.held if check.what == OF_LINE)
    assert (line.sequence, line.chunk, line.token, line.head) == (1, 3, 230, 1)


def test_small_rows_set_to_zero_are_seen() -> None:
    """Rows of a hundredth of the others' size: zeros in their place are 1 % of the head by RMS."""
    y = exact(500, 0)
    y[100:140] /= 200
    x = rounded_twice(y, 7)
    x[100:140] = 0
    result = judged(tokens(500), x, y)
    assert over(result) == {OF_LINE}


def test_the_first_wrong_chunk_is_told() -> None:
    y = exact(500, 0)
    x = rounded_twice(y, 7)
    x[192:, 1] *= 1.05
    (reason,) = [
        r for r in judged(tokens(500), x, y).reasons if "of (sequence" in r or "(sequence, head)" in r
    ][:1]
    assert re.search(wording("judge.first-chunk", chunk=3, token=192), reason)


def test_a_part_with_a_nan_is_the_worst() -> None:
    y = exact(300, 0)
    x = rounded_twice(y, 7)
    x[150, 1, 3] = torch.nan  # in sequence 1
    x[250:] *= 3  # sequence 2 is far off
    result = judged(tokens(100, 100, 100), x, y)
    (worst, *_) = result.groups
    assert (worst.sequence, worst.chunk, worst.head, worst.nonfinite) == (1, 0, 1, 1)
    (of_head,) = (check for check in result.held if check.what == OF_HEAD)
    assert (of_head.sequence, of_head.head, of_head.over) == (1, 1, True)
    assert any("worst sequence 1 head 1" in reason for reason in result.reasons)


def test_parts_are_ranked_by_error_over_limit() -> None:
    """Head 0 is 1,000 times as large and right; the error of head 1 is the smaller one, and wrong."""
    y = exact(200, 0)
    y[:, 0] *= 1000
    x = rounded_twice(y, 7)
    x[:, 1] *= 1.1
    result = judged(tokens(200), x, y)
    assert result.groups[0].head == 1
    assert result.groups[0].errors.rms < max(group.errors.rms for group in result.groups)


def test_flushed_subnormals_pass() -> None:
    """`.ftz` makes zeros of what is below the smallest normal number."""
    y = exact(64, 0) * 2.0**-128
    x = torch.where(y.abs() < 2.0**-126, 0.0, y).float()
    assert judge(tokens(64), x, y, y.float(), Bound()).passed
