# SPDX-License-Identifier: Apache-2.0
"""The merge of split attention in the simulator, against fp64 and the bound in its header."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.partials import Partials
from tests.subset import quick

PLAIN = LseForm("2", "without", "minus_inf")
U = 2.0**-24
INF, NAN = torch.inf, torch.nan


def merged(
    o_part: Tensor,
    lse_part: Tensor,
    sink: Tensor | None,
    form: LseForm,
    arch: str = "sm_90a",
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    rows = lse_part.shape[1]
    o = torch.full((rows, HEAD_DIM), NAN, dtype=torch.bfloat16)
    lse = torch.full((rows,), NAN)
    with active(Settings(check=True, **settings)) as session, programs_simulated():
        Partials(o_part, lse_part).merge(arch, sink, o, lse, form)
    assert [finding for report in session.reports for finding in report.findings] == []
    return o, lse


def exact(o_part: Tensor, lse_part: Tensor, sink: Tensor | None, with_sink: bool) -> tuple[Tensor, Tensor]:
    """o and lse in base 2, fp64, by direct sums."""
    log2e = torch.tensor(1.0, dtype=torch.float64).exp().log2()
    rows = lse_part.shape[1]
    logits = lse_part.double()
    if sink is not None:
        logits = torch.cat([logits, (sink.double() * log2e).repeat(rows // len(sink)).unsqueeze(0)])
    top = logits.amax(0)
    top = top.where(top != -INF, 0.0)
    weights = (logits - top).exp2().where(logits != INF, 1.0).where((top != INF) | (logits == INF), 0.0)
    n = len(lse_part)
    read = o_part.double().masked_fill((lse_part == -INF).unsqueeze(-1), 0.0)
    share = (weights[:n] / weights.sum(0)).nan_to_num(0.0)
    o = (share.unsqueeze(-1) * read).sum(0)
    used = logits if with_sink else logits[:n]
    peak = used.amax(0)
    finite = peak.where(peak.isfinite(), 0.0)
    return o, finite + (used - finite).exp2().sum(0).log2()


def sizes(sink: Tensor | None, rows: int) -> Tensor:
    """|sink| in base 2 of each row, 0 where it is infinite."""
    if sink is None:
        return torch.zeros(rows, dtype=torch.float64)
    found = sink.double().abs().nan_to_num(0, 0, 0) / torch.tensor(2.0, dtype=torch.float64).log()
    return found.repeat(rows // len(sink))


def bound_of_o(o_part: Tensor, lse_part: Tensor, sink: Tensor | None, o: Tensor) -> Tensor:
    """The header's."""
    n, rows = lse_part.shape
    largest = o_part.double().masked_fill((lse_part == -INF).unsqueeze(-1), 0.0).abs().amax(0)
    rest = U * (18 + 1.74 * n + 1.4 * sizes(sink, rows)).unsqueeze(-1) * largest
    return rest + 2.0**-8 * (o.abs() + rest)


def bound_of_lse(lse_part: Tensor, sink: Tensor | None, lse: Tensor) -> Tensor:
    """In base 2. By the header's reasons the sum of weights has a relative error of (15 + 0.37 n + 1.4 S) u,
    which log2 divides by ln 2; lg2.approx errs by 2^-22, or by 2^-22 of its value, which is below 6; the
    reference is added, and a factor may follow: two roundings."""
    n, rows = lse_part.shape
    return U * (2 * lse.abs() + (15 + 0.37 * n + 1.4 * sizes(sink, rows)) / 0.693 + 4 * 6)


def parts(n: int, rows: int, spread: float, holes: float, seed: int) -> tuple[Tensor, Tensor]:
    """Partial outputs and lse; what a split without entries leaves is NaN."""
    generator = torch.Generator().manual_seed(seed)
    lse = spread * (2 * torch.rand(n, rows, generator=generator) - 1)
    lse[torch.rand(n, rows, generator=generator) < holes] = -INF
    o = torch.randn(n, rows, HEAD_DIM, generator=generator)
    o[lse == -INF] = NAN
    return o, lse


