# SPDX-License-Identifier: Apache-2.0
"""`portable` of v4_decode on a GPU: the bits of the simulator, with and without splits, in a CUDA graph, and
the same row whatever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.calls import compact_call
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.v4_decode.contract import OPERATION
from gdnbench_kernels.v4_decode.launch_args import arch_of
from gdnbench_kernels.v4_decode.portable import portable
from tests.kernels import v4_calls, v4_gpu_calls
from tests.kernels.swa_calls import DS_MLA, LAYOUTS, PER_TOKEN
from tests.kernels.v4_calls import Outputs, assert_passes, made
from tests.kernels.v4_gpu_calls import different_bits
from tests.kernels.v4_wgmma_calls import CALLS, of_layout

CAPTURE = Path(__file__).resolve().parents[2] / "captures" / "v4_decode.zarr.zip"
SPLITS = (1, 3)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def arch() -> str:
    """What `portable` is compiled for here."""
    try:
        return arch_of(torch.device("cuda"))
    except NotImplementedError as error:
        pytest.skip(str(error))


def on_gpu(call: Call, **options: Any) -> Outputs:
    return v4_gpu_calls.on_gpu(portable, call, **options)


def assert_same_as_simulated(call: Call, arch: str, **options: Any) -> None:
    """The simulator's bits, which pass."""
    simulated = v4_calls.run(portable, call, {"arch": arch, **options})
    assert_passes(call, simulated)
    assert different_bits(on_gpu(call, **options), simulated) == {}, "not the simulator's"


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_those_of_the_simulator(name: str, layout: str, splits: int, arch: str) -> None:
    assert_same_as_simulated(made(**of_layout(layout), **CALLS[name]), arch, splits=splits)


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("window", LAYOUTS)
def test_bits_of_two_layouts_are_those_of_the_simulator(window: str, splits: int, arch: str) -> None:
    (extra,) = set(LAYOUTS) - {window}
    call = made(cache_layout=window, extra_layout=extra, lens=(128, 0, 7), extra_lens=(0, 300, 40), topk=300)
    assert_same_as_simulated(call, arch, splits=splits)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [64, 128])
def test_bits_of_a_model_s_heads_are_those_of_the_simulator(heads: int, layout: str, arch: str) -> None:
    """With the splits that the kernel chooses for the GPU at hand, and without."""
    call = made(**of_layout(layout), heads=heads, lens=(128, 77), extra_lens=(512, 150), topk=512, holes=0.1)
    assert_same_as_simulated(call, arch)
    assert_same_as_simulated(call, arch, splits=1)


def test_bits_of_a_capture_are_those_of_the_simulator(arch: str) -> None:
    with Store.open(CAPTURE) as store:
        records = [record for record in store.records if record.info.op == OPERATION.name]
        calls = [compact_call(record, OPERATION, torch.device("cpu")) for record in records]
    assert calls
    for call in calls:
        assert_same_as_simulated(call, arch)


@pytest.mark.parametrize("form", ["indices", "block_table"])
@pytest.mark.parametrize("queries", [1, 4])
def test_the_most_entries(queries: int, form: str) -> None:
    v4_gpu_calls.assert_takes_the_most_entries(portable, queries, form, splits=(None, 1, 32))


@pytest.mark.parametrize(("layout", "heads"), [(PER_TOKEN, 64), (DS_MLA, 128)])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_row_is_the_same_alone(layout: str, heads: int, splits: int) -> None:
    v4_gpu_calls.assert_a_row_is_the_same_alone(portable, layout, heads, splits)


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_again(layout: str, splits: int) -> None:
    v4_gpu_calls.assert_the_same_again(portable, layout, splits)


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_into_a_graph(layout: str, splits: int) -> None:
    v4_gpu_calls.assert_runs_from_a_graph(portable, layout, splits)
