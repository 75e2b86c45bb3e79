# SPDX-License-Identifier: Apache-2.0
"""v4_decode by tcgen05 in the simulator: against the oracle, and against itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.kernel_figures import figures, limits, problems
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode import sm100_plan
from gdnbench_kernels.swa_decode.layouts import unpack
from gdnbench_kernels.swa_decode.sm100 import sm100 as swa_sm100
from gdnbench_kernels.swa_decode.sm100_plan import REGISTERS, TILED_REGISTERS, Role
from gdnbench_kernels.v4_decode import kernel_sm100
from gdnbench_kernels.v4_decode.sm100 import sm100
from gdnbench_kernels.v4_decode.sm100_sources import sm100_sources
from tests.kernels import swa_calls, v4_calls
from tests.kernels.swa_calls import DS_MLA, PER_TOKEN, same_outputs
from tests.kernels.v4_calls import Outputs, assert_passes, made, request_of, spoilt, with_tensors
from tests.seeds import drawn, fresh
from tests.subset import quick

FRESH_SCHEDULE = fresh(f"random:{drawn('v4 schedule', 20)}")
BUDGET = Path(__file__).with_name("v4_sm100_budget.json")
SPLITS = (1, 3)
"""Of four tiles at most: in three, a share may be two tiles, one, or none."""


def run(
    call: Call, splits: int = 1, parts: int | None = None, workers: int | None = None, **settings: Any
) -> Outputs:
    return v4_calls.run(sm100, call, {"splits": splits, "parts": parts, "workers": workers}, **settings)


CALLS: dict[str, dict[str, Any]] = {
    "lengths around tiles": {},
    "a table of pages of 2": {"extra_index_form": "block_table", "extra_block_size": 2},
    "holes and duplicates": {"holes": 0.3, "duplicates": 0.3},
    "nothing but holes": {"holes": 1.0},
    "a huge sink": {"sink": 1e6},
    "a sink of +inf": {"sink": torch.inf},
    "scores spread over 1e4": {"spread": 1e4, "holes": 0.1},
    "magnitudes over 2^30": {"scale_range": 2.0**30},
    "drafts": {"queries": 3, "lens": (126, 3), "extra_lens": (129, 1)},
    "one allocation": {"packed": True},
}
"""Of 8 heads in fp8_ds_mla: two builds, and that of the merge."""


@pytest.mark.every(2)
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("name", quick(CALLS, 6))
def test_accurate(name: str, splits: int) -> None:
    call = made(**CALLS[name])
    assert_passes(call, run(call, splits))


@pytest.mark.slow  # a program for each
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize(
    "options",
    [
        {"cache_layout": PER_TOKEN, "extra_layout": PER_TOKEN, "heads": 64, "sink": None},
        {"cache_layout": PER_TOKEN, "heads": 5, "output_lse": False},
        {"extra_layout": PER_TOKEN, "heads": 100, "scale_dtype": "bfloat16", "scale_range": 2.0**30},
        {"lse_base": "2", "lse_sink": "with", "lse_empty": "plus_inf"},
    ],
    ids=lambda options: ", ".join(f"{name} {value}" for name, value in options.items()),
)
def test_other_builds_are_accurate(options: dict[str, Any], splits: int) -> None:
    call = made(**options)
    assert_passes(call, run(call, splits))


@pytest.fixture(scope="module")
def mixed() -> Call:
    return made(holes=0.1, seed=1)


@pytest.fixture(scope="module", params=SPLITS)
def ran(mixed: Call, request: pytest.FixtureRequest) -> tuple[int, Outputs]:
    return request.param, run(mixed, request.param)


Ran = tuple[int, Outputs]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [*quick(["early", "random:1"], 0), FRESH_SCHEDULE])
def test_bits_are_those_of_every_schedule(mixed: Call, ran: Ran, schedule: str) -> None:
    """Of few CTAs, so that pipelines wrap around."""
    splits, outputs = ran
    assert same_outputs(run(mixed, splits, parts=1, workers=2, schedule=schedule), outputs)


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "workers"), [(1, 2), (2, 1), (4, 3), (4, 20)])
def test_bits_are_those_of_any_number_of_ctas(mixed: Call, ran: Ran, parts: int, workers: int) -> None:
    splits, outputs = ran
    assert same_outputs(run(mixed, splits, parts=parts, workers=workers), outputs)


@pytest.mark.slow
def test_bits_are_those_of_the_other_engine(mixed: Call, ran: Ran) -> None:
    """One request: the interpreter is slow."""
    splits, outputs = ran
    found = run(request_of(mixed, 0), splits, parts=1, engine="interpreter")
    assert same_outputs(found, {name: tensor[:1] for name, tensor in outputs.items()})


@pytest.mark.slow
@pytest.mark.parametrize("row", range(5))
def test_a_request_alone_has_the_bits_it_has_in_a_batch(mixed: Call, ran: Ran, row: int) -> None:
    splits, outputs = ran
    found = run(request_of(mixed, row), splits)
    assert same_outputs(found, {name: tensor[row : row + 1] for name, tensor in outputs.items()})


@pytest.mark.parametrize(
    ("pool", "what"),
    quick([(pool, what) for pool in v4_calls.POOLS for what in ("code", "scale", "rope")]),
)
def test_a_row_that_is_not_a_number_shows_in_its_own_query_alone(
    mixed: Call, ran: Ran, pool: str, what: str
) -> None:
    splits, outputs = ran
    changed, hit = spoilt(mixed, pool, what)
    assert hit.any()
    assert not hit.all()
    for name, tensor in run(changed, splits).items():
        assert torch.equal(tensor[~hit], outputs[name][~hit])
        assert tensor[hit].isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_heads_of_a_tile_do_not_meet(mixed: Call, ran: Ran, value: float) -> None:
    splits, outputs = ran
    q = mixed.tensors["q"].clone()
    q[..., 3, 100] = value
    found, some = run(with_tensors(mixed, q=q), splits), v4_calls.attends(mixed)
    others = [head for head in range(8) if head != 3]
    for name, tensor in found.items():
        assert torch.equal(tensor[:, :, others], outputs[name][:, :, others])
        assert not tensor[some][:, 3].isfinite().any()


@pytest.mark.parametrize("at", quick([0, 100, 127, 128, 200, 255, 256, 299], 4))
def test_a_row_with_all_the_weight_is_the_output(at: int) -> None:
    """Wherever it is among the extra tiles: what was summed before is multiplied by 0, what comes after has
    no weight, and the row's values are rounded once."""
    call = made(lens=(128,), extra_lens=(300,), sink=-torch.inf, poison=False)
    slot = int(call.tensors["extra_indices"].flatten()[at])
    rows = unpack(call.tensors["extra_cache"], None, DS_MLA, torch.bfloat16).flatten(0, 1)
    row = rows[slot]
    q = (row.float() / row.float().norm() * 1e4).to(torch.bfloat16).expand(call.tensors["q"].shape)
    call = with_tensors(call, q=q.contiguous())
    scores = rows.double() @ q[0, 0, 0].double() * 512**-0.5
    # All others together weigh less than 427 e^-30 < 2^-34, and no value of theirs is 2^20 times one of the
    # row: they move none of those by half an ULP of bfloat16, 2^-9.
    best, second = scores.topk(2).values
    assert scores.argmax() == slot
    assert best - second > 30
    assert rows.abs().max() < 2.0**20 * row[row != 0].abs().min()
    window = unpack(call.tensors["cache"], None, DS_MLA, torch.bfloat16).flatten(0, 1)
    assert (window.double() @ q[0, 0, 0].double() * 512**-0.5).max() < best - 30
    found = run(call)["o"]
    assert torch.equal(found, row.expand(found.shape))


