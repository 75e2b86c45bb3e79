"""Imports vLLM's Gated DeltaNet modules without vLLM's compiled extensions and without its other imports.

vLLM's own packages import its engine, its distributed runtime and the compiled `vllm._C`. The kernels'
modules need a logger, the platform and a few helpers, which this module provides; everything else that they
import are vLLM's own files. The device is torch's: a GPU, or on the simulator the virtual one.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from gdnbench_kernels.stand_ins import StandIns

PACKAGE = "vllm"
PDL_SINCE = 9  # major compute capability: programmatic dependent launch


class Platform:
    """The part of `vllm.platforms.current_platform` that its Gated DeltaNet kernels ask: a CUDA device."""

    def is_cuda(self) -> bool:
        return True

    def is_cuda_alike(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False

    def is_cpu(self) -> bool:
        return False

    def is_arch_support_pdl(self) -> bool:
        """Whether the device has programmatic dependent launch."""
        major, _ = torch.cuda.get_device_capability()
        return major >= PDL_SINCE

    def has_device_capability(self, capability: int, device_id: int = 0) -> bool:
        """Whether the device's capability, such as 100, is at least that."""
        major, minor = torch.cuda.get_device_capability(device_id)
        return 10 * major + minor >= capability

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        """Whether the device is of the family, such as 100, which has major version 10."""
        major, _ = torch.cuda.get_device_capability(device_id)
        return major == capability // 10


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


def _compute_units(device_id: int = 0) -> int:
    return int(torch.cuda.get_device_properties(device_id).multi_processor_count)


def _to_device(data: Any, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.as_tensor(data, dtype=dtype, device=device)


def _platforms() -> Mapping[str, Any]:
    return {"current_platform": Platform(), "vllm_version_matches_substr": lambda part: False}


STAND_INS = StandIns(
    PACKAGE,
    empty=(
        f"{PACKAGE}.model_executor",
        f"{PACKAGE}.model_executor.layers",
        f"{PACKAGE}.model_executor.layers.mamba",
        f"{PACKAGE}.model_executor.layers.mamba.ops",
        f"{PACKAGE}.models",
        f"{PACKAGE}.models.kimi_k3",
        f"{PACKAGE}.models.kimi_k3.nvidia",
        f"{PACKAGE}.models.kimi_k3.nvidia.ops",
        f"{PACKAGE}.models.kimi_k3.nvidia.ops.third_party",
        f"{PACKAGE}.third_party",
        f"{PACKAGE}.third_party.flash_linear_attention",
        f"{PACKAGE}.third_party.flash_linear_attention.ops",
        f"{PACKAGE}.utils",
        f"{PACKAGE}.v1",
        f"{PACKAGE}.v1.attention",
        f"{PACKAGE}.v1.attention.backends",
        "quack",  # `quack.compile_utils` makes the tensors that vLLM compiles its CuTe DSL kernels for
    ),
    made={
        f"{PACKAGE}.platforms": _platforms,
        f"{PACKAGE}.logger": lambda: {"init_logger": _logger},
        f"{PACKAGE}.utils.gpu_sync_debug": lambda: {"gpu_sync_allowed": nullcontext},
        f"{PACKAGE}.utils.platform_utils": lambda: {"num_compute_units": _compute_units},
        f"{PACKAGE}.utils.torch_utils": lambda: {"async_tensor_h2d": _to_device},
        f"{PACKAGE}.v1.attention.backends.utils": lambda: {"NULL_BLOCK_ID": 0, "PAD_SLOT_ID": -1},
    },
)
