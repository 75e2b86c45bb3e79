# SPDX-License-Identifier: Apache-2.0
"""swa_decode on SM100 in the simulator: against the oracle, and against itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode import kernel_sm100
from gdnbench_kernels.swa_decode.layouts import ds_mla_parts, empty_ds_mla, read_rows
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM, NOPE_DIM
from gdnbench_kernels.swa_decode.sm100 import launch_of, sm100
from gdnbench_kernels.swa_decode.sm100_plan import PLAN
from gdnbench_kernels.swa_decode.sources import PART_COUNTS
from tests.kernels import swa_calls
from tests.kernels.swa_calls import (
    CALLS,
    DS_MLA,
    FRESH_SCHEDULE,
    LAYOUTS,
    LENS,
    PER_TOKEN,
    Outputs,
    assert_heads_do_not_meet,
    assert_passes,
    assert_spoils_its_own,
    copied,
    made,
    request_of,
    same_outputs,
    with_pages_apart,
    with_stale_entries,
    with_tensors,
)
from tests.subset import quick


def run(call: Call, parts: int | None = None, workers: int | None = None, **settings: Any) -> Outputs:
    return swa_calls.run(sm100, call, {"parts": parts, "workers": workers}, **settings)


@pytest.mark.every(2)
@pytest.mark.every(2)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 1))
@pytest.mark.parametrize("name", quick(CALLS, *range(0, len(CALLS), 3)))
def test_accurate(name: str, layout: str) -> None:
    call = made(cache_layout=layout, **CALLS[name])
    assert_passes(call, run(call))


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"cache_layout": PER_TOKEN, "heads": 128, "scale_dtype": "bfloat16", "sink": None},
            {"cache_layout": DS_MLA, "heads": 64, "sink": None, "output_lse": False},
            {"cache_layout": DS_MLA, "heads": 100},
        ]
    ),
    ids=lambda options: f"{options['cache_layout']}, {options['heads']} heads",
)
def test_other_builds_are_accurate(options: dict[str, Any]) -> None:
    call = made(lens=(128, 17, 0), holes=0.1, **options)
    assert_passes(call, run(call))


@pytest.fixture(scope="module", params=LAYOUTS)
def mixed(request: pytest.FixtureRequest) -> tuple[Call, Outputs]:
    call = made(cache_layout=request.param, lens=(*LENS, 128, 64), holes=0.1, seed=1)
    return call, run(call)


Mixed = tuple[Call, Outputs]


ONE = 0x38
"""1.0 in e4m3."""
SCHEDULES = ("late", *quick(["early"]), "random:1", FRESH_SCHEDULE)


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bits_are_those_of_every_schedule(mixed: Mixed, schedule: str) -> None:
    """Of few CTAs, so that pipelines wrap around."""
    call, outputs = mixed
    assert same_outputs(run(call, parts=2, workers=2, schedule=schedule), outputs)


@pytest.mark.parametrize("schedule", SCHEDULES[1:3])
def test_bits_are_those_of_the_interpreter(mixed: Mixed, schedule: str) -> None:
    """Of the first requests, by one CTA: it is slow."""
    call, outputs = mixed
    few = {name: call.tensors[name][:3] for name in ("q", "swa_indices", "swa_lens")}
    found = run(with_tensors(call, **few), parts=1, workers=1, engine="interpreter", schedule=schedule)
    assert same_outputs(found, {name: tensor[:3] for name, tensor in outputs.items()})


@pytest.mark.every(2)
@pytest.mark.every(2)
@pytest.mark.parametrize("parts", PART_COUNTS)
@pytest.mark.parametrize("workers", quick([1, 3, 20], 1))
def test_bits_are_those_of_any_number_of_ctas(mixed: Mixed, parts: int, workers: int) -> None:
    """20: more than there are items."""
    call, outputs = mixed
    assert same_outputs(run(call, parts=parts, workers=workers), outputs)


@pytest.mark.slow
def test_a_request_alone_has_the_bits_it_has_in_a_batch(mixed: Mixed) -> None:
    call, outputs = mixed
    for row in range(len(call.tensors["q"])):
        found = run(request_of(call, row))
        assert same_outputs(found, {name: tensor[row : row + 1] for name, tensor in outputs.items()})


@pytest.mark.parametrize("value", quick([torch.nan, torch.inf], 0))
def test_heads_of_a_tile_do_not_meet(mixed: Mixed, value: float) -> None:
    """One value of a head's queries is not finite."""
    q = mixed[0].tensors["q"].clone()
    q[:, 3, 100] = value
    assert_heads_do_not_meet(run, mixed, q)


@pytest.mark.parametrize("what", quick(["code", "scale", "infinite scale", "rope"], 1))
def test_a_row_that_is_not_a_number_shows_in_its_own_request_alone(mixed: Mixed, what: str) -> None:
    assert_spoils_its_own(run, mixed, what)


def test_entries_that_do_not_count_may_name_anything(mixed: Mixed) -> None:
    call, outputs = mixed
    assert same_outputs(run(with_stale_entries(call)), outputs)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_may_lie_further_apart(layout: str) -> None:
    call = made(cache_layout=layout, block_size=16, lens=(50, 128))
    assert same_outputs(run(with_pages_apart(call)), run(call))