CASES: dict[str, tuple[int, float, float, list[float] | None]] = {
    "two equal": (2, 0.0, 0.0, [0.0, -1.0]),
    "nine, a spread of 2^10": (9, 5.0, 0.0, None),
    "32 over 2^200": (32, 100.0, 0.3, [3.0, -5.0]),
    "eight, most of them empty": (8, 3.0, 0.8, [2.0, 40.0]),
    "all empty": (5, 1.0, 1.0, [1.0, -INF]),
    "a sink far above": (3, 3.0, 0.1, [1e4, 90.0]),
    "infinite sinks": (3, 3.0, 0.1, [INF, -INF]),
    "one split": (1, 3.0, 0.3, [0.5, -0.5]),
}


@pytest.mark.parametrize("name", quick(CASES, 2, 3))
def test_within_the_bound(name: str) -> None:
    n, spread, holes, sinks = CASES[name]
    o_part, lse_part = parts(n, 6, spread, holes, seed=n)
    sink = None if sinks is None else torch.tensor(sinks)
    o, lse = merged(o_part, lse_part, sink, PLAIN)
    wanted, wanted_lse = exact(o_part, lse_part, sink, with_sink=False)
    assert ((o.double() - wanted).abs() <= bound_of_o(o_part, lse_part, sink, wanted)).all()
    nothing = wanted_lse == -INF
    assert torch.equal(lse == -INF, nothing)
    assert (o[nothing] == 0).all()
    bound = bound_of_lse(lse_part, sink, wanted_lse)
    assert ((lse.double() - wanted_lse).abs() <= bound)[~nothing].all()


FORMS = [
    LseForm("e", "without", "minus_inf"),
    LseForm("e", "with", "minus_inf"),
    LseForm("2", "with", "plus_inf"),
    LseForm("e", "without", "plus_inf"),
]


@pytest.mark.parametrize("form", quick(FORMS, 2, ids=[str(i) for i in range(len(FORMS))]))
def test_the_form_of_lse(form: LseForm) -> None:
    """Sinks that are absent, among the scores, and far above them; a row attends to nothing."""
    sink = torch.tensor([-INF, 2.0, 300.0])
    o_part, lse_part = parts(4, 6, 3.0, 0.3, seed=7)
    lse_part[:, 0], lse_part[:, 4] = -INF, -INF
    o_part[:, (0, 4)] = NAN
    _, lse = merged(o_part, lse_part, sink, form)
    _, wanted = exact(o_part, lse_part, sink, with_sink=form.sink == "with")
    bound = bound_of_lse(lse_part, sink, wanted)
    if form.base == "e":  # of smaller values: the bound holds all the more
        wanted = wanted * torch.log(torch.tensor(2.0, dtype=torch.float64))
    if form.empty == "plus_inf":
        wanted = wanted.where(wanted != -INF, INF)
    infinite = wanted.isinf()
    assert infinite[0]
    assert torch.equal(lse[infinite].double(), wanted[infinite])
    assert ((lse.double() - wanted).abs() <= bound)[~infinite].all()


def test_a_part_that_is_no_number_shows_in_its_row_alone() -> None:
    o_part, lse_part = parts(3, 4, 2.0, 0.0, seed=1)
    sink = torch.tensor([0.0, 1.0])
    clean = merged(o_part, lse_part, sink, PLAIN)
    o_part[1, 2], lse_part[1, 2] = NAN, NAN
    o, lse = merged(o_part, lse_part, sink, PLAIN)
    assert o[2].isnan().all()
    assert lse[2].isnan()
    others = [0, 1, 3]
    assert torch.equal(o[others], clean[0][others])
    assert torch.equal(lse[others], clean[1][others])


@pytest.mark.parametrize(
    "settings", [{"schedule": "early"}, {"schedule": "random:3"}, {"engine": "interpreter"}]
)
def test_bits_are_those_of_every_schedule_and_engine(settings: dict[str, str]) -> None:
    o_part, lse_part = parts(9, 2, 3.0, 0.3, seed=2)
    sink = torch.tensor([0.0])
    one, other = (merged(o_part, lse_part, sink, PLAIN, **some) for some in ({}, settings))
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
