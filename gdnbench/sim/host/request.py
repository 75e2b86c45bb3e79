"""One launch that a kernel's host code requests from the driver."""

from __future__ import annotations

from dataclasses import dataclass

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The arguments of one launch. `params` are the bytes of each parameter in order; `registers` is ptxas's
    register count per thread, None if no cubin has it. `preferred_cluster` is the shape of clusters that the
    device may use in place of several of the shape `cluster`."""

    ptx: str
    entry: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    shared_bytes: int  # dynamic shared memory
    params: tuple[bytes, ...]
    registers: int | None
    stream: int  # its handle, 0 for the default stream
    preferred_cluster: Dim3 | None = None
