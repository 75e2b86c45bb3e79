"""Finds the program of a call: the target of its GPU, and the cached program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from gdnbench_kernels.artifacts import ARCHS
from gdnbench_kernels.compiling import Program, program
from gdnbench_kernels.source import Source

SM90, SM100, SM103 = "sm_90a", "sm_100a", "sm_103a"
BLACKWELL = (SM100, SM103)
"""Targets with tcgen05."""


def arch_of(device: torch.device, archs: Sequence[str], kernels: str) -> str:
    """The first of `archs` that runs on that device; `SM100` without a GPU. Raises NotImplementedError, which
    lists the compute capabilities that `kernels` are compiled for."""
    if device.type != "cuda":
        return SM100
    capability = torch.cuda.get_device_capability(device)
    for arch in archs:
        if capability in ARCHS[arch]:
            return arch
    taken = dict.fromkeys(f"{major}.{minor}" for arch in archs for major, minor in ARCHS[arch])
    raise NotImplementedError(
        f"{kernels} is compiled for compute capability {', '.join(taken)};"
        f" {torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}"
    )


@cache
def compiled(arch: str, source: Callable[..., Source], *options: Any) -> Program:
    """The program of `source(*options)`; looked up once per process."""
    return program(source(*options), arch)
