# SPDX-License-Identifier: Apache-2.0
"""Finds the program of a call: the target of its GPU, and the cached program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from gdnbench_kernels.artifacts import ARCHS
from gdnbench_kernels.compiling import Program, program
from gdnbench_kernels.gpu import SM90, SM100, SM103, capability_of, name_of
from gdnbench_kernels.source import Source

__all__ = ["BLACKWELL", "SM90", "SM100", "SM103", "arch_of", "compiled"]

BLACKWELL = (SM100, SM103)
"""Targets with tcgen05."""


def arch_of(device: torch.device, archs: Sequence[str], kernels: str) -> str:
    """The first of `archs` that runs on that device, or for tensors on the CPU on the GPU that
    `gpu.calls_for` names; `SM100` if it names none. Raises NotImplementedError, which lists the compute
    capabilities that `kernels` are compiled for."""
    capability = capability_of(device)
    if capability is None:
        return SM100
    for arch in archs:
        if capability in ARCHS[arch]:
            return arch
    taken = dict.fromkeys(f"{major}.{minor}" for arch in archs for major, minor in ARCHS[arch])
    raise NotImplementedError(
        f"{kernels} is compiled for compute capability {', '.join(taken)};"
        f" {name_of(device)} has {capability[0]}.{capability[1]}"
    )


@cache
def compiled(arch: str, source: Callable[..., Source], *options: Any) -> Program:
    """The program of `source(*options)`; looked up once per process."""
    return program(source(*options), arch)
