# SPDX-License-Identifier: Apache-2.0
"""`portable` on a GPU: the bits of the simulator, in a CUDA graph, and the same row whatever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")

from gdnbench.judge.calls import compact_call
from gdnbench.store.reader import Store
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.contract import OPERATION
from gdnbench_kernels.swa_decode.launch_args import arch_of
from gdnbench_kernels.swa_decode.portable import portable
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

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CAPTURES = Path(__file__).resolve().parents[2] / "captures"


@pytest.fixture(scope="module", autouse=True)
def arch() -> str:
    """What `portable` is compiled for here."""
    try:
        return arch_of(torch.device("cuda"))
    except NotImplementedError as error:
        pytest.skip(str(error))


def moved(call: Call) -> dict[str, Any]:
    """The call's arguments on the GPU, the cache with its padding between pages."""
    tensors = {name: tensor.cuda() for name, tensor in call.tensors.items()}
    return {**tensors, "cache": with_padding(call.tensors["cache"]), **call.scalars, **call.conventions}


def with_padding(cache: Tensor) -> Tensor:
    """A copy on the GPU with the strides of `cache`."""
    memory = torch.empty(len(cache) * cache.stride(0), dtype=cache.dtype, device="cuda")
    return memory.as_strided(cache.shape, cache.stride()).copy_(cache)


def filled(call: Call, value: float) -> Outputs:
    return {
        name: torch.full(shape, value, dtype=dtype, device="cuda")
        for name, (shape, dtype) in OPERATION.outputs(call).items()
    }


def on_gpu(call: Call) -> Outputs:
    outputs = filled(call, torch.nan)
    portable(**moved(call), **outputs)
    return {name: tensor.cpu() for name, tensor in outputs.items()}


def assert_same_as_simulated(call: Call, arch: str) -> None:
    simulated = swa_calls.run(portable, call, {"arch": arch})
    assert_passes(call, simulated)
    assert same_outputs(on_gpu(call), simulated)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_those_of_the_simulator(name: str, layout: str, arch: str) -> None:
    assert_same_as_simulated(made(cache_layout=layout, **CALLS[name]), arch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [64, 128])
def test_bits_of_a_model_s_heads_are_those_of_the_simulator(heads: int, layout: str, arch: str) -> None:
    assert_same_as_simulated(made(cache_layout=layout, heads=heads, lens=(128, 77)), arch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_of_a_capture_are_those_of_the_simulator(layout: str, arch: str) -> None:
    with Store.open(CAPTURES / f"swa_{layout}.zarr.zip") as store:
        records = [compact_call(record, OPERATION, torch.device("cpu")) for record in store.records]
    assert records
    for call in records:
        assert_same_as_simulated(call, arch)


@pytest.mark.parametrize(("layout", "heads"), [(PER_TOKEN, 64), (DS_MLA, 128)])
def test_a_row_is_the_same_alone(layout: str, heads: int) -> None:
    # More CTAs than the GPU holds at once, and more heads in each than for one request.
    call = made(cache_layout=layout, heads=heads, lens=(128, 31, 0, 128, 1) * 60)
    whole = on_gpu(call)
    assert_passes(call, whole)
    for row in (0, 1, 2, 151, 299):
        alone = on_gpu(request_of(call, row))
        assert same_outputs(alone, {name: x[row : row + 1] for name, x in whole.items()})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_captured_into_a_graph(layout: str) -> None:
    call = made(cache_layout=layout, heads=64, lens=(128, 17, 0))
    given = moved(call)
    outputs = filled(call, torch.nan)
    portable(**given, **outputs)  # loads the program, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        portable(**given, **outputs)
    given["q"].mul_(-1)
    given["swa_lens"].copy_(torch.tensor([99, 0, 0]))
    for tensor in outputs.values():
        tensor.fill_(torch.nan)
    graph.replay()
    replayed: dict[str, Tensor] = {name: x.clone() for name, x in outputs.items()}
    portable(**given, **outputs)
    assert same_outputs(replayed, outputs)
    assert not replayed["o"].isnan().any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [portable, wgmma])
def test_launches_that_overlap_see_what_was_written_before_them(kernel: Any, layout: str) -> None:
    """In a graph each launch has the outputs of the one before it as queries, and after every third one a
    copy writes other entries, lengths and pages. Each launch prefetches by the earlier ones."""
    if kernel is wgmma and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is for sm_90a alone")
    one, other = (
        moved(made(cache_layout=layout, heads=64, lens=lens * 16, seed=seed))
        for seed, lens in ((1, (128, 17, 0, 90)), (2, (90, 128, 17, 0)))
    )
    assert not torch.equal(one["swa_indices"], other["swa_indices"])
    found = []
    for pdl in (True, False):
        given = {name: x.clone() if isinstance(x, Tensor) else x for name, x in one.items()}
        given["cache"] = with_padding(one["cache"])
        found.append(chained(kernel, given, one, other, pdl))
    assert torch.equal(*(o.view(torch.int16) for o in found))
    assert found[0].float().abs().sum() > 0


def chained(
    kernel: Any, given: dict[str, Any], one: dict[str, Any], other: dict[str, Any], pdl: bool
) -> Tensor:
    """The outputs of 12 launches in a graph, in the order of the launches."""
    changing = [name for name in ("swa_indices", "swa_lens", "cache", "inv_scale") if name in given]
    start = {name: given[name].clone() for name in changing}
    q = given.pop("q")
    rows = [torch.zeros_like(q) for _ in range(12)]

    def run() -> None:
        for turn, o in enumerate(rows):
            kernel(**given, q=q if turn == 0 else rows[turn - 1], o=o, pdl=pdl)
            if turn % 3 == 2:
                for name in changing:
                    given[name].copy_((other if turn % 2 == 0 else one)[name])

    run()  # loads the programs, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for name in changing:
        given[name].copy_(start[name])
    graph.replay()
    return torch.stack(rows)
