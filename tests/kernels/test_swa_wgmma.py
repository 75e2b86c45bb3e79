# SPDX-License-Identifier: Apache-2.0
"""swa_decode by wgmma in the simulator: against the oracle, against itself; its plan, its machine code.

    gdnbench compile --json --op swa_decode --kernel wgmma --arch sm_90a > swa_wgmma_budget.json

records in this folder what it takes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.messages import wording

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.compile import compile_programs, sources_of
from gdnbench.kernel_figures import figures, limits, problems
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.plan import SMEM_LIMIT, PlanError
from gdnbench_kernels.swa_decode import kernel_sm90, sm90_plan
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm90_plan import ROWS, Tuning, plan, row_bytes, staged_heads
from gdnbench_kernels.swa_decode.wgmma import wgmma, workers_of
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
    made,
    same_outputs,
    with_pages_apart,
    with_stale_entries,
)
from tests.subset import quick

HERE = Path(__file__).parent
SOME_ROWS = (64, *(pytest.param(rows, marks=pytest.mark.slow) for rows in ROWS[:-1]))
TWO_WORKERS = {"workers": 2}
"""So that a CTA has several items."""


def run(call: Call, options: dict[str, Any] | None = None, **settings: Any) -> Outputs:
    return swa_calls.run(wgmma, call, TWO_WORKERS if options is None else options, **settings)


@pytest.mark.every(2)
@pytest.mark.every(2)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 1))
@pytest.mark.parametrize("name", quick(CALLS, *range(0, len(CALLS), 3)))
def test_accurate(name: str, layout: str) -> None:
    call = made(cache_layout=layout, **CALLS[name])
    assert_passes(call, run(call))


@pytest.mark.parametrize(
    "lens",
    quick(
        [((0, 128, 0, 5, 0, 128, 128, 0, 0),), ((128,) * 9,), ((0, 0),)], 0, ids=["mixed", "full", "empty"]
    ),
)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 1))
def test_many_items_of_one_cta(layout: str, lens: tuple[int, ...]) -> None:
    """Every stage and mbarrier is used again, with items that attend to nothing first, between and last."""
    call = made(cache_layout=layout, lens=lens, holes=0.1)
    assert_passes(call, run(call, {"workers": 1}, schedule=f"random:{swa_calls.FRESH}"))


@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
def test_lengths_past_the_window_and_below_none(layout: str) -> None:
    """A length of more than W is W, one below 0 is 0, to the bit."""
    call = made(cache_layout=layout, lens=(100, 0, 3), window=100)
    wrong = swa_calls.with_tensors(call, swa_lens=torch.tensor([2**31 - 1, -(2**31), 3], dtype=torch.int32))
    assert same_outputs(run(wrong), run(call))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_of_nothing_and_far_from_contiguous(layout: str) -> None:
    """Zeros, and the least of bfloat16 beside zeros: powers of two that queries are scaled by have ends."""
    call = made(cache_layout=layout, lens=(128, 3))
    q = torch.empty(8, 2, 512, dtype=torch.bfloat16).transpose(0, 1).copy_(call.tensors["q"])
    q[:, 0] = 0
    q[:, 1] *= 2.0**-120
    q[:, 2] = 0
    q[:, 2, 511] = 2.0**-126
    call = swa_calls.with_tensors(call, q=q)
    assert not q.is_contiguous()
    assert_passes(call, run(call))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"cache_layout": PER_TOKEN, "heads": 128, "scale_dtype": "bfloat16", "sink": None, "lens": (128, 0)},
        {"cache_layout": DS_MLA, "heads": 64, "sink": None, "output_lse": False},
    ],
    ids=lambda options: f"{options['cache_layout']}, {options['heads']} heads",
)
def test_other_builds_are_accurate(options: dict[str, Any]) -> None:
    call = made(**{"lens": (128, 17, 0), "holes": 0.1, **options})
    assert_passes(call, run(call, {"rows": 64, "workers": 1}))


@pytest.fixture(scope="module", params=LAYOUTS)
def mixed(request: pytest.FixtureRequest) -> tuple[Call, Outputs]:
    call = made(cache_layout=request.param, lens=(*LENS, 128, 64), holes=0.1, seed=1)
    return call, run(call)


Mixed = tuple[Call, Outputs]


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", ["early", "random:1", FRESH_SCHEDULE])
def test_bits_are_those_of_every_schedule(mixed: Mixed, schedule: str) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, schedule=schedule), outputs)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["late", FRESH_SCHEDULE])
def test_bits_are_those_of_the_other_engine(mixed: Mixed, schedule: str) -> None:
    """Three requests, by one CTA, so that stages are used again: the interpreter is slow."""
    call, outputs = mixed
    few = {name: call.tensors[name][:3] for name in ("q", "swa_indices", "swa_lens")}
    found = run(swa_calls.with_tensors(call, **few), {"workers": 1}, engine="interpreter", schedule=schedule)
    assert same_outputs(found, {name: tensor[:3] for name, tensor in outputs.items()})


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_are_those_of_any_number_of_heads_a_cta(layout: str) -> None:
    """40 heads are no multiple of 16, 32 or 64."""
    call = made(cache_layout=layout, heads=40, holes=0.1, lens=(128, 0, 17))
    found = [run(call, {"rows": rows, "workers": 2}) for rows in ROWS]
    assert_passes(call, found[0])
    assert same_outputs(found[0], found[1])
    assert same_outputs(found[0], found[2])


@pytest.mark.parametrize(
    "tuning",
    quick([{"workers": 1}, {"workers": 7}, {"prefetch": 0, "workers": 2}, {"prefetch": 2, "workers": 2}], 1),
    ids=str,
)
def test_bits_are_those_of_any_tuning(mixed: Mixed, tuning: dict[str, int]) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, tuning), outputs)


def test_a_request_alone_has_the_bits_it_has_in_a_batch(mixed: Mixed) -> None:
    call, outputs = mixed
    for row in range(len(call.tensors["q"])):
        found = run(swa_calls.request_of(call, row))
        assert same_outputs(found, {name: tensor[row : row + 1] for name, tensor in outputs.items()})


@pytest.mark.every(2)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
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


def test_without_requests_nothing_is_launched() -> None:
    call = made(lens=())
    with active() as session, programs_simulated():
        found = wgmma(**call.tensors, **call.scalars, **call.conventions)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"o": (0, 8, 512), "lse": (0, 8)}
    assert session.reports == []


@pytest.mark.slow  # test_takes_what_its_plan_says has the figures of a build
@pytest.mark.parametrize("layout", [CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA])
def test_what_is_launched_is_as_planned(layout: CacheLayout) -> None:
    """Few requests: 16 heads a CTA, of each request three. Then no more CTAs than workers."""
    call = made(lens=(3, 0), heads=40, cache_layout=layout.value)
    for workers, ctas in ((None, 6), (4, 4)):
        with active() as session, programs_simulated():
            wgmma(**call.tensors, **call.scalars, **call.conventions, workers=workers)
        (launch,) = session.reports[0].launches
        planned = plan(layout, Tuning(rows=16))
        assert (launch.grid, launch.block, launch.shared_bytes) == (
            (ctas, 1, 1),
            (planned.threads, 1, 1),
            planned.smem_bytes,
        )


@pytest.mark.parametrize(
    ("items", "sms", "workers"),
    [(5, 132, 5), (132, 132, 132), (133, 132, 67), (192, 132, 96), (512, 132, 128)],
)
def test_ctas_have_equal_work(items: int, sms: int, workers: int) -> None:
    assert workers_of(items, sms) == workers


def test_the_header_quotes_the_plan() -> None:
    tables = plan(CacheLayout.FP8_DS_MLA, Tuning()).tables()
    assert f"\n\n{tables}\n\n" in str(kernel_sm90.__doc__), f"the tables are now\n{tables}"
    assert f"s_rows is {row_bytes(CacheLayout.PER_TOKEN_SCALE)} bytes" in str(kernel_sm90.__doc__)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", [CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA])
def test_every_plan_fits(layout: CacheLayout, rows: int) -> None:
    planned = plan(layout, Tuning(rows=rows))
    assert planned.smem_bytes <= SMEM_LIMIT
    # o over a window: the bulk copies' rows, 1 KiB of bf16 each, in a stage of 128 rows of the window.
    assert staged_heads(layout, rows) * 1040 <= planned.buffer("s_rows").stage_bytes
    assert staged_heads(layout, rows) == (56 if (layout, rows) == (CacheLayout.FP8_DS_MLA, 64) else rows)


def test_a_third_window_is_over_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sm90_plan, "STAGES", 3)
    with pytest.raises(
        PlanError,
        match="wgmma_decode: "
        + wording("kernels.plan-shared-memory", ctas=1, bytes=re.compile(r"29\d+"), limit=232448),
    ):
        plan(CacheLayout.PER_TOKEN_SCALE, Tuning())


@pytest.mark.parametrize("rows", ROWS)
def test_registers_of_all_roles_are_those_of_an_sm(rows: int) -> None:
    """The register file is dealt to warpgroups in multiples of 8 a thread; 384 threads start with 168."""
    tuning = Tuning(rows=rows)
    assert 2 * tuning.multiply_registers + tuning.load_registers == 3 * 168
    assert tuning.load_registers % 8 == tuning.multiply_registers % 8 == 0
    assert 24 <= tuning.load_registers <= 240


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"rows": 48}, wording("kernels.rows-wrong", known="16, 32, 64", given=48)),
        ({"prefetch": 9}, wording("kernels.prefetch-range", given=9)),
    ],
)
def test_a_tuning_that_there_is_not_is_refused(option: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(Tuning(), **option)


def compiled(**options: Any) -> Program:
    _, sources = sources_of("swa_decode", "wgmma")
    (program,) = compile_programs(sources, options, "sm_90a", lambda *_: None)
    return program


def test_within_the_budget() -> None:
    budget = json.loads((HERE / "swa_wgmma_budget.json").read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("swa_decode", "wgmma", "sm_90a")
    assert problems([figures(compiled(**budget["options"]))], budget) == []


@pytest.mark.parametrize("rows", SOME_ROWS)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
def test_takes_what_its_plan_says(layout: str, rows: int) -> None:
    figure = figures(compiled(cache_layout=layout, rows=rows))
    planned = plan(CacheLayout(layout), Tuning(rows=rows))
    assert (figure.smem, figure.threads, figure.tmem_columns) == (planned.smem_bytes, planned.threads, 0)
    assert limits(figure) == []
    assert figure.registers * figure.threads <= 65536


@pytest.mark.parametrize("rows", SOME_ROWS)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
def test_products_are_as_many_as_the_header_says(layout: str, rows: int) -> None:
    """A warpgroup of product 1: 64 entries, 512 features in steps of 16. Of product 2: 256 features in tiles
    of 64, 128 entries in steps of 16."""
    text = compiled(cache_layout=layout, rows=rows).ptx
    products = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n{rows}k16\.f32\.f16\.f16 ", text)
    assert len(products) == 512 // 16 + 256 // 64 * (128 // 16)
    assert text.count("wgmma.mma_async") == len(products)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
@pytest.mark.parametrize("rows", SOME_ROWS)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
def test_the_assembler_lets_products_overlap(layout: str, rows: int, tmp_path: Path) -> None:
    """It says so (C7510, C7512 for want of registers, and their like) where it makes each of them wait for
    the one before."""
    source, target = tmp_path / "wgmma.ptx", tmp_path / "wgmma.cubin"
    source.write_text(compiled(cache_layout=layout, rows=rows).ptx)
    command = ["ptxas", "-arch=sm_90a", "-v", "-o", str(target), str(source)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "registers" in said.stderr + said.stdout
    assert "serialized" not in said.stderr + said.stdout
    assert "C75" not in said.stderr + said.stdout


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_sum_of_a_product_is_left_to_the_assembler(layout: str) -> None:
    """ptxas fuses `mul.f32` and what adds to it, which the simulator does not: bits would differ."""
    text = compiled(cache_layout=layout).ptx
    products = set(re.findall(r"^\s*mul\.f32\s+(%f\d+|%r\d+)", text, re.MULTILINE))
    sums = re.findall(r"^\s*(?:add|sub)(?:\.f32)\s+\S+ (%\w+), (%\w+);", text, re.MULTILINE)
    assert products
    assert sums
    assert not {name for pair in sums for name in pair} & products


@pytest.mark.slow  # two programs
def test_every_option_is_one_of_the_sources() -> None:
    text = compiled(cache_layout=PER_TOKEN, heads=8, **asdict(Tuning(rows=16, prefetch=0))).ptx
    assert "cp.async.bulk.prefetch" not in text
    assert "cp.async.bulk.prefetch" in compiled(cache_layout=PER_TOKEN, heads=8, rows=16).ptx
