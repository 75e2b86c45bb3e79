"""Clusters from CUDA C++ with cooperative groups, compiled by NVRTC."""

from __future__ import annotations

import pytest
import torch

from gdnbench import sim
from gdnbench.sim.host import PtxKernel
from gdnbench.sim.ptx import keep_entry, parse
from tests.sim.cuda_kernels import ptx_of, use_nvrtc

BINS, BLOCK, VALUES = 96, 64, 1000

# A histogram whose bins are spread over the CTAs of a cluster.
SOURCE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void histogram(int *bins, int nbins, int bins_per_block, const int *values, int count)
{
    extern __shared__ int own[];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x) own[i] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        int bin = values[i];
        int *there = cluster.map_shared_rank(own, bin / bins_per_block);
        atomicAdd(there + bin % bins_per_block, 1);
    }
    cluster.sync();
    int *out = bins + cluster.block_rank() * bins_per_block;
    for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x) atomicAdd(out + i, own[i]);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) swapped(int *out, const int *in)
{
    __shared__ int own[32];
    cg::cluster_group cluster = cg::this_cluster();
    own[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
    auto token = cluster.barrier_arrive();
    unsigned other = cluster.block_rank() ^ 1;
    cluster.barrier_wait(static_cast<decltype(token)&&>(token));
    out[blockIdx.x * 32 + threadIdx.x] = *cluster.map_shared_rank(own + threadIdx.x, other);
    cluster.sync();
}
"""


@pytest.fixture(autouse=True)
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvrtc(monkeypatch)


def _kernel(entry: str, grid: int, block: int, cluster: int = 1, shared: int = 0) -> PtxKernel:
    module = parse(keep_entry(ptx_of(SOURCE), entry))
    return PtxKernel(module, entry, (grid, 1, 1), (block, 1, 1), shared, (cluster, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "engine"), [(size, engine) for size in (2, 4, 8) for engine in ("interpreter", "compiled")]
)
def test_a_distributed_histogram(cluster: int, engine: str) -> None:
    """The example of the CUDA programming guide, "Distributed Shared Memory", against torch.bincount."""
    values = torch.randint(0, BINS, (VALUES,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    bins = torch.zeros(BINS, dtype=torch.int32)
    each = BINS // cluster
    kernel = _kernel("histogram", 8, BLOCK, cluster, 4 * each)
    report = sim.launch(kernel, bins, BINS, each, values, VALUES, check=True, engine=engine)
    assert torch.equal(bins, torch.bincount(values, minlength=BINS).int())
    assert not report.findings


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.slow
def test_cluster_dims_of_the_kernel(engine: str) -> None:
    values = torch.arange(4 * 32, dtype=torch.int32)
    out = torch.zeros_like(values)
    report = sim.launch(_kernel("swapped", 4, 32), out, values, check=True, engine=engine)
    assert torch.equal(out.reshape(2, 2, 32), values.reshape(2, 2, 32).flip(1))
    assert not report.findings
