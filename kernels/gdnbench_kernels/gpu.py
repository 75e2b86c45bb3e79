"""The GPU that a call is made for: that of its tensors, or another one where the tensors are on no GPU.

Kernels are compiled for its compute capability, and persistent kernels have one CTA for each of its SMs.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Protocol

import torch

SM90, SM100, SM103 = "sm_90a", "sm_100a", "sm_103a"
H200_SMS, B200_SMS = 132, 148


class Gpu(Protocol):
    """A GPU that tensors on the CPU stand for."""

    @property
    def name(self) -> str: ...

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability; None for that which a kernel is compiled for by default."""
        ...

    def sms(self, arch: str) -> int:
        """The number of SMs, for a kernel that is compiled for `arch`."""
        ...


_gpu: ContextVar[Gpu | None] = ContextVar("gdnbench_kernels_gpu", default=None)


@contextmanager
def calls_for(gpu: Gpu) -> Iterator[None]:
    """Inside this block calls whose tensors are on the CPU are made for `gpu`."""
    token = _gpu.set(gpu)
    try:
        yield
    finally:
        _gpu.reset(token)


def multiprocessors(device: torch.device, arch: str = SM100) -> int:
    """SMs of a CUDA device. For tensors on the CPU, those of the GPU that `calls_for` names, or else of an
    H200 or B200, whichever runs code for `arch`."""
    if device.type == "cuda":
        return _of_cuda(device)
    gpu = _gpu.get()
    if gpu is not None:
        return gpu.sms(arch)
    return H200_SMS if arch == SM90 else B200_SMS


@cache
def _of_cuda(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Compute capability of a CUDA device, or for tensors on the CPU of the GPU that `calls_for` names; None
    if it names none."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)
    gpu = _gpu.get()
    return None if gpu is None else gpu.capability


def name_of(device: torch.device) -> str:
    """The name of a CUDA device, or of the GPU that `calls_for` names."""
    gpu = _gpu.get()
    if device.type == "cuda" or gpu is None:
        return torch.cuda.get_device_name(device)
    return gpu.name
