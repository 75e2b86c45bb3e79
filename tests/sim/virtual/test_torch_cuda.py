# SPDX-License-Identifier: Apache-2.0
"""What torch.cuda says of the virtual GPU, and its streams, events, generators and graphs."""

from __future__ import annotations

import re

import pytest
import torch

from gdnbench.sim.errors import LaunchError, UnsupportedError
from gdnbench.sim.virtual import VirtualGpu, machine_named, virtual_gpu
from tests.messages import wording


@pytest.mark.parametrize(
    ("machine", "sms", "capability", "count", "name"),
    [
        ("b200", None, (10, 0), 148, "NVIDIA B200"),
        ("b200", 5, (10, 0), 5, "NVIDIA B200"),
        ("b300", None, (10, 3), 148, "NVIDIA B300 SXM6 AC"),
        ("h200", None, (9, 0), 132, "NVIDIA H200"),
        ("h100", None, (9, 0), 132, "NVIDIA H100 80GB HBM3"),
    ],
)
def test_properties(
    machine: str, sms: int | None, capability: tuple[int, int], count: int, name: str
) -> None:
    with virtual_gpu(machine, sms):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == capability
        assert torch.cuda.get_device_name(0) == name
        found = torch.cuda.get_device_properties("cuda:0")
        assert (found.major, found.minor) == capability
        assert found.multi_processor_count == count
        assert found.shared_memory_per_block_optin == 227 * 1024
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.version.cuda is not None


def test_nothing_is_left_after_the_block() -> None:
    before = torch.cuda.is_available, torch.cuda.Stream, torch.compile, torch.Generator, torch.version.cuda
    accelerator = torch.accelerator.current_accelerator()
    with virtual_gpu():
        kept = torch.ones(2, device="cuda")
    assert before == (
        torch.cuda.is_available,
        torch.cuda.Stream,
        torch.compile,
        torch.Generator,
        torch.version.cuda,
    )
    assert torch.accelerator.current_accelerator() == accelerator
    assert kept.tolist() == [1, 1]
    with pytest.raises(AssertionError, match=wording("sim.virtual.none-active")):
        torch.ones(2, device="cuda")


def test_unknown_machines_and_second_gpus_are_refused(gpu: VirtualGpu) -> None:
    with pytest.raises(LaunchError, match=wording("sim.virtual.active-already")), virtual_gpu():
        pass
    with pytest.raises(LaunchError, match=wording("sim.virtual.machine-unknown", name="a100")):
        machine_named("a100")
    with pytest.raises(LaunchError, match=wording("sim.host.sms-of-machine", sms=10**12)):
        machine_named("b200", 10**12)


def test_streams_and_events(gpu: VirtualGpu) -> None:
    stream = torch.cuda.Stream()
    assert torch.cuda.current_stream().cuda_stream == 0
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
    x = torch.ones(4, device="cuda")
    x.record_stream(stream)
    stream.wait_stream(torch.cuda.current_stream())
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    x.add_(1)
    end.record()
    torch.cuda.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 60_000


def test_generators_repeat(gpu: VirtualGpu) -> None:
    torch.manual_seed(3)
    first = torch.rand(4, device="cuda"), torch.rand(4)
    torch.manual_seed(3)
    torch.rand(4)  # the CPU's generator is another
    assert torch.equal(torch.rand(4, device="cuda"), first[0])
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), drawn)
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert generator.device == torch.device("cuda", 0)
    assert isinstance(torch.default_generator, torch.Generator)


def test_memory_is_counted(gpu: VirtualGpu) -> None:
    before = torch.cuda.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 1 << 20
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + (1 << 20)
    assert torch.cuda.mem_get_info()[1] == 192 * 10**9
    full = wording("sim.virtual.out-of-memory", size=192 * 10**9 + 1, capacity=192 * 10**9)
    with pytest.raises(torch.OutOfMemoryError, match=full):
        torch.empty(192 * 10**9 + 1, dtype=torch.uint8, device="cuda")


def test_a_graph_runs_at_replay_alone(gpu: VirtualGpu) -> None:
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1) * 2
        x.add_(1)
    assert x.tolist() == [0, 0, 0]  # a capture computes nothing
    assert y.isnan().all()
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([1] * 3, [2] * 3)
    x.fill_(5)
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([6] * 3, [12] * 3)


def test_a_graph_cannot_wait(gpu: VirtualGpu) -> None:
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    refused = re.escape("operation not permitted when stream is capturing")
    with pytest.raises(RuntimeError, match=refused), torch.cuda.graph(graph):
        x.sum().item()
    assert not torch.cuda.is_current_stream_capturing()


def test_compile_runs_eagerly_and_says_so(gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]) -> None:
    @torch.compile(fullgraph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    assert double(torch.ones(2, device="cuda")).tolist() == [2, 2]
    assert torch.compile(double) is double
    assert capsys.readouterr().err.count("gdnbench: torch.compile runs eagerly") <= 1


def test_nccl_is_refused(gpu: VirtualGpu) -> None:
    with pytest.raises(UnsupportedError, match=wording("sim.virtual.nccl")):
        torch.distributed.init_process_group("nccl")
