# SPDX-License-Identifier: Apache-2.0
"""A virtual GPU beside the simulator's other blocks, and what each thread sees of it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from gdnbench import sim
from gdnbench.sim.errors import LaunchError
from gdnbench.sim.host.ptx_kernel import PtxKernel
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.virtual import VirtualGpu, virtual_gpu
from gdnbench.sim.virtual.libcuda import provide_libcuda
from tests.cli.kernel_files import ADD
from tests.messages import wording
from tests.subset import quick

Run = Callable[..., "subprocess.CompletedProcess[str]"]
KERNEL = PtxKernel(parse(ADD), "add", (1, 1, 1), (32, 1, 1), labels=("a", "b", "c", "n"))


def test_a_gpu_inside_an_active_block() -> None:
    a, b, c = torch.randn(32), torch.randn(32), torch.full((32,), torch.nan)
    with sim.settings_apply(sim.Settings(schedule="early")) as session:
        with virtual_gpu("b200", sms=3) as gpu:
            assert torch.ones(2, device="cuda").sum().item() == 2
        sim.launch(KERNEL, a, b, c, 32)
    assert torch.equal(c, a + b)
    assert len(session.reports) == 1
    assert gpu.reports == []


def test_a_launch_of_cuda_tensors_inside_a_gpu_says_what_to_do(gpu: VirtualGpu) -> None:
    a, b, c = torch.randn(32), torch.randn(32), torch.full((32,), torch.nan)
    sim.launch(KERNEL, a, b, c, 32)  # CPU tensors are simulated as anywhere
    assert torch.equal(c, a + b)
    with (
        pytest.raises(LaunchError, match="c is on cuda:0.*" + wording("sim.virtual.active-inside")),
        sim.settings_apply(),
    ):
        sim.launch(KERNEL, a, b, c.cuda(), 32)


def test_a_second_gpu_says_what_to_do(gpu: VirtualGpu) -> None:
    with pytest.raises(LaunchError, match=wording("sim.virtual.active-already")), virtual_gpu("h200"):
        pass
    assert torch.cuda.get_device_name() == "NVIDIA B200"


@pytest.mark.slow
@pytest.mark.parametrize("inner", quick([["--", sys.executable, "-c", "import torch"], ["add.ptx:add"]], 1))
def test_gdnbench_sim_of_gdnbench_sim(inner: list[str], run_sim: Run) -> None:
    """One line of the inner command, which ends with exit status 2, "bad input". So the outer one does."""
    ran = run_sim("--", sys.executable, "-m", "gdnbench", "sim", *inner)
    assert ran.returncode == 2
    first, *_ = ran.stderr.splitlines()
    assert re.search(wording("sim.virtual.nested", variable="GDNBENCH_VIRTUAL"), first)


def test_threads_have_current_streams_of_their_own(gpu: VirtualGpu) -> None:
    """As CUDA's: "torch.cuda.set_stream: sets the current stream" of the calling thread."""
    stream, seen = torch.cuda.Stream(), []
    other = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
    with torch.cuda.stream(stream):
        other.start()
        other.join()
        assert torch.cuda.current_stream() == stream
    assert seen == [torch.cuda.default_stream()]


def test_a_graphs_memory_is_in_the_snapshot(gpu: VirtualGpu) -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    spans = [
        (one["address"], one["address"] + one["total_size"])
        for one in torch.cuda.memory_snapshot()
        if tuple(one["segment_pool_id"]) == tuple(graph.pool())
    ]
    assert any(start <= y.data_ptr() < stop for start, stop in spans)
    assert not any(start <= x.data_ptr() < stop for start, stop in spans)


def test_cute_dsl_has_an_architecture_after_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that it takes without a driver. It would ask the driver that stays, which finds no device,
    again and again (4.8.1)."""
    dsl = pytest.importorskip("cutlass.cutlass_dsl").CuTeDSL._get_dsl()
    if not hasattr(dsl.envar, "_arch") or not provide_libcuda():
        pytest.skip("needs CuTe DSL 4.7 or later on a machine without a driver")
    monkeypatch.setattr(dsl.envar, "_arch", None)
    with virtual_gpu("b200"):
        pass
    assert dsl.envar._arch == "sm_100a"