@pytest.mark.parametrize("factor", quick([1e-39, 1e-41, 1.2e38], 0, 2))
def test_scales_that_have_no_inverse(factor: float) -> None:
    """Below 2^-126 a float32 is subnormal, above 2^126 its inverse is."""
    call = made(cache_layout=PER_TOKEN)
    tensors = call.tensors
    changed = {"inv_scale": torch.full_like(tensors["inv_scale"], factor)}
    if factor > 1.0:  # codes and queries as small as values and scores allow
        changed["cache"] = (tensors["cache"].float() / 448).to(torch.float8_e4m3fn)
        changed["q"] = (tensors["q"] / 1e36).to(torch.bfloat16)
    call = with_tensors(call, **changed)
    assert_passes(call, run(call))


@pytest.mark.slow
def test_negative_scales_are_as_exact() -> None:
    """Both signs give a row's values but for the sign: where one row has all the weight, its bits."""
    call = made(cache_layout=PER_TOKEN, lens=(1,) * 8, sink=None)
    negative = with_tensors(call, inv_scale=-call.tensors["inv_scale"], q=-call.tensors["q"])
    found, other = run(call), run(negative)
    assert torch.equal(found["o"], -other["o"])
    assert torch.equal(found["lse"], other["lse"])


@pytest.mark.parametrize("sink", quick([None, 0.0], 1))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_infinite_scores_are_what_they_are_to_the_oracle(layout: str, sink: float | None) -> None:
    """All of head 3's +inf, all of head 4's -inf."""
    call = made(cache_layout=layout, sink=sink)
    q, cache = call.tensors["q"].clone(), copied(call.tensors["cache"], layout)
    codes = ds_mla_parts(cache)[0] if layout == DS_MLA else cache.view(torch.uint8)
    codes[..., 5] = ONE
    q[:, 3:5] = 0.0
    q[:, 3, 5], q[:, 4, 5] = torch.inf, -torch.inf
    call = with_tensors(call, q=q, cache=cache)
    found = run(call)
    assert_passes(call, found)
    some = call.tensors["swa_lens"] > 0
    assert (found["lse"][some, 3] == torch.inf).all()
    assert (found["lse"][some, 4] == -torch.inf).all()


def test_a_row_alone_is_what_the_cache_says() -> None:
    """One entry has weight 1: o is the row's values, rounded once. All finite codes, under scales of every
    kind: 2^-127 and small ones, whose values are subnormal, to those at which values overflow."""
    block_size, scales = 16, torch.tensor([0, 1, 2, 8, 100, 126, 127, 128, 200, 240, 246])
    finite = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    cache = empty_ds_mla(2, block_size)
    data, bytes_ = ds_mla_parts(cache)
    rows = len(scales)
    for row in range(rows):
        codes = finite.roll(37 * row).repeat(2)[:NOPE_DIM]
        data[row // block_size, row % block_size, :NOPE_DIM] = codes
        bytes_[row // block_size, row % block_size, :GROUPS] = scales.roll(row)[:GROUPS].to(torch.uint8)
    rope = torch.randn(2, block_size, HEAD_DIM - NOPE_DIM).to(torch.bfloat16)
    data[..., NOPE_DIM:] = rope.view(torch.uint8)
    indices = torch.arange(rows, dtype=torch.int32).unsqueeze(1)
    tensors = {
        "q": torch.zeros(rows, 8, HEAD_DIM, dtype=torch.bfloat16),
        "cache": cache,
        "swa_indices": indices,
        "swa_lens": torch.ones(rows, dtype=torch.int32),
        "attn_sink": torch.full((8,), -torch.inf),
    }
    found = run(Call(tensors, {"output_lse": True}, {"cache_layout": DS_MLA, "index_shape": "TW"}))
    wanted = read_rows(cache, None, indices[:, 0], DS_MLA, torch.bfloat16)
    assert (wanted.abs() > 0).sum() > rows * 400
    assert torch.equal(found["o"], wanted.unsqueeze(1).expand(-1, 8, -1))
    assert (found["lse"] == 0).all()


def test_without_requests_nothing_is_launched() -> None:
    call = made(lens=())
    with active() as session, programs_simulated():
        found = sm100(**call.tensors, **call.scalars, **call.conventions)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"o": (0, 8, 512), "lse": (0, 8)}
    assert session.reports == []


@pytest.mark.parametrize(
    ("tokens", "heads", "launch"),
    [
        (1, 64, (4, 1)),
        (1, 128, (4, 2)),
        (37, 64, (4, 37)),
        (38, 64, (2, 38)),
        (74, 64, (2, 74)),
        (75, 8, (1, 75)),
        (256, 64, (1, 148)),
        (256, 128, (1, 148)),
    ],
)
def test_ctas_fill_the_sms_but_no_item_waits_for_another_part(
    tokens: int, heads: int, launch: tuple[int, int]
) -> None:
    assert launch_of(tokens, heads, sms=148) == launch


def test_parts_that_there_are_not() -> None:
    with pytest.raises(ValueError, match=wording("kernels.parts-wrong", known="1, 2, 4", given=3)):
        launch_of(1, 64, 148, parts=3)


def test_the_header_quotes_the_plan() -> None:
    assert PLAN.name == "tcgen05_decode"
    assert f"\n\n{PLAN.tables()}\n\n" in str(kernel_sm100.__doc__), f"the tables are now\n{PLAN.tables()}"
