"""What a CTA of the portable kernel allocates, for a layout of the cache and a number of heads."""

from __future__ import annotations

from enum import IntEnum

from gdnbench_kernels.plan import WARP, Buffer, KernelPlan, Sync
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import GROUPS, HEAD_DIM, MAX_WINDOW, NOPE_DIM, ROPE_DIM

WARPS = 8
ENTRIES = MAX_WINDOW // WARPS
"""Of the window, that one warp gathers, and multiplies with the queries."""
ROW_BYTES = {CacheLayout.PER_TOKEN_SCALE: HEAD_DIM, CacheLayout.FP8_DS_MLA: NOPE_DIM + 2 * ROPE_DIM}
"""Of a latent row in shared memory."""


class Role(IntEnum):
    """First warp of each role."""

    ALL = 0


def plan(layout: CacheLayout, rows: int) -> KernelPlan:
    """Of a CTA with `rows` heads. Two of them share an SM."""
    mla = layout is CacheLayout.FP8_DS_MLA
    swizzle = "chunk ^= entry / 2 % 4" if mla else "chunk ^= entry % 8"
    return KernelPlan(
        name="mma_sync_decode",
        roles=Role,
        warps={"ALL": WARPS},
        does={"ALL": f"{ENTRIES} entries in products 1, {HEAD_DIM // WARPS} features in product 2"},
        smem=(
            Buffer("s_rows", (MAX_WINDOW, ROW_BYTES[layout]), "uint8", f"16-byte {swizzle}", align=128),
            Buffer("s_q", (rows, HEAD_DIM), "float16", "16-byte chunk ^= row % 8; s_p over it", align=128),
            Buffer(
                "s_entries",
                (MAX_WINDOW, 4),
                "float32",
                "factor, its exponent, mantissa, 1 if it counts",
                align=16,
            ),
            Buffer("s_peaks", (WARPS, rows, 2), "float32", "a warp's largest score, exponent", align=16),
            Buffer("s_sums", (WARPS, rows), "float32", "a warp's sum of weights", align=16),
            Buffer("s_coefficients", (rows,), "float32", "of a head's scores", align=16),
            *(
                (Buffer("s_groups", (GROUPS, MAX_WINDOW), "float16", "2^(scale - factor)", align=16),)
                if mla
                else ()
            ),
        ),
        tmem=(),
        rings=(),
        syncs=(
            Sync(
                "cp.async.wait_group, warp sync",
                "each warp",
                "its entries' rows there before it multiplies them",
            ),
            Sync("barrier, first", "all", "s_q, s_coefficients written before products 1"),
            Sync("barrier, second", "all", "s_peaks written, s_q read before s_p is written over it"),
            Sync("barrier, third", "all", "s_p, s_sums written, all rows there before product 2"),
        ),
        ctas_per_sm=2,
    )


THREADS = WARP * WARPS
