# SPDX-License-Identifier: Apache-2.0
"""What a full diff costs, beside passes of `np.abs(a - b).max()` in fp32 over the same elements.

    python scripts/benchmarks/bench_diff.py [--megabytes 256] [--repeats 7] [--threads 1]

Every metric of docs/replay.md is computed for each (sequence, head, chunk). The pass is given its operands
in fp32 already; ours reads the dtype named. The three ways are timed in turn within each repeat, so that
what disturbs one disturbs the others; medians are shown. The target is 3 passes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor

from gdnbench.judge.metrics import compare
from gdnbench.judge.row_source import Memory
from gdnbench_kernels.contract import Partition, Region

HEADS, DIM, CHUNK = 32, 128, 64


def partition(tokens: int) -> Partition:
    """Sequences of ten chunks, as of a packed prefill."""
    starts = range(0, tokens, CHUNK)
    return Partition(
        tuple(
            Region(start, min(start + CHUNK, tokens), i // 10, i % 10, i % 10 * CHUNK)
            for i, start in enumerate(starts)
        ),
        head_axis=1,
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(dtype: torch.dtype, megabytes: int, repeats: int) -> str:
    """One row: nanoseconds an element of a pass and of diffs of unequal and equal tensors, and ratios."""
    tokens = megabytes * 2**20 // (HEADS * DIM * 4)
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(tokens, HEADS, DIM, generator=generator)
    x = y + 1e-3 * torch.randn(tokens, HEADS, DIM, generator=generator)
    a, b = x.to(dtype), y.to(dtype)
    a32, b32 = a.float().numpy(), b.float().numpy()
    owners = partition(tokens)

    def full(left: Tensor, right: Tensor) -> object:
        return compare(Memory(left), Memory(right), owners, ("T", "Hv", "V"))

    copy = b.clone()
    ways: tuple[Callable[[], object], ...] = (
        lambda: np.abs(a32 - b32).max(),
        lambda: full(a, b),
        lambda: full(b, copy),
    )
    times: list[list[float]] = [[], [], []]
    for way in ways:
        way()
    for _ in range(repeats):
        for taken, way in zip(times, ways, strict=True):
            taken.append(seconds(way))
    one, unequal, equal = (median(taken) / a.numel() * 1e9 for taken in times)
    name = str(dtype).removeprefix("torch.")
    return f"{name:10} {one:8.2f} {unequal:8.2f} {unequal / one:8.2f} {equal:8.2f} {equal / one:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256, help="of fp32 elements a side")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch; numpy's pass has one")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"ns an element, {arguments.megabytes} MB of fp32 a side, {arguments.threads} thread(s)")
    print(f"{'dtype':10} {'pass':>8} {'unequal':>8} {'passes':>8} {'equal':>8} {'passes':>8}")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        print(measure(dtype, arguments.megabytes, arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
