# SPDX-License-Identifier: Apache-2.0
"""Runs the host code of a compiled kernel with a mock CUDA runtime and returns its launches with their
parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.host.arguments import DTYPES, Region, tensors_in
    from gdnbench.sim.host.capture import capture_launches
    from gdnbench.sim.host.cutlass_dsl import is_jit
    from gdnbench.sim.host.elf import NO_CONTENTS, Elf
    from gdnbench.sim.host.layouts import Extent, TensorType, tensor_type
    from gdnbench.sim.host.ptx_kernel import PtxKernel, entry_named, parameter_names
    from gdnbench.sim.host.request import LaunchRequest
    from gdnbench.sim.machine.tensormap import TENSORMAP_BYTES, TensorMap, decode_tensormap

__all__ = [
    "DTYPES",
    "NO_CONTENTS",
    "TENSORMAP_BYTES",
    "Elf",
    "Extent",
    "LaunchRequest",
    "PtxKernel",
    "Region",
    "TensorMap",
    "TensorType",
    "capture_launches",
    "decode_tensormap",
    "entry_named",
    "is_jit",
    "parameter_names",
    "tensor_type",
    "tensors_in",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.host.arguments": "DTYPES Region tensors_in",
        "gdnbench.sim.host.capture": "capture_launches",
        "gdnbench.sim.host.cutlass_dsl": "is_jit",
        "gdnbench.sim.host.elf": "NO_CONTENTS Elf",
        "gdnbench.sim.host.layouts": "Extent TensorType tensor_type",
        "gdnbench.sim.host.ptx_kernel": "PtxKernel entry_named parameter_names",
        "gdnbench.sim.host.request": "LaunchRequest",
        "gdnbench.sim.machine.tensormap": "TENSORMAP_BYTES TensorMap decode_tensormap",
    },
)
