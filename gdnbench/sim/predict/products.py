# SPDX-License-Identifier: Apache-2.0
"""How long the tensor core takes for one asynchronous product (an MMA), by the shape of D and the place of A:
the cycles until the next one may begin, and those until its end is seen. A row of A has 32 bytes in every
format."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gdnbench.sim.predict.trace import Shape

COLUMNS_A_CYCLE = 2
"""Columns of D that the tensor core computes in a cycle, for a K of 32 bytes."""
SHARED_BYTES_A_CYCLE = 128
"""CUDA Programming Guide, "Shared Memory"."""
K_BYTES = 32
"""The bytes of a row of A in one product (PTX ISA, "tcgen05.mma" and "wgmma", tables of shapes)."""
PHASE_LATENCY = 40
"""Cycles from the end of a phase to the next instruction of a warp that waits for it; assumed."""


class ProductTime(NamedTuple):
    """`interval` cycles until the next product may begin, `latency` until this one has ended."""

    interval: float
    latency: float


Products = Callable[[Shape], ProductTime]


def wgmma(shape: Shape) -> ProductTime:
    """An H100 SXM's 989 TFLOP/s of dense bf16 (data sheet) are 4,096 FLOP a cycle and SM: N / 2 cycles for 64
    rows. Its latency is taken to be that of mma.sync."""
    interval = shape.n / COLUMNS_A_CYCLE * shape.m / 64
    return ProductTime(interval, interval + 33)


def tcgen05(shape: Shape) -> ProductTime:
    """Of one CTA, as SemiAnalysisAI/microbench-blackwell measured it on a B200 (umma_throughput_max.csv and
    umma_latency_fit_results.csv): N / 2 cycles for 64 and for 128 rows alike, or the cycles in which shared
    memory gives A and B. The latency, from the issue until the wait for an mbarrier ends, is a base and N /
    2; the end of the wait itself is the replay's (`Machine.phase_latency`)."""
    interval = shape.n / COLUMNS_A_CYCLE
    if shape.a_in_shared:
        interval = max(interval, (shape.m + shape.n) * K_BYTES / SHARED_BYTES_A_CYCLE)
    base = 104 if not shape.a_in_shared else 136 if shape.m == 128 else 120
    return ProductTime(interval, base + shape.n / COLUMNS_A_CYCLE - PHASE_LATENCY)
