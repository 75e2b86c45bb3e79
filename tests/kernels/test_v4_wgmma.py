# SPDX-License-Identifier: Apache-2.0
"""v4_decode by wgmma in the simulator: against the oracle, against itself; its plan, its machine code.

    gdnbench compile --json --op v4_decode --kernel wgmma --arch sm_90a --cache-layout fp8_ds_mla \
        > v4_wgmma_budget.json

records in this folder what it takes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
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
from gdnbench_kernels.plan import SMEM_LIMIT
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm90_plan import ROWS
from gdnbench_kernels.v4_decode import kernel_sm90
from gdnbench_kernels.v4_decode.sm90_plan import Division, Tuning, plan
from gdnbench_kernels.v4_decode.wgmma import wgmma
from tests.kernels import v4_calls
from tests.kernels.swa_calls import DS_MLA, LAYOUTS, same_outputs
from tests.kernels.v4_calls import Outputs, assert_passes, made
from tests.kernels.v4_wgmma_calls import CALLS, as_slots, of_layout, requests_of
from tests.seeds import fresh
from tests.subset import quick

HERE = Path(__file__).parent
SOME_ROWS = (64, *(pytest.param(rows, marks=pytest.mark.slow) for rows in ROWS[:-1]))
ONE_SPLIT = {"workers": 2, "splits": 1}
"""So that a CTA has several items."""
SPLIT = {"workers": 2, "splits": 3}


def run(call: Call, options: dict[str, Any] | None = None, **settings: Any) -> Outputs:
    return v4_calls.run(wgmma, call, ONE_SPLIT if options is None else options, **settings)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
@pytest.mark.parametrize("name", quick(CALLS, 0))
def test_accurate(name: str, layout: str) -> None:
    call = made(**of_layout(layout), **CALLS[name])
    assert_passes(call, run(call))


@pytest.mark.slow
@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
@pytest.mark.parametrize("name", quick(CALLS, 0))
def test_accurate_in_splits(name: str, layout: str) -> None:
    call = made(**of_layout(layout), **CALLS[name])
    assert_passes(call, run(call, SPLIT))


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_items_of_one_cta(layout: str, splits: int) -> None:
    """Every stage and mbarrier is used again, with items that attend to nothing first, between and last."""
    lens = (0, 128, 0, 5, 0, 0, 128, 9, 0)
    extra = (0, 0, 129, 300, 0, 1, 128, 0, 0)
    call = made(**of_layout(layout), lens=lens, extra_lens=extra, topk=300, holes=0.1)
    found = run(call, {"workers": 1, "splits": splits}, schedule=f"random:{v4_calls.FRESH}")
    assert_passes(call, found)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lengths_past_the_tables_and_below_none(layout: str) -> None:
    """A length beyond its table is the table's, one below 0 is 0, to the bit."""
    call = made(**of_layout(layout), lens=(100, 0, 3), window=100, extra_lens=(0, 200, 200), topk=200)
    wrong = v4_calls.with_tensors(
        call,
        swa_lens=torch.tensor([2**31 - 1, -(2**31), 3], dtype=torch.int32).view(3, 1),
        extra_lens=torch.tensor([-1, 2**31 - 1, 201], dtype=torch.int32).view(3, 1),
    )
    assert same_outputs(run(wrong), run(call))


@pytest.mark.slow
@pytest.mark.parametrize("window", LAYOUTS)
def test_caches_of_two_layouts(window: str) -> None:
    (extra,) = set(LAYOUTS) - {window}
    call = made(cache_layout=window, extra_layout=extra, lens=(128, 0, 7), extra_lens=(0, 300, 40), topk=300)
    for splits in (1, 2, None):
        assert_passes(call, run(call, {"splits": splits}))


@pytest.fixture(scope="module", params=LAYOUTS)
def mixed(request: pytest.FixtureRequest) -> tuple[Call, Outputs, Outputs]:
    call = made(
        **of_layout(request.param),
        lens=(128, 0, 17, 0, 127),
        extra_lens=(300, 129, 0, 0, 1),
        topk=300,
        holes=0.1,
        seed=1,
    )
    return call, run(call), run(call, SPLIT)


Mixed = tuple[Call, Outputs, Outputs]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["early", "random:1", fresh(f"random:{v4_calls.FRESH}")])
def test_bits_are_those_of_every_schedule(mixed: Mixed, schedule: str) -> None:
    call, outputs, split = mixed
    assert same_outputs(run(call, schedule=schedule), outputs)
    assert same_outputs(run(call, SPLIT, schedule=schedule), split)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["late", fresh(f"random:{v4_calls.FRESH}")])
