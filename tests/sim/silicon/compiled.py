# SPDX-License-Identifier: Apache-2.0
"""PTX as compilers emit it: of nvcc from kernels.cu, of Triton from kernels_triton.py, in compiled_ptx/.

An answer is a row of 32-bit words. `Launch` has what the host code of a kernel would say: its grid and input.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tests.sim.silicon.microkernel import Array, Buffer, Dim3, MicroKernel
from tests.sim.silicon.patterns import random_u32, random_words

FOLDER = Path(__file__).parent / "compiled_ptx"
SCRATCH_GUARD = 512


def uniform(seed: int, count: int, low: float, high: float) -> Array:
    """float32 between two bounds."""
    part = (random_words(seed, count) >> np.uint64(40)).astype(np.float64) / (1 << 24)
    return (low + (high - low) * part).astype(np.float32)


def bf16(values: Array) -> Array:
    """Their upper halves: what is cut off is of no interest here."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def without_nan(codes: Array) -> Array:
    """Random bytes as E4M3 numbers below 2."""
    return codes.view(np.uint8) & np.uint8(0xBF)


@dataclass(frozen=True, slots=True)
class Launch:
    """`rows` by `columns` words of y, which are 0 before; a cluster that the PTX itself does not say."""

    x: Array
    rows: int
    columns: int
    grid: int | Dim3 = 1
    block: int = 256
    dependent: str = ""


NVCC = {
    "softmax_rows": Launch(uniform(530, 1024, -6, 6), 4, 256, 4),
    "float_functions": Launch(
        np.concatenate(
            (uniform(531, 200, -20, 20), uniform(532, 28, -1e5, 1e5), uniform(533, 28, -0.01, 0.01))
        ),
        16,
        256,
    ),
    "integer_functions": Launch(np.concatenate((random_u32(534, 192), random_u32(535, 64) >> 18)), 16, 256),
    "half_functions": Launch(random_u32(536, 256), 13, 256),
    "control_flow": Launch(random_u32(537, 256), 2, 256),
    "block_scan": Launch(random_u32(538, 1024), 4, 256, 4),
    "staged_copies": Launch(random_u32(539, 2048), 4, 128, block=128),
    "wmma_product": Launch(bf16(uniform(540, 2048, -2, 2)), 16, 16, block=32),
    "cluster_histogram": Launch(random_u32(541, 8 * 512), 8, 64, 8, 128),
    "cluster_sum": Launch(uniform(542, 4096, -1, 1), 32, 128, (8, 4, 1), 128),
    "before": Launch(random_u32(543, 512), 8, 128, 4, 128, "after"),
}
TRITON = {
    "softmax": Launch(uniform(550, 2048, -6, 6), 4, 512, 4),
    "norm": Launch(bf16(uniform(551, 1024, -3, 3)), 8, 64),
    "product": Launch(bf16(uniform(552, 16384, -2, 2)), 64, 64),
    "product_in_pairs": Launch(bf16(uniform(552, 16384, -2, 2)), 64, 64),
    "product_tf32": Launch(uniform(553, 2048, -2, 2), 32, 32),
    "product_fp8": Launch(without_nan(random_u32(554, 2048)), 64, 64),
    "scans": Launch(uniform(555, 1024, -2, 2), 128, 16),
    "integers": Launch(random_u32(556, 1024) >> np.uint32(1), 2400 // 32, 32, 4),
    "delta_rule": Launch(uniform(557, 1024 + 256, -1, 1), 36, 32),
    "described": Launch(random_u32(558, 6400), 64, 128, 4),
}


def _buffers(launch: Launch) -> tuple[Buffer, Buffer]:
    labels = tuple(f"row {row}" for row in range(launch.rows))
    zeros = np.zeros((launch.rows, launch.columns), np.uint32)
    words = launch.x.view(np.uint32) if launch.x.dtype == np.float32 else launch.x
    return Buffer("in_x", words), Buffer("out_y", zeros, labels)


def of_nvcc(name: str) -> MicroKernel:
    """The entry, and the one launched behind it, with what the file has in front of all entries."""
    launch = NVCC[name]
    front, *entries = (FOLDER / "nvcc.ptx").read_text(encoding="utf-8").split(".visible .entry ")
    named = {text[: text.index("(")]: text for text in entries}
    wanted = (name, launch.dependent) if launch.dependent else (name,)
    text = front + "".join(f".visible .entry {named[entry]}" for entry in wanted)
    given = _buffers(launch)
    return MicroKernel(
        f"nvcc_{name}", text, given, launch.grid, launch.block, entry=name, dependent=launch.dependent
    )


def of_triton(name: str) -> MicroKernel:
    """Its last two parameters are memory of the kernel's own, for tensor maps and for a profiler."""
    launch = TRITON[name]
    facts = json.loads((FOLDER / "triton.json").read_text(encoding="utf-8"))["kernels"][name]
    text = (FOLDER / f"triton_{name}.ptx").read_text(encoding="utf-8")
    programs = launch.grid if isinstance(launch.grid, int) else 1
    ctas = programs * facts["ctas"]
    scratch = [
        Buffer(kind, np.zeros(size * ctas + SCRATCH_GUARD, np.uint8))
        for kind, size in zip(("scratch", "profile"), facts["scratch"], strict=True)
    ]
    return MicroKernel(
        f"triton_{name}",
        text,
        (*_buffers(launch), *scratch),
        ctas,
        facts["threads"],
        facts["ctas"],
        smem=facts["shared"],
        entry=facts["entry"],
    )


KERNELS: tuple[Callable[[], MicroKernel], ...] = (
    *(partial(of_nvcc, name) for name in NVCC),
    *(partial(of_triton, name) for name in TRITON),
)
