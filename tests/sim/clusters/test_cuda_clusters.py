# SPDX-License-Identifier: Apache-2.0
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


# The example of the CUDA programming guide, "Work Stealing with Cluster Launch Control", is the model: the
# blocks that fit take the work of those that do not. `by` tells which block did which.
STEALING = """
#include <cooperative_groups.h>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

extern "C" __global__ void axpy(float *y, const float *x, int *by, float alpha, int n)
{
    __shared__ uint4 response;
    __shared__ uint64_t arrived;
    unsigned parity = 0;
    if (threadIdx.x == 0) ptx::mbarrier_init(&arrived, 1);
    for (int block = blockIdx.x;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::fence_proxy_async_generic_sync_restrict(
                ptx::sem_acquire, ptx::space_cluster, ptx::scope_cluster);
            cg::invoke_one(
                cg::coalesced_threads(), ptx::clusterlaunchcontrol_try_cancel<>, &response, &arrived);
            ptx::mbarrier_arrive_expect_tx(
                ptx::sem_relaxed, ptx::scope_cta, ptx::space_shared, &arrived, sizeof response);
            by[block] = blockIdx.x;
        }
        int i = block * blockDim.x + threadIdx.x;
        if (i < n) y[i] += alpha * x[i];
        while (!ptx::mbarrier_try_wait_parity(&arrived, parity)) {}
        parity ^= 1;
        if (!ptx::clusterlaunchcontrol_query_cancel_is_canceled(response)) break;
        block = ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<int>(response);
        ptx::fence_proxy_async_generic_sync_restrict(
            ptx::sem_release, ptx::space_shared, ptx::scope_cluster);
    }
}
"""


@pytest.mark.parametrize("schedule", ["late", "early", "random:1"])
@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.slow
def test_blocks_that_fit_take_the_work_of_others(engine: str, schedule: str) -> None:
    """16 blocks of 64 threads; one SM holds four of these by their shared memory."""
    module = parse(keep_entry(ptx_of(STEALING), "axpy"))
    kernel = PtxKernel(module, "axpy", (16, 1, 1), (64, 1, 1), 50_000)
    x, y = torch.arange(1000.0), torch.full((1024,), 2.0)
    by = torch.full((16,), -1, dtype=torch.int32)
    with sim.settings_apply(sim.Settings(engine=engine, schedule=schedule), check=True, sms=1):
        report = sim.launch(kernel, y, x, by, 0.5, 1000)
    assert torch.equal(y[:1000], 2 + 0.5 * x)
    assert (y[1000:] == 2).all()
    assert by.tolist()[:4] == [0, 1, 2, 3]
    assert (by[by.long()] == by).all()
    assert report.ok
    assert not report.findings
