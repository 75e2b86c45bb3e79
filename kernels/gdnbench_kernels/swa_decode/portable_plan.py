# SPDX-License-Identifier: Apache-2.0
"""The plan of a CTA of the portable kernel, for a cache layout and a number of heads."""

from __future__ import annotations

from enum import IntEnum

from gdnbench_kernels.plan import WARP, Buffer, KernelPlan, Sync
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM, MAX_WINDOW, NOPE_DIM, ROPE_DIM

WARPS = 8
ENTRIES = MAX_WINDOW // WARPS
"""Entries of the window that one warp gathers."""
PAD_BYTES = 16
"""Padding of a row in bytes: rows are an odd multiple of 16 bytes apart, so the same 16 bytes of 8 rows are
in different banks."""
ROW_BYTES = {
    CacheLayout.PER_TOKEN_SCALE: HEAD_DIM + PAD_BYTES,
    CacheLayout.FP8_DS_MLA: NOPE_DIM + 2 * ROPE_DIM + PAD_BYTES,
}
"""Bytes of a latent row in shared memory."""


PAIR_ENTRIES = 2 * ENTRIES
"""Entries that two warps multiply with the queries, half of the features each."""
KEY_TILES = PAIR_ENTRIES // 8
"""Tiles of 8 entries."""

SHARES = MAX_WINDOW // PAIR_ENTRIES
"""Pairs of warps, which have scores of the same heads for different entries."""


class Role(IntEnum):
    """First warp of each role."""

    ALL = 0


def plan(layout: CacheLayout, rows: int) -> KernelPlan:
    """The plan of a CTA with `rows` heads. Two CTAs share an SM."""
    mla = layout is CacheLayout.FP8_DS_MLA
    return KernelPlan(
        name="mma_sync_decode",
        roles=Role,
        warps={"ALL": WARPS},
        does={
            "ALL": f"{PAIR_ENTRIES} entries a pair in product 1, {HEAD_DIM // WARPS} features in product 2"
        },
        smem=(
            Buffer(
                "s_rows",
                (MAX_WINDOW, ROW_BYTES[layout]),
                "uint8",
                f"{PAD_BYTES} of a row are padding",
                align=128,
            ),
            Buffer(
                "s_q",
                (rows, HEAD_DIM),
                "float16",
                "16-byte chunk ^= row % 8 ^ chunk / 8 % 2; sums, s_p over it",
                align=128,
            ),
            Buffer(
                "s_entries",
                (MAX_WINDOW, 4),
                "float32",
                "factor, its exponent, mantissa, 1 if it counts",
                align=16,
            ),
            Buffer("s_peaks", (rows, SHARES, 2), "float32", "a warp's largest score, exponent", align=16),
            Buffer("s_sums", (rows, SHARES), "float32", "a warp's sum of weights", align=16),
            Buffer("s_tops", (rows, 2), "float32", "the largest score, exponent", align=16),
            Buffer("s_factors", (rows,), "float32", "of a row of outputs", align=16),
            Buffer("s_coefficients", (rows,), "float32", "of a head's scores", align=16),
            Buffer("s_arrived", (WARPS, 2), "int32", "mbarriers of the warps", align=8),
            *(
                (Buffer("s_groups", (GROUPS, MAX_WINDOW), "float16", "2^(scale - factor)", align=16),)
                if mla
                else ()
            ),
        ),
        tmem=(),
        pipelines=(),
        syncs=(
            Sync("s_arrived", "each pair of warps", "its entries' codes there before it multiplies them"),
            Sync("barrier, first", "all", "s_q, s_coefficients, s_entries written before products 1"),
            Sync("barrier, second", "all", "s_q read before sums of products 1 are written over it"),
            Sync("barrier of a pair", "each pair of warps", "these sums written before they are read"),
            Sync(
                "barrier, third", "all", "s_peaks written, these sums read before s_p and s_sums are written"
            ),
            Sync("barrier, fourth", "all", "s_p, s_sums, s_tops written, all rows there before product 2"),
            Sync("barrier, fifth", "all", "s_factors written before outputs are"),
        ),
        ctas_per_sm=2,
    )


THREADS = WARP * WARPS
