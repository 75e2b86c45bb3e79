# SPDX-License-Identifier: Apache-2.0
"""Checks a launch against the limits of compute capability 10.0 (CUDA Programming Guide, "Technical
Specifications").
"""

from __future__ import annotations

from math import prod

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.cluster import ONE_CTA
from gdnbench.sim.machine.engine_interface import LANES, MAX_CLUSTER, Dim3
from gdnbench.sim.ptx.ir import Kernel

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_SHARED = 227 * 1024
MAX_REGISTERS = 64 * 1024
REGISTER_STEP = 8  # per thread: the hardware allocates a warp's registers 256 at a time


def allocated_registers(registers: int) -> int:
    """The registers that each thread of a warp gets, of a kernel with `registers` a thread."""
    return -(-registers // REGISTER_STEP) * REGISTER_STEP


def _over(message: str) -> KernelFault:
    return KernelFault(FaultKind.BUDGET, message)


def has_explicit_clusters(kernel: Kernel, cluster: Dim3 | None, preferred: Dim3 | None) -> bool:
    """Whether the kernel or its launch names a shape of clusters, be it of one CTA."""
    return any(shape is not None for shape in (kernel.cluster, cluster, preferred))


def is_clustered(kernel: Kernel, cluster: Dim3 | None, preferred: Dim3 | None) -> bool:
    """Whether a launch has clusters of more than one CTA."""
    return any(shape not in (None, ONE_CTA) for shape in (kernel.cluster, cluster, preferred))


def check_cluster(kernel: Kernel, cluster: Dim3 | None, preferred: Dim3 | None) -> Dim3:
    """The shape of a launch's clusters: what the launch asks for, or what the kernel requires
    (`.reqnctapercluster`). Raises KernelFault if they differ, and for clusters of too many CTAs."""
    required = kernel.cluster
    if required is not None and cluster not in (None, ONE_CTA, required):
        raise _over(f"cluster {cluster}, but {kernel.name} requires {required} (.reqnctapercluster)")
    shape = required or cluster or ONE_CTA
    most = kernel.max_cluster
    if most is not None and max(prod(shape), prod(preferred or shape)) > most:
        raise _over(
            f"cluster {preferred or shape}, but {kernel.name} takes {most} CTAs at most (.maxclusterrank)"
        )
    for one in (shape, preferred or shape):
        if any(extent < 1 for extent in one) or prod(one) > MAX_CLUSTER:
            raise _over(f"cluster {one} of {prod(one)} CTAs; the limit is {MAX_CLUSTER}")
    return shape


def check_budget(kernel: Kernel, grid: Dim3, block: Dim3, shared: int, registers: int | None) -> None:
    """Raises KernelFault if the launch exceeds a limit of the SM or of the kernel's own directives."""
    for name, extent, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(extent, limits, strict=True)):
            raise _over(f"{name} {extent}; each extent is at least 1 and the limit is {limits}")
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise _over(f"block {block} of {threads} threads; the limit is {MAX_THREADS}")
    if kernel.reqntid is not None and block != kernel.reqntid:
        raise _over(f"block {block}, but {kernel.name} requires {kernel.reqntid} (.reqntid)")
    if kernel.maxntid is not None:
        most = kernel.maxntid[0] * kernel.maxntid[1] * kernel.maxntid[2]
        if threads > most:
            raise _over(f"block {block}, but {kernel.name} takes {most} threads at most (.maxntid)")
    if shared > MAX_SHARED:
        raise _over(f"{shared} bytes of shared memory; the limit is {MAX_SHARED}")
    if registers is not None:
        taken = allocated_registers(registers) * (-(-threads // LANES) * LANES)
        if taken > MAX_REGISTERS:
            raise _over(f"{threads} threads of {registers} registers take {taken}; an SM has {MAX_REGISTERS}")
