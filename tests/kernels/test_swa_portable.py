# SPDX-License-Identifier: Apache-2.0
"""swa_decode by mma.sync in the simulator: against the oracle, and against itself."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import active
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode import kernel_mma
from gdnbench_kernels.swa_decode import portable as module
from gdnbench_kernels.swa_decode.layouts import CacheLayout, ds_mla_parts, empty_ds_mla, read_rows
from gdnbench_kernels.swa_decode.portable import portable
from gdnbench_kernels.swa_decode.portable_plan import plan
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM, NOPE_DIM
from gdnbench_kernels.swa_decode.sm90_plan import Tuning
from gdnbench_kernels.swa_decode.sm90_sources import wgmma_source
from gdnbench_kernels.swa_decode.sources import PORTABLE_ROWS, portable_source
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


def run(call: Call, arch: str | None = None, **settings: Any) -> Outputs:
    return swa_calls.run(portable, call, {"arch": arch}, **settings)


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
            {
                "cache_layout": PER_TOKEN,
                "heads": 128,
                "scale_dtype": "bfloat16",
                "sink": None,
                "lens": (128,),
            },
            {"cache_layout": DS_MLA, "heads": 64, "sink": None, "output_lse": False},
            {"cache_layout": DS_MLA, "heads": 5},
            {"cache_layout": PER_TOKEN, "heads": 16, "lens": (128, 17, 0, 99) * 4},
        ]
    ),
    ids=lambda options: f"{options['cache_layout']}, {options['heads']} heads",
)
def test_other_builds_are_accurate(options: dict[str, Any]) -> None:
    call = made(**{"lens": (128, 17, 0), "holes": 0.1, **options})
    assert_passes(call, run(call))


@pytest.fixture(scope="module", params=LAYOUTS)
def mixed(request: pytest.FixtureRequest) -> tuple[Call, Outputs]:
    call = made(cache_layout=request.param, lens=(*LENS, 128, 64), holes=0.1, seed=1)
    return call, run(call)


Mixed = tuple[Call, Outputs]


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", [*quick(["early", "random:1"], 0), FRESH_SCHEDULE])
def test_bits_are_those_of_every_schedule(mixed: Mixed, schedule: str) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, schedule=schedule), outputs)


@pytest.mark.parametrize("schedule", [*quick(["late"]), FRESH_SCHEDULE])
def test_bits_are_those_of_the_other_engine(mixed: Mixed, schedule: str) -> None:
    """One request: the interpreter is slow."""
    call, outputs = mixed
    found = run(swa_calls.request_of(call, 0), engine="interpreter", schedule=schedule)
    assert same_outputs(found, {name: tensor[:1] for name, tensor in outputs.items()})


@pytest.mark.slow
@pytest.mark.parametrize("mixed", quick(LAYOUTS, 0), indirect=True)
def test_bits_are_those_of_the_other_architecture(mixed: Mixed) -> None:
    call, outputs = mixed
    assert same_outputs(run(call, arch="sm_90a"), outputs)


@pytest.mark.slow  # a program for each number
@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
def test_bits_are_those_of_any_number_of_heads_a_cta(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 heads are no multiple of either number."""
    call = made(cache_layout=layout, heads=40, holes=0.1, lens=(128, 0, 17))
    found = []
    for rows in PORTABLE_ROWS:
        monkeypatch.setattr(module, "rows_of", lambda given, arch, rows=rows: rows)
        found.append(run(call))
    assert_passes(call, found[0])
    assert same_outputs(*found)


def test_a_request_alone_has_the_bits_it_has_in_a_batch(mixed: Mixed) -> None:
    call, outputs = mixed
    for row in range(len(call.tensors["q"])):
        found = run(swa_calls.request_of(call, row))
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_may_lie_further_apart(layout: str) -> None:
    call = made(cache_layout=layout, block_size=16, lens=(50, 128))
    assert same_outputs(run(with_pages_apart(call)), run(call))


