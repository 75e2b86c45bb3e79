"""QuACK's kernels, compiled for sm_100a from fake tensors and run on the simulator.

QuACK's tuner, which nothing here uses, derives a class from one of triton's. An empty one stands in for it
while QuACK is imported: triton has a gigabyte.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
import torch._inductor.compile_fx  # looks for triton when it is imported, and must not find the stand-in

from gdnbench import sim

triton = ModuleType("triton")
triton.runtime = SimpleNamespace(cache=SimpleNamespace(FileCacheManager=object))  # type: ignore[attr-defined]
sys.modules["triton"] = triton

from cutlass.cute.runtime import from_dlpack  # noqa: E402
from quack.compile_utils import make_fake_tensor  # noqa: E402
from quack.cross_entropy import CrossEntropy  # noqa: E402
from quack.gemm_default_epi import GemmDefaultSm90, GemmDefaultSm100  # noqa: E402
from quack.rmsnorm import RMSNorm  # noqa: E402
from quack.softmax import Softmax  # noqa: E402
from quack.tile_scheduler import TileSchedulerOptions  # noqa: E402

del sys.modules["triton"]

NUMERIC: dict[torch.dtype, Any] = {torch.bfloat16: cutlass.BFloat16, torch.float32: cutlass.Float32}

GEMM_TILE = (128, 64)


def _compiled(kernel: Any, *arguments: Any) -> Any:
    return sim.compile(kernel, *arguments, cute.runtime.make_fake_stream())


def softmax(x: torch.Tensor, out: torch.Tensor) -> object:
    """out = softmax of the rows of x."""
    dtype, columns = NUMERIC[x.dtype], x.shape[1]
    rows = cute.sym_int()
    divisible = math.gcd(128 // dtype.width, columns)
    fakes = [make_fake_tensor(dtype, (rows, columns), divisible) for _ in range(2)]
    return sim.launch(_compiled(Softmax(dtype, columns), *fakes), x, out)


def softmax_called(x: torch.Tensor, out: torch.Tensor) -> object:
    """`softmax` by calling the kernel's own `@cute.jit` method."""
    with sim.active() as session:
        tensors = [from_dlpack(tensor, assumed_align=16) for tensor in (x, out)]
        Softmax(NUMERIC[x.dtype], x.shape[1])(*tensors, cuda.CUstream(0))
    return session.reports[0]


def softmax_by_executor(x: torch.Tensor, out: torch.Tensor, wrong: torch.Tensor) -> object:
    """`softmax` by an executor of the compiled kernel, and the refusal of a tensor of another dtype."""
    with sim.active():
        source, target, other = (from_dlpack(tensor, assumed_align=16) for tensor in (x, out, wrong))
        compiled = _compiled(Softmax(NUMERIC[x.dtype], x.shape[1]), source, target)
        compiled.to(0)(source, target, 0)
        try:
            compiled(other, target, 0)
        except sim.LaunchError as error:
            return error
    raise AssertionError("a tensor of another dtype was taken")


def rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, rstd: torch.Tensor, eps: float
) -> object:
    """out = x / sqrt(mean(x^2) + eps) * weight by rows; rstd is the factor."""
    dtype, columns = NUMERIC[x.dtype], x.shape[1]
    rows = cute.sym_int()
    divisible = math.gcd(128 // dtype.width, columns)
    fake_x, fake_out = (make_fake_tensor(dtype, (rows, columns), divisible) for _ in range(2))
    fake_weight = make_fake_tensor(cutlass.Float32, (columns,), 4)
    fake_rstd = make_fake_tensor(cutlass.Float32, (rows,))
    compiled = _compiled(
        RMSNorm(dtype, columns),
        fake_x,
        fake_weight,
        None,
        None,
        fake_out,
        None,
        fake_rstd,
        None,
        cutlass.Float32(eps),
    )
    return sim.launch(compiled, x, weight, None, None, out, None, rstd, None, eps)


class _SoftmaxInClusters(Softmax):
    """QuACK's softmax with the CTAs of each row given: by itself it takes one up to 16,384 columns."""

    def __init__(self, dtype: Any, columns: int, ctas: int) -> None:
        super().__init__(dtype, columns)
        self.ctas = ctas

    def _set_cluster_n(self) -> None:
        self.cluster_n = self.ctas


def softmax_in_clusters(x: torch.Tensor, out: torch.Tensor, ctas: int, engine: str, schedule: str) -> object:
    """out = softmax of the rows of x, each by `ctas` CTAs of a cluster, with the checker's findings."""
    dtype, columns = NUMERIC[x.dtype], x.shape[1]
    rows = cute.sym_int()
    divisible = math.gcd(128 // dtype.width, columns)
    fakes = [make_fake_tensor(dtype, (rows, columns), divisible) for _ in range(2)]
    compiled = _compiled(_SoftmaxInClusters(dtype, columns, ctas), *fakes)
    return sim.launch(compiled, x, out, engine=engine, schedule=schedule, check=True)


class _CrossEntropyInClusters(CrossEntropy):
    """The same for its cross entropy."""

    def __init__(self, dtype: Any, columns: int, ctas: int, online_softmax: bool) -> None:
        super().__init__(dtype, columns, online_softmax)
        self.ctas = ctas

    def _set_cluster_n(self) -> None:
        self.cluster_n = self.ctas


def cross_entropy_in_clusters(
    x: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, dx: torch.Tensor, ctas: int
) -> object:
    """loss = cross entropy of the rows of x with `target` as their classes, and dx its gradient, unless
    dx is empty. Each row has `ctas` CTAs."""
    dtype, columns = NUMERIC[x.dtype], x.shape[1]
    rows = cute.sym_int()
    divisible = math.gcd(128 // dtype.width, columns)
    fake_x, fake_dx = (make_fake_tensor(dtype, (rows, columns), divisible) for _ in range(2))
    fake_target = make_fake_tensor(cutlass.Int32, (rows,))
    fake_loss = make_fake_tensor(cutlass.Float32, (rows,))
    gradient = dx.numel() > 0
    compiled = _compiled(
        _CrossEntropyInClusters(dtype, columns, ctas, online_softmax=not gradient),
        fake_x,
        fake_target,
        None,
        fake_loss,
        None,
        fake_dx if gradient else None,
        None,
        cutlass.Int32(0),
    )
    return sim.launch(compiled, x, target, None, loss, None, dx if gradient else None, None, -100, check=True)


class _Gemm:
    """QuACK's SM100 GEMM of plain tensors: its own call takes named tuples of options."""

    def __init__(self, clusters: int) -> None:
        self.clusters = clusters

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, bias: cute.Tensor | None, stream: cuda.CUstream
    ) -> None:
        gemm = GemmDefaultSm100(
            cutlass.Float32, a.element_type, GEMM_TILE, (1, 1, 1), use_clc_persistence=False
        )
        epilogue = GemmDefaultSm100.EpilogueArguments(mRowVecBroadcast=bias)
        scheduler = TileSchedulerOptions(max_active_clusters=cutlass.Int32(self.clusters))
        gemm(a, b, d, None, epilogue, scheduler, None, stream)


def gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, bias: torch.Tensor, ctas: int) -> object:
    """d[l] = a[l] b[l]^T + bias[l]: batches first, K contiguous, at most `ctas` CTAs; bias may be empty."""
    rows, columns, inner, batch = (cute.sym_int() for _ in range(4))
    fakes = [
        make_fake_tensor(NUMERIC[tensor.dtype], (batch, *shape), 8)
        for tensor, shape in ((a, (rows, inner)), (b, (columns, inner)), (d, (rows, columns)))
    ]
    if bias.numel() == 0:
        return sim.launch(_compiled(_Gemm(ctas), *fakes, None), a, b, d, None)
    fake_bias = make_fake_tensor(NUMERIC[bias.dtype], (batch, columns), 4)
    return sim.launch(_compiled(_Gemm(ctas), *fakes, fake_bias), a, b, d, bias)


class _HopperGemm:
    """QuACK's GEMM for sm_90: TMA, wgmma, warps that give registers to each other."""

    def __init__(self, clusters: int, cluster: tuple[int, int, int], pingpong: bool) -> None:
        self.clusters, self.cluster, self.pingpong = clusters, cluster, pingpong

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream: cuda.CUstream) -> None:
        tile = (64, 64) if self.pingpong else (128, 64)  # of one warpgroup, or of both
        gemm = GemmDefaultSm90(cutlass.Float32, a.element_type, tile, self.cluster, pingpong=self.pingpong)
        scheduler = TileSchedulerOptions(max_active_clusters=cutlass.Int32(self.clusters))
        gemm(a, b, d, None, GemmDefaultSm90.EpilogueArguments(), scheduler, None, stream)


def hopper_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    clusters: int,
    cluster: tuple[int, int, int],
    pingpong: bool,
    engine: str,
    schedule: str,
) -> object:
    """d[l] = a[l] b[l]^T: batches first, K contiguous, at most `clusters` clusters of `cluster` CTAs."""
    rows, columns, inner, batch = (cute.sym_int() for _ in range(4))
    fakes = [
        make_fake_tensor(NUMERIC[tensor.dtype], (batch, *shape), 8)
        for tensor, shape in ((a, (rows, inner)), (b, (columns, inner)), (d, (rows, columns)))
    ]
    stream = cute.runtime.make_fake_stream()
    compiled = sim.compile(_HopperGemm(clusters, cluster, pingpong), *fakes, stream, arch="sm_90a")
    return sim.launch(compiled, a, b, d, engine=engine, schedule=schedule)
