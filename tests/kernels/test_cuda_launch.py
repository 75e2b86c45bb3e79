# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on a real GPU: the launcher, torch's stream, CUDA graphs, what other GPUs are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gdnbench.ops import operation
from gdnbench_kernels.artifacts import ARCHS
from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.compiling import Program, program
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.gdn_prefill.sm100 import ChunkTables
from gdnbench_kernels.gdn_prefill.sources import metadata_source
from gdnbench_kernels.run import run_kernel
from tests.messages import wording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LENGTHS = (1, 0, 63, 64, 65, 0, 500, 129)


def capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability()


def metadata() -> Program:
    """The one kernel of gdn_prefill that any GPU can run, compiled for this one."""
    arch = next((arch for arch, runs_on in ARCHS.items() if capability() in runs_on), None)
    if arch is None:
        pytest.skip(f"no target for compute capability {capability()}")
    return program(metadata_source(), arch)


def tables_and_bounds() -> tuple[ChunkTables, torch.Tensor]:
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    return ChunkTables.allocate(sum(LENGTHS), len(LENGTHS), torch.device("cuda")), bounds.int().cuda()


def check(tables: ChunkTables) -> None:
    plan = plan_chunks(torch.tensor([0, *LENGTHS]).cumsum(0), CHUNK)
    assert tables.total.tolist() == [plan.total]
    assert tables.offsets.tolist() == plan.offsets.tolist()
    expected = torch.stack([plan.sequence, plan.index], dim=1)
    assert tables.indices[: plan.total].tolist() == expected.tolist()


def test_a_program_runs_on_the_current_stream() -> None:
    kernel = metadata()
    tables, bounds = tables_and_bounds()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what is enqueued elsewhere would be done long before
        for part in (tables.offsets, tables.indices, tables.total):
            part.fill_(-1)
        kernel(bounds, tables.offsets, tables.indices, tables.total)
    stream.synchronize()
    check(tables)


def test_a_program_is_captured_in_a_graph() -> None:
    kernel = metadata()
    tables, bounds = tables_and_bounds()
    kernel(bounds, tables.offsets, tables.indices, tables.total)  # loads the module: not while capturing
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(bounds, tables.offsets, tables.indices, tables.total)
    for part in (tables.offsets, tables.indices, tables.total):
        part.fill_(-1)
    graph.replay()
    torch.cuda.synchronize()
    check(tables)


def on_cuda(call: Call) -> Call:
    return Call({name: x.cuda() for name, x in call.tensors.items()}, call.scalars, call.conventions)


def test_another_gpu_is_told_which_is_needed() -> None:
    if capability()[0] == 10:
        pytest.skip("this GPU is the one that is needed")
    found = operation("gdn_prefill")
    with pytest.raises(
        NotImplementedError, match=wording("kernels.capability", wanted="10.0, 10.3")
    ) as refusal:
        run_kernel(found, "sm100", on_cuda(found.synth(seqlens=(70, 3))))
    assert torch.cuda.get_device_name() in str(refusal.value)


@pytest.mark.parametrize("seed", [0, 1])
def test_sm100_on_its_gpu_has_the_bits_of_the_simulator(seed: int) -> None:
    if capability()[0] != 10:
        pytest.skip("needs a GPU of compute capability 10.0 or 10.3")
    from gdnbench.replay.simulated import simulated

    found = operation("gdn_prefill")
    call = found.synth(seqlens=(70, 0, 129), heads=(1, 2), initial_state=True, seed=seed)
    result: dict[str, Any] = run_kernel(found, "sm100", on_cuda(call))
    with simulated("sim"):
        expected = run_kernel(found, "sm100", call)
    for name, tensor in expected.items():
        assert torch.equal(result[name].cpu(), tensor), name