def alone(cache: Tensor, inv_scale: Tensor | None, rows: int, layout: str) -> Outputs:
    """Of 8 heads with queries of zeros, request i attending to slot i alone."""
    tensors = {
        "q": torch.zeros(rows, 8, HEAD_DIM, dtype=torch.bfloat16),
        "cache": cache,
        "swa_indices": torch.arange(rows, dtype=torch.int32).unsqueeze(1),
        "swa_lens": torch.ones(rows, dtype=torch.int32),
        "attn_sink": torch.full((8,), -torch.inf),
    }
    if inv_scale is not None:
        tensors["inv_scale"] = inv_scale
    found = run(Call(tensors, {"output_lse": True}, {"cache_layout": layout, "index_shape": "TW"}))
    wanted = read_rows(cache, inv_scale, torch.arange(rows), layout, torch.bfloat16)
    assert torch.equal(found["o"], wanted.unsqueeze(1).expand(-1, 8, -1))
    assert (found["lse"] == 0).all()
    return found


FINITE = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)


def test_a_row_alone_is_what_an_fp8_ds_mla_cache_says() -> None:
    """One entry has weight 1: o is the row's values. All finite codes; scales of a row up to 2^20 apart, and
    rope up to the largest of it, which is what keeps every bit."""
    block_size = 16
    firsts = torch.tensor([0, 1, 30, 90, 107, 117, 127, 140, 200, 225])
    cache = empty_ds_mla(1, block_size)
    data, scales = ds_mla_parts(cache)
    for row, first in enumerate(firsts.tolist()):
        data[0, row, :NOPE_DIM] = FINITE.roll(37 * row).repeat(2)[:NOPE_DIM]
        apart = torch.tensor([0, 1, 20, 3, 5, 11, 15])
        scales[0, row, :GROUPS] = (first + apart).roll(row).to(torch.uint8)
    rope = torch.randn(1, block_size, HEAD_DIM - NOPE_DIM)
    rope[0, : len(firsts)] *= torch.exp2(firsts.float() + 20 - 127).unsqueeze(1)
    data[..., NOPE_DIM:] = rope.to(torch.bfloat16).view(torch.uint8)
    found = alone(cache, None, len(firsts), DS_MLA)
    assert (found["o"][:, 0] != 0).sum(1).min() > 480


def test_scales_of_codes_that_are_small_do_not_hide_other_values() -> None:
    """As one finds them: scales are not below 2^-22, and codes under that are zeros, beside rope that is
    smaller yet. As one does not: a scale of 2^113 on zeros, one of 2^-54 on the least of codes."""
    rows, block_size = 4, 16
    cache = empty_ds_mla(1, block_size)
    data, scales = ds_mla_parts(cache)
    scales[0, :rows, :GROUPS] = torch.tensor([105, 105, 60, 60], dtype=torch.uint8).unsqueeze(1)
    data[0, 2:rows, :NOPE_DIM] = FINITE.repeat(2)[:NOPE_DIM]
    data[0, 1, 70] = 1
    scales[0, 2, 3] = 240
    data[0, 2, 3 * 64 : 4 * 64] = torch.tensor([0x00, 0x80], dtype=torch.uint8).repeat(32)
    scales[0, 3, 3] = 73
    data[0, 3, 3 * 64 : 4 * 64] = torch.tensor([0x00, 0x01], dtype=torch.uint8).repeat(32)
    rope = torch.randn(1, block_size, HEAD_DIM - NOPE_DIM) * 2.0**-100
    rope[0, 1] *= 2.0**60
    rope[0, 2:] *= 2.0**30
    data[..., NOPE_DIM:] = rope.to(torch.bfloat16).view(torch.uint8)
    found = alone(cache, None, rows, DS_MLA)
    assert (found["o"][:, 0] != 0).sum(1).tolist()[:2] == [64, 65]


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.bfloat16], 0))
def test_a_row_alone_is_what_a_per_token_cache_says(dtype: torch.dtype) -> None:
    """Scales of every kind: of either sign, not powers of two, zero, and so small that f32 is subnormal.

    A scale of f32 has more bits than a weight of f16: those here have at most 8, as a bf16 has."""
    scales = torch.tensor([1.0, -0.75, 2.0**-133, 0.0, 3 * 2.0**100, 1.40625, -(2.0**-120), 2.0**-126])
    cache = torch.stack([FINITE.roll(37 * row).repeat(3)[:HEAD_DIM] for row in range(16)]).unsqueeze(0)
    inv_scale = torch.ones(16, dtype=dtype)
    inv_scale[: len(scales)] = scales.to(dtype)
    alone(cache.view(torch.float8_e4m3fn), inv_scale, len(scales), PER_TOKEN)


