# SPDX-License-Identifier: Apache-2.0
"""Compiles the test kernels for sm_100a from fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.cute.runtime as cute_runtime
import torch

from gdnbench import sim

NUMERIC: dict[torch.dtype, Any] = {
    torch.float32: cutlass.Float32,
    torch.float16: cutlass.Float16,
    torch.bfloat16: cutlass.BFloat16,
    torch.float8_e4m3fn: cutlass.Float8E4M3FN,
    torch.float8_e5m2: cutlass.Float8E5M2,
    torch.int32: cutlass.Int32,
    torch.uint8: cutlass.Uint8,
}


def fake(
    dtype: torch.dtype,
    shape: tuple[Any, ...],
    *,
    contiguous: int = -1,
    align: int = 16,
    divisible: int = 1,
) -> Any:
    """A tensor known by type and rank only: None in `shape` is an extent known at launch.

    Mode `contiguous` has stride one, the others are packed around it in row-major order at compile time where
    their extents are known; else their strides are dynamic, each a multiple of `divisible` elements.
    """
    extents = tuple(cute.sym_int(32) if extent is None else extent for extent in shape)
    contiguous %= len(shape)
    strides: list[Any] = [0] * len(shape)
    packed: int | None = 1
    for mode in (contiguous, *(m for m in reversed(range(len(shape))) if m != contiguous)):
        strides[mode] = cute.sym_int(64, divisibility=divisible) if packed is None else packed
        packed = None if packed is None or shape[mode] is None else packed * shape[mode]
    return cute_runtime.make_fake_tensor(NUMERIC[dtype], extents, tuple(strides), assumed_align=align)


def compiled(function: Callable[..., Any], *args: Any, tvm_ffi: bool = False) -> Any:
    """`function` compiled for sm_100a; no GPU is asked for."""
    stream = cute_runtime.make_fake_stream(use_tvm_ffi_env_stream=tvm_ffi)
    options = {"options": "--enable-tvm-ffi"} if tvm_ffi else {}
    return sim.compile(function, *args, stream, arch="sm_100a", **options)
