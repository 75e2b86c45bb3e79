# SPDX-License-Identifier: Apache-2.0
"""v4_decode by mma.sync in the simulator: against the oracle, and against itself."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.v4_decode import kernel_mma
from gdnbench_kernels.v4_decode.portable import portable
from gdnbench_kernels.v4_decode.portable_plan import plan
from gdnbench_kernels.v4_decode.sources import merge_source, portable_source
from tests.kernels import v4_calls
from tests.kernels.swa_calls import DS_MLA, PER_TOKEN, same_outputs
from tests.kernels.v4_calls import Outputs, assert_passes, made, request_of, spoilt, with_tensors
from tests.seeds import drawn, fresh
from tests.subset import quick

FRESH_SCHEDULE = fresh(f"random:{drawn('v4 schedule', 20)}")
SPLITS = (1, 3)
"""Of four tiles at most: in three, a share may be two tiles, one, or none."""


def run(call: Call, splits: int = 1, arch: str | None = None, **settings: Any) -> Outputs:
    return v4_calls.run(portable, call, {"arch": arch, "splits": splits}, **settings)


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
@pytest.mark.parametrize("splits", quick(SPLITS, 1))
@pytest.mark.parametrize("name", quick(CALLS, 1))
def test_accurate(name: str, splits: int) -> None:
    call = made(**CALLS[name])
    assert_passes(call, run(call, splits, check=True))


@pytest.mark.slow  # a program for each
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize(
    "options",
    [
        {"cache_layout": PER_TOKEN, "extra_layout": PER_TOKEN, "heads": 64, "sink": None},
        {"cache_layout": PER_TOKEN, "heads": 5, "output_lse": False},
        {"extra_layout": PER_TOKEN, "heads": 20, "scale_dtype": "bfloat16"},
        {"lse_base": "2", "lse_sink": "with", "lse_empty": "plus_inf"},
        {"extra_lens": ()},
    ],
    ids=lambda options: ", ".join(f"{name} {value}" for name, value in options.items()),
)
def test_other_builds_are_accurate(options: dict[str, Any], splits: int) -> None:
    call = made(**options)
    assert_passes(call, run(call, splits))


@pytest.fixture(scope="module")
def mixed() -> Call:
    return made(lens=(128, 0, 17), extra_lens=(300, 64, 0), holes=0.1, seed=1)


@pytest.fixture(scope="module", params=quick(SPLITS, 1))
def ran(mixed: Call, request: pytest.FixtureRequest) -> tuple[int, Outputs]:
    return request.param, run(mixed, request.param)


Ran = tuple[int, Outputs]


@pytest.mark.parametrize("schedule", [*quick(["early", "random:1"], 1), FRESH_SCHEDULE])
def test_bits_are_those_of_every_schedule(mixed: Call, ran: Ran, schedule: str) -> None:
    splits, outputs = ran
    assert same_outputs(run(mixed, splits, schedule=schedule), outputs)


@pytest.mark.slow
def test_bits_are_those_of_the_other_engine(mixed: Call, ran: Ran) -> None:
    """One request: the interpreter is slow."""
    splits, outputs = ran
    found = run(request_of(mixed, 0), splits, engine="interpreter")
    assert same_outputs(found, {name: tensor[:1] for name, tensor in outputs.items()})


@pytest.mark.slow
def test_bits_are_those_of_the_other_architecture(mixed: Call, ran: Ran) -> None:
    splits, outputs = ran
    assert same_outputs(run(mixed, splits, arch="sm_90a"), outputs)


@pytest.mark.slow
@pytest.mark.parametrize("row", range(3))
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


def launches(call: Call, **options: Any) -> list[Any]:
    with active() as session, programs_simulated():
        portable(**call.tensors, **call.scalars, **call.conventions, **options)
    return [launch for report in session.reports for launch in report.launches]


def test_without_requests_nothing_is_launched() -> None:
    assert launches(made(lens=(), extra_lens=())) == []


def test_what_is_launched_is_as_planned() -> None:
    """A call that is too small for the GPU: 5 tiles, for each of which there is an SM."""
    call = made(lens=(3,), extra_lens=(500,), topk=512)
    planned = plan([CacheLayout.FP8_DS_MLA])
    split, merge = launches(call)
    assert (split.grid, split.block, split.shared_bytes) == (
        (1, 5, 1),
        (planned.threads, 1, 1),
        planned.smem_bytes,
    )
    assert (merge.grid, merge.block) == ((8, 1, 1), (128, 1, 1))


@pytest.mark.slow  # a program
def test_an_unsplit_call_is_one_launch() -> None:
    call = made(lens=(3,), extra_lens=(500,), topk=512)
    assert [launch.grid for launch in launches(call, splits=1)] == [(1, 1, 1)]


@pytest.mark.parametrize("splits", [0, 33])
def test_numbers_of_splits_that_the_merge_does_not_take(splits: int) -> None:
    with pytest.raises(ValueError, match=f"splits is {splits}; it must be 1 to 32"):
        portable(**made().tensors, **made().scalars, **made().conventions, splits=splits)


def test_the_header_quotes_the_plan() -> None:
    header = str(kernel_mma.__doc__)
    for layout in (CacheLayout.FP8_DS_MLA, CacheLayout.PER_TOKEN_SCALE):
        assert f"\n\n{plan([layout]).tables()}\n\n" in header, (
            f"the tables are now\n{plan([layout]).tables()}"
        )


def test_no_sum_of_a_product_is_left_to_the_assembler() -> None:
    """ptxas fuses `mul.f32` and what adds to it, which the simulator does not: bits would differ."""
    pools = (DS_MLA, None, DS_MLA, None)
    for source in (
        portable_source(8, *pools, split=True, sink=True, lse=True),
        merge_source(True, True, "e", "without", "minus_inf"),
    ):
        text = program(source, "sm_100a").ptx
        products = set(re.findall(r"^\s*mul\.f32\s+(%f\d+|%r\d+)", text, re.MULTILINE))
        sums = re.findall(r"^\s*(?:add|sub)(?:\.f32)\s+\S+ (%\w+), (%\w+);", text, re.MULTILINE)
        assert products
        assert sums
        assert not {name for pair in sums for name in pair} & products
