# SPDX-License-Identifier: Apache-2.0
"""The plan of a CTA of v4_decode's portable kernel, for the cache layouts of its segments."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

from gdnbench_kernels.plan import WARP, Buffer, KernelPlan, Sync
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.portable_plan import (
    KEY_TILES,
    PAD_BYTES,
    PAIR_ENTRIES,
    ROW_BYTES,
    SHARES,
    WARPS,
)
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM, MAX_WINDOW

ROWS = 16
"""Heads of a CTA: the accumulators of more do not fit beside the scores of the next tile."""
TILE_ENTRIES = MAX_WINDOW
PART_WORDS = ROWS // 16 * KEY_TILES * 2
"""Sums of a lane that belong to the other warp of a pair."""
CTAS_PER_SM = 2


class Role(IntEnum):
    """First warp of each role."""

    ALL = 0


def plan(layouts: Collection[CacheLayout]) -> KernelPlan:
    """The plan of a CTA that reads pools in these layouts. Two CTAs share an SM."""
    return KernelPlan(
        name="mma_sync_tiles",
        roles=Role,
        warps={"ALL": WARPS},
        does={
            "ALL": f"{PAIR_ENTRIES} entries a pair in product 1, {HEAD_DIM // WARPS} features in product 2"
        },
        smem=(
            Buffer(
                "s_rows",
                (TILE_ENTRIES, max(ROW_BYTES[layout] for layout in layouts)),
                "uint8",
                f"{PAD_BYTES} of a row are padding",
                align=128,
            ),
            Buffer("s_q", (ROWS, HEAD_DIM), "float16", "16-byte chunk ^= row % 8 ^ chunk / 8 % 2", align=128),
            Buffer("s_p", (ROWS, TILE_ENTRIES), "float16", "16-byte chunk ^= row % 8", align=128),
            Buffer("s_parts", (WARPS, PART_WORDS // 4, WARP, 4), "float32", "sums for each warp", align=128),
            Buffer(
                "s_entries",
                (TILE_ENTRIES, 4),
                "float32",
                "factor, its exponent, mantissa, 1 if it counts",
                align=16,
            ),
            Buffer("s_peaks", (ROWS, SHARES, 2), "float32", "a warp's largest score, exponent", align=16),
            Buffer("s_sums", (ROWS, SHARES), "float32", "a warp's sum of weights", align=16),
            Buffer("s_tops", (ROWS, 2), "float32", "reference of the sum, exponent of weights", align=16),
            Buffer(
                "s_factors", (ROWS,), "float32", "of a row of outputs, of each tile and the last", align=16
            ),
            Buffer("s_coefficients", (ROWS,), "float32", "of a head's scores", align=16),
            Buffer("s_arrived", (WARPS, 2), "int32", "mbarriers of the warps", align=8),
            *(
                (Buffer("s_groups", (GROUPS, TILE_ENTRIES), "float16", "2^(scale - factor)", align=16),)
                if CacheLayout.FP8_DS_MLA in layouts
                else ()
            ),
        ),
        tmem=(),
        pipelines=(),
        syncs=(
            Sync("s_arrived", "each pair of warps", "its entries' codes there before it multiplies them"),
            Sync("barrier, first", "all", "s_q, s_coefficients, s_entries written before products 1"),
            Sync("barrier of a pair", "each pair of warps", "s_parts written before they are read"),
            Sync("barrier, second", "all", "s_peaks written before they are read"),
            Sync("barrier, third", "all", "s_p, s_factors written, all rows there before product 2"),
            Sync("fence, barrier, fourth", "all", "all of a tile read before the next one is gathered"),
            Sync("barrier, fifth", "all", "s_sums, s_tops of all tiles written before they are read"),
            Sync("barrier, sixth", "all", "s_factors written before outputs are"),
        ),
        ctas_per_sm=CTAS_PER_SM,
    )


THREADS = WARP * WARPS
