# SPDX-License-Identifier: Apache-2.0
"""`wgmma` on a GPU: against the oracle, the bits of the simulator, in a CUDA graph, the same row whatever is
beside it and whatever its tuning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.bits import as_integers
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.contract import OPERATION
from gdnbench_kernels.swa_decode.sm90_plan import ROWS
from gdnbench_kernels.swa_decode.wgmma import wgmma
from tests.kernels import swa_calls
from tests.kernels.swa_calls import (
    CALLS,
    DS_MLA,
    LAYOUTS,
    PER_TOKEN,
    Outputs,
    assert_passes,
    made,
    request_of,
    same_outputs,
)

HOPPER = (9, 0)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module", autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("wgmma is of compute capability 9.0 alone")


def moved(call: Call) -> dict[str, Any]:
    """The call's arguments on the GPU, the cache with its padding between pages."""
    tensors = {name: tensor.cuda() for name, tensor in call.tensors.items()}
    cache = call.tensors["cache"]
    if cache.stride(0) != cache[0].numel():
        memory = torch.empty(len(cache) * cache.stride(0), dtype=cache.dtype, device="cuda")
        tensors["cache"] = memory.as_strided(cache.shape, cache.stride()).copy_(cache)
    return {**tensors, **call.scalars, **call.conventions}


def filled(call: Call) -> Outputs:
    return {
        name: torch.full(shape, torch.nan, dtype=dtype, device="cuda")
        for name, (shape, dtype) in OPERATION.outputs(call).items()
    }


def on_gpu(call: Call, **options: int) -> Outputs:
    outputs = filled(call)
    wgmma(**moved(call), **outputs, **options)
    return {name: tensor.cpu() for name, tensor in outputs.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_accurate(name: str, layout: str) -> None:
    call = made(cache_layout=layout, **CALLS[name])
    assert_passes(call, on_gpu(call, workers=2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [64, 128])
def test_bits_of_a_model_s_heads_are_those_of_the_simulator(heads: int, layout: str) -> None:
    call = made(cache_layout=layout, heads=heads, lens=(128, 77))
    simulated = swa_calls.run(wgmma, call, {})
    assert_passes(call, simulated)
    found = on_gpu(call)
    different = {
        name: int((as_integers(found[name]) != as_integers(simulated[name])).sum()) for name in found
    }
    assert different == {"o": 0, "lse": 0}, "elements whose bits are not the simulator's"


@pytest.mark.parametrize(("layout", "heads"), [(PER_TOKEN, 64), (DS_MLA, 128)])
def test_a_row_is_the_same_alone_and_under_any_tuning(layout: str, heads: int) -> None:
    # More items than the GPU has SMs.
    call = made(cache_layout=layout, heads=heads, lens=(128, 31, 0, 128, 1) * 60)
    whole = on_gpu(call)
    assert_passes(call, whole)
    for rows in ROWS:
        assert same_outputs(on_gpu(call, rows=rows), whole)
    for tuning in ({"workers": 5}, {"prefetch": 0}, {"prefetch": 2}):
        assert same_outputs(on_gpu(call, **tuning), whole)
    for row in (0, 1, 2, 151, 299):
        alone = on_gpu(request_of(call, row))
        assert same_outputs(alone, {name: x[row : row + 1] for name, x in whole.items()})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_again(layout: str) -> None:
    """A race would show in some of many launches."""
    call = made(cache_layout=layout, heads=64, lens=(128, 17, 0, 128) * 80)
    given, outputs = moved(call), filled(call)
    wgmma(**given, **outputs)
    first = {name: tensor.clone() for name, tensor in outputs.items()}
    for _ in range(50):
        for tensor in outputs.values():
            tensor.fill_(torch.nan)
        wgmma(**given, **outputs)
        assert same_outputs(outputs, first)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_into_a_graph(layout: str) -> None:
    call = made(cache_layout=layout, heads=64, lens=(128, 17, 0))
    given, outputs = moved(call), filled(call)
    wgmma(**given, **outputs)  # loads the program, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wgmma(**given, **outputs)
    given["q"].mul_(-1)
    given["swa_lens"].copy_(torch.tensor([99, 0, 0]))
    for tensor in outputs.values():
        tensor.fill_(torch.nan)
    graph.replay()
    replayed = {name: x.clone() for name, x in outputs.items()}
    wgmma(**given, **outputs)
    assert same_outputs(replayed, outputs)
    assert not replayed["o"].isnan().any()