@pytest.mark.slow  # two more programs
def test_without_an_extra_segment_it_is_swa_decodes_kernel() -> None:
    call = made(lens=(128, 17, 0), extra_lens=())
    window = {name: call.tensors[name] for name in ("cache", "swa_indices", "swa_lens", "attn_sink")}
    window |= {"q": call.tensors["q"][:, 0], "swa_indices": window["swa_indices"][:, 0]}
    window["swa_lens"] = window["swa_lens"][:, 0].contiguous()
    with active(), programs_simulated():
        wanted = swa_sm100(**window, output_lse=True, cache_layout=DS_MLA, index_shape="TW")
    found = run(call)
    assert all(swa_calls.same(found[name][:, 0], wanted[name]) for name in ("o", "lse"))


def test_splits_that_there_are_not() -> None:
    for splits, call, words in (
        (33, made(), "splits is 33; it must be 1 to 32"),
        (2, made(extra_lens=()), "splits is 2; without an extra segment it must be 1"),
    ):
        with pytest.raises(ValueError, match=words):
            sm100(**call.tensors, **call.scalars, **call.conventions, splits=splits)


def launches(call: Call, **options: Any) -> list[Any]:
    with active() as session, programs_simulated():
        sm100(**call.tensors, **call.scalars, **call.conventions, **options)
    return [launch for report in session.reports for launch in report.launches]