def test_bits_are_those_of_the_other_engine(mixed: Mixed, schedule: str) -> None:
    """Three requests, by one CTA, so that stages are used again: the interpreter is slow."""
    call, outputs, _ = mixed
    found = run(requests_of(call, 3), {"workers": 1, "splits": 1}, engine="interpreter", schedule=schedule)
    assert same_outputs(found, {name: tensor[:3] for name, tensor in outputs.items()})


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_are_those_of_any_number_of_heads_a_cta(layout: str) -> None:
    """40 heads are no multiple of 16, 32 or 64."""
    call = made(**of_layout(layout), heads=40, holes=0.1, lens=(128, 0, 17), extra_lens=(140, 3, 0), topk=140)
    for splits in (1, 2):
        found = [run(call, {"rows": rows, "workers": 2, "splits": splits}) for rows in ROWS]
        assert_passes(call, found[0])
        assert same_outputs(found[0], found[1])
        assert same_outputs(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "tuning", [{"workers": 1}, {"workers": 7}, {"prefetch": 0, "workers": 2}, {"prefetch": 2, "workers": 2}]
)
def test_bits_are_those_of_any_tuning(mixed: Mixed, tuning: dict[str, int]) -> None:
    call, outputs, split = mixed
    assert same_outputs(run(call, {**tuning, "splits": 1}), outputs)
    assert same_outputs(run(call, {**tuning, "splits": 3}), split)


@pytest.mark.slow
def test_a_request_alone_has_the_bits_it_has_in_a_batch(mixed: Mixed) -> None:
    call, outputs, split = mixed
    for row in range(len(call.tensors["q"])):
        alone = requests_of(call, row + 1, row)
        assert same_outputs(run(alone), {name: x[row : row + 1] for name, x in outputs.items()})
        assert same_outputs(run(alone, SPLIT), {name: x[row : row + 1] for name, x in split.items()})


@pytest.mark.slow
def test_a_table_of_pages_has_the_bits_of_its_slots() -> None:
    call = made(
        **of_layout(DS_MLA), extra_index_form="block_table", extra_block_size=4, extra_lens=(200, 131, 0, 3)
    )
    slots = as_slots(call)
    assert same_outputs(run(call), run(slots))
    assert same_outputs(run(call, SPLIT), run(slots, SPLIT))


def test_without_requests_nothing_is_launched() -> None:
    call = made(lens=(), extra_lens=())
    with active() as session, programs_simulated():
        found = wgmma(**call.tensors, **call.scalars, **call.conventions)
    assert {name: tuple(x.shape) for name, x in found.items()} == {"o": (0, 1, 8, 512), "lse": (0, 1, 8)}
    assert session.reports == []


@pytest.mark.slow  # test_takes_what_its_plan_says has the figures of a build
def test_what_is_launched_is_as_planned() -> None:
    """Two query rows: 16 heads a CTA, three for each of them and split. Then no more CTAs than workers."""
    call = made(lens=(3, 0), extra_lens=(150, 0), topk=150, heads=40)
    planned = plan(Tuning(16, layout=CacheLayout.PER_TOKEN_SCALE))
    for options, ctas in (({"splits": 1}, 6), ({"splits": 2}, 12), ({"splits": 2, "workers": 4}, 4)):
        with active() as session, programs_simulated():
            wgmma(**call.tensors, **call.scalars, **call.conventions, **options)
        launch, *merge = [launch for report in session.reports for launch in report.launches]
        assert (launch.grid, launch.block, launch.shared_bytes) == (
            (ctas, 1, 1),
            (planned.threads, 1, 1),
            planned.smem_bytes,
        )
        assert len(merge) == (options["splits"] > 1)


@pytest.mark.parametrize(
    ("queries", "heads", "tiles", "rows", "splits"),
    [
        (1, 64, 1, 16, 1),  # nothing to split; every CTA has its own SM
        (1, 64, 5, 16, 5),  # 4 x 5 CTAs of one tile
        (16, 64, 5, 64, 5),  # 80 CTAs of one tile, instead of 64 of 5
        (64, 64, 5, 32, 1),  # 128 CTAs; more would have two items each
        (256, 64, 5, 64, 1),  # the fewest items
        (64, 64, 17, 64, 2),  # 128 CTAs of 9 tiles
    ],
)
def test_few_queries_are_split_and_many_are_not(
    queries: int, heads: int, tiles: int, rows: int, splits: int
) -> None:
    """On 132 SMs, as measured on an H200; docs/v4_decode.md has the times."""
    assert Division.choose(queries, heads, tiles, 132) == Division(rows, splits)


