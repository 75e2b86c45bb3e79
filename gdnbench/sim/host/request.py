# SPDX-License-Identifier: Apache-2.0
"""One launch that a kernel's host code requests from the driver."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchAttributes:
    """The attributes of a launch that this simulator follows: the clusters' shape and the
    preferred shape, if they are given, and programmatic stream serialisation."""

    cluster: Dim3 | None = None
    preferred_cluster: Dim3 | None = None
    programmatic: bool = False

    @property
    def largest_cluster(self) -> int:
        """The CTAs of the largest cluster that the launch may have."""
        return max(prod(self.cluster or ()), prod(self.preferred_cluster or ()))


NO_ATTRIBUTES = LaunchAttributes()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The arguments of one launch. `params` are the bytes of each parameter in order; `registers` is ptxas's
    register count per thread, None if no cubin has it. `cluster` is None where the launch says nothing of
    clusters: one of 1 CTA is a cluster too (docs/clusters.md). `preferred_cluster` is the shape of clusters
    that the device may use in place of several of the shape `cluster`. `programmatic`: with programmatic
    stream serialisation, so that it may start before the launch in front of it has ended."""

    ptx: str
    entry: str
    grid: Dim3
    block: Dim3
    cluster: Dim3 | None
    shared_bytes: int  # dynamic shared memory
    params: tuple[bytes, ...]
    registers: int | None
    stream: int  # its handle, 0 for the default stream
    preferred_cluster: Dim3 | None = None
    programmatic: bool = False