def test_without_requests_nothing_is_launched() -> None:
    call = made(lens=())
    with active() as session, programs_simulated():
        found = portable(**call.tensors, **call.scalars, **call.conventions)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"o": (0, 8, 512), "lse": (0, 8)}
    assert session.reports == []


@pytest.mark.slow
@pytest.mark.parametrize("rows", quick(PORTABLE_ROWS, 0))
@pytest.mark.parametrize("layout", quick([CacheLayout.PER_TOKEN_SCALE, CacheLayout.FP8_DS_MLA], 0))
def test_what_is_launched_is_as_planned(
    layout: CacheLayout, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "rows_of", lambda given, arch: rows)
    call = made(lens=(3,), heads=40, cache_layout=layout.value)
    with active() as session, programs_simulated():
        portable(**call.tensors, **call.scalars, **call.conventions)
    (launch,) = session.reports[0].launches
    planned = plan(layout, rows)
    assert (launch.grid, launch.block, launch.shared_bytes) == (
        (-(-40 // rows), 1, 1),
        (planned.threads, 1, 1),
        planned.smem_bytes,
    )


def test_the_header_quotes_the_plan() -> None:
    header = str(kernel_mma.__doc__)
    for tables in (plan(CacheLayout.FP8_DS_MLA, 32).tables(), plan(CacheLayout.PER_TOKEN_SCALE, 16).tables()):
        assert f"\n\n{tables}\n\n" in header, f"the tables are now\n{tables}"


@pytest.mark.parametrize("arch", quick(["sm_100a", "sm_90a"], 0))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_sum_of_a_product_is_left_to_the_assembler(layout: str, arch: str) -> None:
    """ptxas fuses `mul.f32` and what adds to it, which the simulator does not: bits would differ. The first
    architecture's build is that of other tests."""
    dtype = "float32" if layout == PER_TOKEN else None
    text = program(portable_source(8, layout, dtype, True, True, 16), arch).ptx
    products = set(re.findall(r"^\s*mul\.f32\s+(%f\d+|%r\d+)", text, re.MULTILINE))
    sums = re.findall(r"^\s*(?:add|sub)(?:\.f32)\s+\S+ (%\w+), (%\w+);", text, re.MULTILINE)
    assert products
    assert sums
    assert not {name for pair in sums for name in pair} & products


@pytest.mark.parametrize("layout", quick(LAYOUTS, 0))
@pytest.mark.parametrize("kernel", ["portable", "wgmma"])
def test_before_the_wait_only_hints_are_read(kernel: str, layout: str) -> None:
    """The kernel in front may still write what is read there. A relaxed load leaves no line in L1, and ptxas
    moves a `ld.global.nc` in front of the wait."""
    options = (8, layout, "float32" if layout == PER_TOKEN else None, True, True)
    made_of = portable_source(*options, 16) if kernel == "portable" else wgmma_source(*options, Tuning(16))
    text = program(made_of, "sm_90a").ptx
    before, wait, after = text[text.index(".entry") :].partition("griddepcontrol.wait;")
    assert wait
    assert ".nc" not in text
    loads = re.findall(r"\bld\.(?!param)\S+|\bcp\.async\.bulk\S+|\bprefetch\S+", before)
    allowed = ("ld.relaxed.gpu.global", "cp.async.bulk.prefetch.L2", "prefetch.")
    assert [name for name in loads if not name.startswith(allowed)] == []
    assert {name for name in loads if name.startswith("ld.")} == {"ld.relaxed.gpu.global.b32"}
    assert "griddepcontrol.launch_dependents" in after
    assert "griddepcontrol.launch_dependents" not in before


@pytest.mark.slow
def test_a_launch_of_its_own_has_the_same_bits(mixed: Mixed) -> None:
    call, outputs = mixed
    found = swa_calls.run(portable, call, {"arch": "sm_90a", "pdl": False})
    assert same_outputs(found, outputs)
