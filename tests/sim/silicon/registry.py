# SPDX-License-Identifier: Apache-2.0
"""All micro-kernels by name. Building one makes its inputs, so a family is built when it is asked for."""

from __future__ import annotations

from functools import cache

from tests.sim.silicon import (
    approximate,
    atomics,
    cluster,
    cluster_barriers,
    cluster_copies,
    cluster_memory,
    compiled,
    convert,
    copies,
    corners,
    float32,
    grid_dependency,
    half,
    integer,
    matrix,
    mma,
    polls,
    tma,
    tma_limits,
    warp,
    wgmma,
    wgmma_corners,
)
from tests.sim.silicon.microkernel import MicroKernel

FAMILIES = {
    "float32": float32.KERNELS,
    "half": half.KERNELS,
    "convert": convert.KERNELS,
    "approximate": approximate.KERNELS,
    "integer": integer.KERNELS,
    "warp": warp.KERNELS,
    "atomics": atomics.KERNELS,
    "matrix": matrix.KERNELS,
    "mma": mma.KERNELS,
    "corners": corners.KERNELS,
    "copies": copies.KERNELS,
    "tma": tma.KERNELS,
    "tma_limits": tma_limits.KERNELS,
    "wgmma": wgmma.KERNELS,
    "wgmma_corners": wgmma_corners.KERNELS,
    "cluster": cluster.KERNELS,
    "cluster_memory": cluster_memory.KERNELS,
    "cluster_barriers": cluster_barriers.KERNELS,
    "cluster_copies": cluster_copies.KERNELS,
    "cluster_steps": cluster_barriers.STEPS,
    "cluster_atomics": cluster_memory.ATOMIC,
    "cluster_alone": cluster_copies.ALONE,
    "cluster_explicit": cluster_memory.EXPLICIT,
    "cluster_self": cluster_copies.TO_ITSELF,
    "cluster_of_one": cluster_copies.CLUSTER_OF_ONE,
    "cluster_attribute": cluster_memory.BY_ATTRIBUTE + cluster_copies.BY_ATTRIBUTE,
    "polls": polls.KERNELS,
    "compiled": compiled.KERNELS,
    "grid_dependency": grid_dependency.KERNELS,
}

OTHERWISE = {"ptxas": cluster_memory.OF_PTXAS}
"""An H200 answered these otherwise than the PTX ISA says, the simulator as it says: `test_ptxas.py`."""


@cache
def kernels(family: str) -> dict[str, MicroKernel]:
    built = [make() for make in (FAMILIES | OTHERWISE)[family]]
    by_name = {kernel.name: kernel for kernel in built}
    assert len(by_name) == len(built), f"two kernels of {family} have one name"
    return by_name
