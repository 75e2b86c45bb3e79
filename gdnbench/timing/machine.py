# SPDX-License-Identifier: Apache-2.0
"""The machine that times come from."""

from __future__ import annotations

import platform
import socket

import torch

from gdnbench.provenance import gpu_provenance, provenance
from gdnbench.timing.result import Machine


def machine(device: torch.device) -> Machine:
    """This machine, `device` being what kernels run on; initialises CUDA for a GPU."""
    origin = provenance()
    if device.type != "cuda":
        return Machine(
            device.type,
            origin["cpu"],
            socket.gethostname(),
            python=origin["python"],
            os=origin["os"],
            packages=origin["packages"],
        )
    name = torch.cuda.get_device_name(device)
    gpu = gpu_provenance()
    return Machine(
        device.type,
        name,
        socket.gethostname(),
        gpu.get("driver"),
        gpu.get("cuda"),
        platform.python_version(),
        origin["os"],
        origin["packages"],
    )