def test_without_requests_nothing_is_launched() -> None:
    assert launches(made(lens=(), extra_lens=())) == []


def test_what_is_launched_is_as_planned() -> None:
    """148 SMs have room for a CTA for each of five tiles, and then for each of four parts of o."""
    call = made(lens=(3,), extra_lens=(500,), topk=512)
    split, merge = launches(call)
    assert (split.grid, split.block, split.shared_bytes) == (
        (4, 1, 5),
        (kernel_sm100.SEGMENTS_PLAN.threads, 1, 1),
        kernel_sm100.SEGMENTS_PLAN.smem_bytes,
    )
    assert merge.grid == (8, 1, 1)
    (whole,) = launches(call, splits=1)
    assert whole.grid == (4, 1, 1)


def test_roles_have_the_registers_of_a_launch() -> None:
    """What a role gets, others give; setmaxnreg takes multiples of 8."""
    for registers in (REGISTERS, TILED_REGISTERS):
        groups = dict.fromkeys(registers, 4) | {Role.GATHER: kernel_sm100.SEGMENTS_PLAN.warps["GATHER"]}
        assert sum(registers[role] * warps for role, warps in groups.items()) == 96 * 20
        assert all(count % 8 == 0 for count in registers.values())


@pytest.mark.parametrize(
    "options",
    quick(
        [
            {"heads": 8, "cache_layout": DS_MLA, "extra_layout": DS_MLA},
            {"heads": 64, "cache_layout": PER_TOKEN, "extra_layout": PER_TOKEN},
            {
                "heads": 128,
                "cache_layout": DS_MLA,
                "extra_layout": PER_TOKEN,
                "extra_scale_dtype": "bfloat16",
            },
            {"cache_layout": PER_TOKEN, "extra_layout": DS_MLA, "lse_base": "2", "lse_sink": "with"},
            {"extra_layout": "none", "sink": False, "lse": False},
        ],
        0,
    ),
    ids=lambda options: ", ".join(f"{name} {value}" for name, value in options.items()),
)
def test_no_build_spills(options: dict[str, Any]) -> None:
    found = [figures(program(source, "sm_100a")) for source in sm100_sources(**options)]
    assert [line for figure in found for line in limits(figure)] == []
    for figure in found[:-1]:
        planned = (
            kernel_sm100.SEGMENTS_PLAN.smem_bytes,
            kernel_sm100.SEGMENTS_PLAN.threads,
            kernel_sm100.SEGMENTS_PLAN.tmem_columns,
        )
        assert (figure.smem, figure.threads, figure.tmem_columns) == planned, figure.name


@pytest.mark.slow
def test_within_the_budget() -> None:
    """gdnbench compile --json --op v4_decode --kernel sm100 > v4_sm100_budget.json, in this folder"""
    budget = json.loads(BUDGET.read_text())
    assert (budget["op"], budget["kernel"], budget["arch"]) == ("v4_decode", "sm100", "sm_100a")
    found = [figures(program(source, budget["arch"])) for source in sm100_sources(**budget["options"])]
    assert problems(found, budget) == []


def test_the_header_quotes_the_plan() -> None:
    tables = kernel_sm100.SEGMENTS_PLAN.tables()
    assert f"\n\n{tables}\n\n" in str(kernel_sm100.__doc__), f"the tables are now\n{tables}"


def test_the_plan_takes_what_swa_decodes_takes() -> None:
    """The roles allocate by that one."""
    for name in ("smem", "tmem", "pipelines", "warps"):
        assert getattr(kernel_sm100.SEGMENTS_PLAN, name) == getattr(sm100_plan.PLAN, name)