def test_a_division_keeps_what_it_is_given() -> None:
    assert Division.choose(16, 64, 5, 132, rows=16).rows == 16
    assert Division.choose(1, 64, 5, 132, splits=2).splits == 2
    assert Division.choose(1, 64, 99, 132, most=7).splits == 7


def test_the_header_quotes_the_plan() -> None:
    tables = plan(Tuning()).tables()
    assert f"\n\n{tables}\n\n" in str(kernel_sm90.__doc__), f"the tables are now\n{tables}"


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", [CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA])
def test_every_plan_fits(layout: CacheLayout, rows: int) -> None:
    assert plan(Tuning(rows, layout=layout)).smem_bytes <= SMEM_LIMIT


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", [CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA])
def test_registers_of_all_roles_are_those_of_an_sm(layout: CacheLayout, rows: int) -> None:
    """The register file is dealt to warpgroups in multiples of 8 a thread; 384 threads start with 168."""
    tuning = Tuning(rows, layout=layout)
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


@pytest.mark.parametrize("splits", [0, 32])
def test_a_number_of_splits_that_cannot_be_merged_is_refused(splits: int) -> None:
    call = made(lens=(3,), extra_lens=(3,))
    with pytest.raises(ValueError, match=wording("kernels.splits-range", most=31, given=splits)):
        wgmma(**call.tensors, **call.scalars, **call.conventions, splits=splits)


def compiled(**options: Any) -> list[Program]:
    """Without splits, with splits."""
    _, sources = sources_of("v4_decode", "wgmma")
    return list(compile_programs(sources, options, "sm_90a", lambda *_: None))[:2]


@pytest.mark.slow
def test_within_the_budget() -> None:
    budget = json.loads((HERE / "v4_wgmma_budget.json").read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("v4_decode", "wgmma", "sm_90a")
    _, sources = sources_of("v4_decode", "wgmma")
    programs = compile_programs(sources, budget["options"], "sm_90a", lambda *_: None)
    assert problems([figures(program) for program in programs], budget) == []


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_takes_what_its_plan_says(layout: str, rows: int) -> None:
    planned = plan(Tuning(rows, layout=CacheLayout(layout)))
    for program in compiled(cache_layout=layout, rows=rows):
        figure = figures(program)
        assert (figure.smem, figure.threads, figure.tmem_columns) == (planned.smem_bytes, planned.threads, 0)
        assert limits(figure) == []
        assert figure.registers * figure.threads <= 65536


@pytest.mark.slow
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_as_many_as_the_header_says(layout: str, rows: int) -> None:
    """A warpgroup of product 1: 64 entries, 512 features in steps of 16. Of product 2: 256 features in tiles
    of 64, 128 entries in steps of 16."""
    for program in compiled(cache_layout=layout, rows=rows):
        products = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n{rows}k16\.f32\.f16\.f16 ", program.ptx)
        assert len(products) == 512 // 16 + 256 // 64 * (128 // 16)
        assert program.ptx.count("wgmma.mma_async") == len(products)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_assembler_lets_products_overlap(layout: str, rows: int, tmp_path: Path) -> None:
    """It says so (C7510, C7512 for want of registers, and their like) where it makes each of them wait for
    the one before. C7519 says that it adds a fence."""
    source, target = tmp_path / "wgmma.ptx", tmp_path / "wgmma.cubin"
    for program in compiled(cache_layout=layout, rows=rows):
        source.write_text(program.ptx)
        command = ["ptxas", "-arch=sm_90a", "-v", "-o", str(target), str(source)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "registers" in said.stderr + said.stdout
        assert "serialized" not in said.stderr + said.stdout
        assert re.findall(r"C75(?!19)\d\d", said.stderr + said.stdout) == []


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_sum_of_a_product_is_left_to_the_assembler(layout: str) -> None:
    """ptxas fuses `mul.f32` and what adds to it, which the simulator does not: bits would differ."""
    for program in compiled(cache_layout=layout):
        products = set(re.findall(r"^\s*mul\.f32\s+(%f\d+|%r\d+)", program.ptx, re.MULTILINE))
        sums = re.findall(r"^\s*(?:add|sub)(?:\.f32)\s+\S+ (%\w+), (%\w+);", program.ptx, re.MULTILINE)
        assert products
        assert sums
        assert not {name for pair in sums for name in pair} & products
