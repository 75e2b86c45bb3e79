"""Imports SGLang's Gated DeltaNet modules without its engine and its compiled `sgl_kernel`.

SGLang's packages import its server, its registry of kernels and dozens of other packages. The kernels'
modules ask for the platform and for torch's version, which this module answers; everything else that they
import are SGLang's own files. The device is torch's: a GPU, or on the simulator the virtual one.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from gdnbench_kernels.stand_ins import StandIns

PACKAGE = "sglang"
PDL_SINCE = 9  # major compute capability: programmatic dependent launch
HOPPER = 9


def _capability(device_id: int = 0) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device_id)


def _refuse_nvcc(*args: object, **options: object) -> None:
    raise NotImplementedError(
        "SGLang builds its kernel for this call from CUDA C++, which needs nvcc and its engine; its Triton"
        " and CuTe DSL kernels do not"
    )


def _architecture() -> SimpleNamespace:
    """The compute capability as SGLang's JIT has it."""
    major, minor = _capability()
    return SimpleNamespace(major=major, minor=minor, suffix="")


def _device_sm() -> int:
    """The compute capability as SGLang writes it, such as 100."""
    major, minor = _capability()
    return 10 * major + minor


def _torch_release() -> tuple[int, ...]:
    """torch's version without what follows a plus sign, such as (2, 10, 0)."""
    numbers = torch.__version__.partition("+")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def _utils() -> Mapping[str, Any]:
    return {
        "cdiv": lambda a, b: -(-a // b),
        "cpu_has_amx_support": lambda: False,
        "get_device_sm": _device_sm,
        "is_cpu": lambda: False,
        "is_cuda": lambda: True,
        "is_gfx95_supported": lambda: False,
        "is_hip": lambda: False,
        "is_npu": lambda: False,
        "is_sm90_supported": lambda device=None: _capability()[0] == HOPPER,
        "is_xpu": lambda: False,
        "next_power_of_2": lambda n: 1 << max(n - 1, 0).bit_length(),
    }


STAND_INS = StandIns(
    PACKAGE,
    empty=(
        f"{PACKAGE}.kernels",
        f"{PACKAGE}.kernels.jit",
        f"{PACKAGE}.kernels.ops",
        f"{PACKAGE}.kernels.ops.attention",
        f"{PACKAGE}.kernels.ops.attention.fla",
        f"{PACKAGE}.kernels.ops.attention.linear",
        f"{PACKAGE}.kernels.ops.mamba",
        f"{PACKAGE}.srt",
        f"{PACKAGE}.srt.layers",
        f"{PACKAGE}.srt.layers.attention",
        f"{PACKAGE}.srt.layers.attention.mamba",
        "quack",  # `quack.compile_utils` makes the tensors that SGLang compiles its CuTe DSL kernels for
    ),
    made={
        f"{PACKAGE}.kernels.jit.utils": lambda: {
            "cache_once": cache,
            "get_jit_cuda_arch": _architecture,
            "is_arch_support_pdl": lambda: _capability()[0] >= PDL_SINCE,
            "load_jit": _refuse_nvcc,
            "make_cpp_args": lambda *args: args,
        },
        f"{PACKAGE}.srt.utils": _utils,
        f"{PACKAGE}.srt.utils.common": lambda: {"torch_release": _torch_release()},
    },
)
