# SPDX-License-Identifier: Apache-2.0
"""`wgmma` of v4_decode on a GPU: against the oracle, the bits of the simulator, in a CUDA graph, the same row
whatever is beside it and whatever its tuning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.sm90_plan import ROWS
from gdnbench_kernels.v4_decode.wgmma import wgmma
from tests.kernels import v4_calls, v4_gpu_calls
from tests.kernels.swa_calls import DS_MLA, LAYOUTS, PER_TOKEN
from tests.kernels.v4_calls import Outputs, assert_passes, made
from tests.kernels.v4_gpu_calls import different_bits
from tests.kernels.v4_wgmma_calls import CALLS, of_layout

HOPPER = (9, 0)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("wgmma is of compute capability 9.0 alone")


def on_gpu(call: Call, **options: Any) -> Outputs:
    return v4_gpu_calls.on_gpu(wgmma, call, **options)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_accurate(name: str, layout: str, splits: int) -> None:
    call = made(**of_layout(layout), **CALLS[name])
    assert_passes(call, on_gpu(call, workers=2, splits=splits))


@pytest.mark.parametrize("window", LAYOUTS)
def test_caches_of_two_layouts(window: str) -> None:
    (extra,) = set(LAYOUTS) - {window}
    call = made(cache_layout=window, extra_layout=extra, lens=(128, 0, 7), extra_lens=(0, 300, 40), topk=300)
    assert_passes(call, on_gpu(call))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [64, 128])
def test_bits_of_a_model_s_heads_are_those_of_the_simulator(heads: int, layout: str) -> None:
    call = made(**of_layout(layout), heads=heads, lens=(128, 77), extra_lens=(512, 150), topk=512, holes=0.1)
    for options in ({"splits": 1, "rows": 64}, {"splits": 3, "rows": 16}):
        simulated = v4_calls.run(wgmma, call, options)
        assert_passes(call, simulated)
        assert different_bits(on_gpu(call, **options), simulated) == {}, "not the simulator's"


@pytest.mark.parametrize("form", ["indices", "block_table"])
@pytest.mark.parametrize("queries", [1, 4])
def test_the_most_entries(queries: int, form: str) -> None:
    v4_gpu_calls.assert_takes_the_most_entries(wgmma, queries, form, splits=(None, 1))


@pytest.mark.parametrize(("layout", "heads"), [(PER_TOKEN, 64), (DS_MLA, 128)])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_row_is_the_same_alone_and_under_any_tuning(layout: str, heads: int, splits: int) -> None:
    tunings = [*({"rows": rows} for rows in ROWS), {"workers": 5}, {"prefetch": 0}, {"prefetch": 2}]
    v4_gpu_calls.assert_a_row_is_the_same_alone(wgmma, layout, heads, splits, tunings)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_again(layout: str, splits: int) -> None:
    v4_gpu_calls.assert_the_same_again(wgmma, layout, splits)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_into_a_graph(layout: str, splits: int) -> None:
    v4_gpu_calls.assert_runs_from_a_graph(wgmma, layout, splits)
