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
from tests.kernels.swa_calls import DS_MLA, LAYOUTS, PER_TOKEN, same_outputs
from tests.kernels.v4_calls import Outputs, assert_passes, made
from tests.kernels.v4_gpu_calls import different_bits, filled, moved
from tests.kernels.v4_wgmma_calls import CALLS, of_layout, requests_of

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
    call = made(
        **of_layout(DS_MLA),
        heads=64,
        queries=queries,
        lens=(128, 5),
        extra_lens=(2048, 1999),
        topk=2048,
        extra_index_form=form,
    )
    assert_passes(call, on_gpu(call))
    assert_passes(call, on_gpu(call, splits=1))


@pytest.mark.parametrize(("layout", "heads"), [(PER_TOKEN, 64), (DS_MLA, 128)])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_row_is_the_same_alone_and_under_any_tuning(layout: str, heads: int, splits: int) -> None:
    # More items than the GPU has SMs.
    call = made(
        **of_layout(layout),
        heads=heads,
        lens=(128, 31, 0, 128, 1) * 30,
        extra_lens=(0, 200, 0, 512, 129) * 30,
        topk=512,
    )
    whole = on_gpu(call, splits=splits)
    assert_passes(call, whole)
    for tuning in (*({"rows": rows} for rows in ROWS), {"workers": 5}, {"prefetch": 0}, {"prefetch": 2}):
        assert same_outputs(on_gpu(call, splits=splits, **tuning), whole)
    for row in (0, 1, 2, 76, 149):
        alone = on_gpu(requests_of(call, row + 1, row), splits=splits)
        assert same_outputs(alone, {name: x[row : row + 1] for name, x in whole.items()})


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_again(layout: str, splits: int) -> None:
    """A race would show in some of many launches."""
    call = made(
        **of_layout(layout), heads=64, lens=(128, 17, 0, 128) * 40, extra_lens=(512, 0, 0, 129) * 40, topk=512
    )
    given, outputs = moved(call), filled(call)
    wgmma(**given, **outputs, splits=splits)
    first = {name: tensor.clone() for name, tensor in outputs.items()}
    for _ in range(50):
        for tensor in outputs.values():
            tensor.fill_(torch.nan)
        wgmma(**given, **outputs, splits=splits)
        assert same_outputs(outputs, first)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_into_a_graph(layout: str, splits: int) -> None:
    call = made(**of_layout(layout), heads=64, lens=(128, 17, 0), extra_lens=(300, 0, 9), topk=300)
    given, outputs = moved(call), filled(call)
    wgmma(**given, **outputs, splits=splits)  # loads the programs, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wgmma(**given, **outputs, splits=splits)
    given["q"].mul_(-1)
    given["swa_lens"].copy_(torch.tensor([99, 0, 0]).view(3, 1))
    given["extra_lens"].copy_(torch.tensor([128, 0, 0]).view(3, 1))
    for tensor in outputs.values():
        tensor.fill_(torch.nan)
    graph.replay()
    replayed = {name: x.clone() for name, x in outputs.items()}
    wgmma(**given, **outputs, splits=splits)
    assert same_outputs(replayed, outputs)
    assert not replayed["o"].isnan().any()
