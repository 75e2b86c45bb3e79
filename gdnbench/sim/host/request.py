"""What a kernel's host code asks of the driver: one launch."""

from __future__ import annotations

from dataclasses import dataclass

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One launch, as the host code handed it to the CUDA runtime. `params` are the bytes of each parameter,
    in order; `registers` is what ptxas gave each thread, None if no cubin says."""

    ptx: str
    entry: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    shared_bytes: int  # dynamic shared memory
    params: tuple[bytes, ...]
    registers: int | None
    stream: int  # its handle, 0 for the default stream
