# SPDX-License-Identifier: Apache-2.0
"""Small kernels in Triton, each launched as its users do on a virtual GPU.

A case takes the name of a machine and CPU tensors, and writes some of them. It returns text for the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gdnbench.sim import Settings
from gdnbench.sim.virtual import VirtualGpu, virtual_gpu


@triton.jit
def add_kernel(x, y, out, n, factor, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = factor x + y, elements [0, n)."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = i < n
    tl.store(out + i, factor * tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def scalars_kernel(out, numbers, flag, half, long):  # type: ignore[no-untyped-def]
    """Five doubles: two integers and a float of a tuple, a boolean, a float of 16 bits, and 64 bits."""
    tl.store(out, numbers[0].to(tl.float64) + numbers[1].to(tl.float64))
    tl.store(out + 1, numbers[2].to(tl.float64))
    tl.store(out + 2, flag.to(tl.float64))
    tl.store(out + 3, half.to(tl.float64))
    tl.store(out + 4, long.to(tl.float64))


@triton.jit
def gemm_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """c [M, N] = a [M, K] b [K, N], row-major."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m * K + k[None, :], mask=(m < M) & (k < K)[None, :], other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k < K)[:, None] & (n < N), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + m * N + n, total, mask=(m < M) & (n < N))


@triton.jit
def tiles_kernel(source, target, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """target = 2 source, by tensor descriptors."""
    row = tl.program_id(0) * ROWS
    tile = source.load([row, 0])
    target.store([row, 0], tile + tile)


@triton.jit
def made_tiles_kernel(source, target, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same, by descriptors that the kernel makes."""
    row = tl.program_id(0) * ROWS
    read = tl.make_tensor_descriptor(source, [M, N], [N, 1], [ROWS, COLUMNS])
    written = tl.make_tensor_descriptor(target, [M, N], [N, 1], [ROWS, COLUMNS])
    tile = read.load([row, 0])
    written.store([row, 0], tile + tile)


@triton.jit
def softmax_kernel(x, y, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = softmax of the rows of x [M, n]."""
    i = tl.program_id(0) * n + tl.arange(0, SIZE)
    inside = tl.arange(0, SIZE) < n
    row = tl.load(x + i, mask=inside, other=-float("inf"))
    powers = tl.exp(row - tl.max(row, 0))
    tl.store(y + i, powers / tl.sum(powers, 0), mask=inside)


@triton.jit
def layer_norm_kernel(x, y, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = the rows of x [M, n] without their mean, over their standard deviation."""
    i = tl.program_id(0) * n + tl.arange(0, SIZE)
    inside = tl.arange(0, SIZE) < n
    row = tl.load(x + i, mask=inside, other=0.0)
    centred = tl.where(inside, row - tl.sum(row, 0) / n, 0.0)
    tl.store(y + i, centred * tl.rsqrt(tl.sum(centred * centred, 0) / n + 1e-5), mask=inside)


@triton.jit
def sums_kernel(x, y, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """y [M, n]: in each row the sum, the largest and the index of the largest of x's row, all integers."""
    i = tl.arange(0, SIZE)
    row = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-1000)
    total, most = tl.sum(tl.where(i < n, row, 0), 0), tl.max(row, 0)
    found = tl.where(i == 0, total, tl.where(i == 1, most, tl.argmax(row, 0)))
    tl.store(y + tl.program_id(0) * n + i, found, mask=i < n)


@triton.jit
def total_kernel(x, y, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """y [0]: the sum of x [n, SIZE], one axis after the other."""
    i = tl.arange(0, 4)[:, None]
    tile = tl.load(x + i * SIZE + tl.arange(0, SIZE)[None, :], mask=i < n, other=0)
    tl.store(y, tl.sum(tl.sum(tile, 1), 0))


@triton.autotune(configs=[triton.Config({"SIZE": size}, num_warps=1) for size in (32, 64, 128)], key=["n"])
@triton.jit
def tuned_kernel(x, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """x *= 2 in place, and the size of the block in what follows: a second launch would show."""
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(x + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


# Of the first configuration the left operand alone does not fit into shared memory.
@triton.autotune(configs=[triton.Config({"BM": rows}) for rows in (1024, 64)], key=[])
@triton.jit
def large_kernel(a, b, c, M, N, K, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """c [M, 64] = a [M, 128] b [128, 64]."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n, k = tl.arange(0, 64)[None, :], tl.arange(0, 128)
    left = tl.load(a + m * K + k[None, :], mask=m < M, other=0.0)
    tl.store(c + m * N + n, tl.dot(left, tl.load(b + k[:, None] * N + n)), mask=m < M)


def _on_gpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cuda() for name, tensor in tensors.items()}


@contextmanager
def _machine(name: str, tensors: dict[str, Tensor]) -> Iterator[tuple[VirtualGpu, dict[str, Tensor]]]:
    """The GPU and the tensors on it, which are copied back at the end."""
    with virtual_gpu(name) as gpu:
        there = _on_gpu(tensors)
        yield gpu, there
        for key, tensor in tensors.items():
            tensor.copy_(there[key])


def _grids(gpu: VirtualGpu) -> str:
    return " ".join(
        f"{launch.entry}{launch.grid}{launch.block}" for report in gpu.reports for launch in report.launches
    )


def _refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def add(machine: str, **tensors: Tensor) -> str:
    with _machine(machine, tensors) as (gpu, at):
        n = len(at["x"])
        add_kernel[(triton.cdiv(n, 128),)](at["x"], at["y"], at["out"], n, 1.5, SIZE=128)
        return _grids(gpu)


def scalars(machine: str, **tensors: Tensor) -> str:
    with _machine(machine, tensors) as (_, at):
        scalars_kernel[(1,)](at["out"], (-7, 1 << 33, 0.1), True, 2.5, (1 << 63) + 1)
    return ""


def gemm(machine: str, **tensors: Tensor) -> str:
    with _machine(machine, tensors) as (_, at):
        (m, k), n = at["a"].shape, at["b"].shape[1]
        grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
        kernel = gemm_kernel[grid](at["a"], at["b"], at["c"], m, n, k, BM=128, BN=64, BK=64)
        return str(kernel.asm["ptx"])


def tiles(machine: str, **tensors: Tensor) -> str:
    with _machine(machine, tensors) as (_, at):
        read, written = (TensorDescriptor.from_tensor(at[name], [32, 64]) for name in ("x", "out"))
        kernel = tiles_kernel[(triton.cdiv(len(at["x"]), 32),)](read, written, ROWS=32)
        return str(kernel.asm["ptx"])


def made_tiles(machine: str, **tensors: Tensor) -> str:
    def allocate(size: int, align: int, stream: int | None) -> Tensor:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    with _machine(machine, tensors) as (_, at):
        triton.set_allocator(allocate)
        grid = (triton.cdiv(len(at["x"]), 32),)
        made_tiles_kernel[grid](at["x"], at["out"], *at["x"].shape, ROWS=32, COLUMNS=64)
    return ""


def tuned(machine: str, setting: str | None, **tensors: Tensor) -> str:
    """A kernel with three configurations, twice; `setting` is GDNBENCH_TRITON_CONFIG."""
    chosen = {} if setting is None else {"GDNBENCH_TRITON_CONFIG": setting}
    with mock.patch.dict(os.environ, chosen), _machine(machine, tensors) as (gpu, at):

        def launch() -> None:
            n = len(at["x"])
            tuned_kernel[lambda meta: (triton.cdiv(n, meta["SIZE"]),)](at["x"], n)

        wrong = [_refused(launch) for _ in range(2)]
        return f"{_grids(gpu)} {wrong[0]}"


def large(machine: str, **tensors: Tensor) -> str:
    with _machine(machine, tensors) as (gpu, at):
        m, k = at["a"].shape
        grid = lambda meta: (triton.cdiv(m, meta["BM"]),)  # noqa: E731  # as Triton's users write it
        large_kernel[grid](at["a"], at["b"], at["c"], m, 64, k)
        return _grids(gpu)


def reduced(machine: str, kernel: str, warps: int, **tensors: Tensor) -> str:
    """A reduction over rows under the checker; one line for each finding."""
    with virtual_gpu(machine, settings=Settings(check=True)) as gpu:
        there = _on_gpu(tensors)
        rows, n = there["x"].shape
        launched = {
            "softmax": softmax_kernel,
            "layer_norm": layer_norm_kernel,
            "sums": sums_kernel,
            "total": total_kernel,
        }[kernel]
        size = triton.next_power_of_2(n)
        grid, n = ((1,), rows) if kernel == "total" else ((rows,), n)
        launched[grid](there["x"], there["y"], n, SIZE=size, num_warps=warps)
        tensors["y"].copy_(there["y"])
        return "\n".join(f"{finding.kind}: {finding.message}" for finding in gpu.reports[-1].findings)


def clusters(machine: str, engine: str, **tensors: Tensor) -> str:
    """`gemm` with two CTAs a tile."""
    with virtual_gpu(machine, settings=Settings(engine=engine)) as gpu:
        there = _on_gpu(tensors)
        (m, k), n = there["a"].shape, there["b"].shape[1]
        grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
        gemm_kernel[grid](there["a"], there["b"], there["c"], m, n, k, BM=128, BN=64, BK=64, num_ctas=2)
        tensors["c"].copy_(there["c"])
        return _grids(gpu)


def refused(machine: str) -> str:
    """One line for each call that does not run."""
    with virtual_gpu(machine):
        x, host = torch.ones(64, device="cuda"), torch.ones(64)
        calls: list[Callable[[], Any]] = [
            lambda: add_kernel[(1,)](x, x, x, 64, 1.0, SIZE=64, launch_cooperative_grid=True),
            lambda: add_kernel[(1,)](host, x, x, 64, 1.0, SIZE=64),
            lambda: add_kernel[(1,)](x, x, x, 65, 1.0, SIZE=128),
            lambda: add_kernel[(0,)](x, x, x, 64, 1.0, SIZE=64),
        ]
        return "\n".join(map(_refused, calls))
