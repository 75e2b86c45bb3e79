"""Imports FlashInfer's Gated DeltaNet modules without CUDA's libraries, for the simulator.

The package's own `__init__` imports some hundred modules and loads CUDA libraries; its cache of compiled
kernels stores machine code, which the simulator cannot run. The host functions and kernels of Gated DeltaNet
are CuTe DSL and need none of that. Everything they import is FlashInfer's own file except what is listed
here. The device is torch's: on the simulator the virtual GPU.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from gdnbench_kernels.stand_ins import StandIns

PACKAGE = "flashinfer"


NVCC = (
    "FlashInfer builds this kernel from CUDA C++ with nvcc, which the simulator does not run; its CuTe DSL"
    " kernels run there"
)


ARCHITECTURES = ("90a", "100a", "100f", "103a", "110a", "120a", "120f", "121a")


class _JitSpec:
    """The build of a CUDA C++ module, which modules name in annotations."""


def _refuse_nvcc(*args: object, **kwargs: object) -> _JitSpec:
    raise NotImplementedError(NVCC)


def _jit_core() -> dict[str, Any]:
    flags: dict[str, list[str]] = {f"sm{arch}_nvcc_flags": [] for arch in ARCHITECTURES}
    return {"logger": _Logger(PACKAGE), "JitSpec": _JitSpec, "gen_jit_spec": _refuse_nvcc, **flags}


class _Logger(logging.Logger):
    """The logger of `flashinfer.jit.core`, which also warns once."""

    def warning_once(self, message: str, *args: object) -> None:
        """Nothing is warned of: the messages are about builds with nvcc."""


def _build(
    family: str, name: str, compile_kernel: Callable[[], Any], extra_key_files: Sequence[str] = ()
) -> Any:
    """Replaces the package's disk cache: returns the kernel compiled now."""
    return compile_kernel()


STAND_INS = StandIns(
    PACKAGE,
    empty=(f"{PACKAGE}.jit", f"{PACKAGE}.cute_dsl"),
    made={
        f"{PACKAGE}.jit.core": _jit_core,
        # Nothing is built by the CUDA toolkit here, so that no release of it is too old.
        f"{PACKAGE}.jit.cpp_ext": lambda: {"is_cuda_version_at_least": lambda version: True},
        f"{PACKAGE}.jit.cute_dsl_core": lambda: {"build_and_load_cute_dsl_kernel": _build},
        f"{PACKAGE}.jit.spdlog": lambda: {"gen_spdlog_module": None},
        f"{PACKAGE}.jit.cake_gdn": None,  # CUDA C++, built with nvcc where a caller asks for it
        "pynvml": dict,
    },
)
