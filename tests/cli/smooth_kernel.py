# SPDX-License-Identifier: Apache-2.0
"""A small kernel as a file of a user's, and versions of it: for `bisect instruction` and value traces."""

from __future__ import annotations

from pathlib import Path

SMOOTH = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.cute.runtime as runtime
import torch

from gdnbench import sim


@cute.kernel
def _smooth(x: cute.Tensor, z: cute.Tensor, rounds: cutlass.Int32):
    index = cute.arch.block_idx()[0] * 64 + cute.arch.thread_idx()[0]
    value = x[index]
    total = cutlass.Float32(0.0)
    for step in cutlass.range(rounds, unroll=1):
        total = total * cutlass.Float32(0.625) + value
    if index == 77:
        total = total + cutlass.Float32(0.0)
    z[index] = total


@cute.jit
def smooth(x: cute.Tensor, z: cute.Tensor, rounds: cutlass.Int32, stream: cuda.CUstream):
    _smooth(x, z, rounds).launch(grid=(2, 1, 1), block=(64, 1, 1), stream=stream)
"""
"""Sums of a vector of 128 by two CTAs of 64 threads; what a file does with them comes after it."""
PLANTED = ("total + cutlass.Float32(0.0)", "total * cutlass.Float32(0.75)")
COMMENT = ("    value = x[index]", "    # where the value is from\n    value = x[index]")


def written(file: Path, text: str, *edits: tuple[str, str]) -> Path:
    """`file`, with `text` in which each edit's first is replaced by its second."""
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return file
