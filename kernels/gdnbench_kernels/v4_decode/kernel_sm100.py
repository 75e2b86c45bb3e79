"""Decode attention over a window and an extra segment of FP8 pages, one softmax: FlashMLA's
`sparse_decode_fwd` with `extra_k_cache`. CuTe DSL, sm_100a.

Reads queries and the pages of two pools, writes o and lse; or o and lse of each split, which kernel_merge.py
adds up. The roles are those of swa_decode's kernel_sm100.py, whose build is the case of one tile; what has
more tiles is compiled in with `tiled`. Without an extra segment this kernel is that one, but for lse.

The entries of a query row below its lengths are tiles of up to 128: the window's, if it has any, then those
of the extra segment; no tile has entries of both. A CTA takes its split's tiles one after the other. For
tile i, with j over its entries, r and f as in kernel_sm100.py of swa_decode, m, l, g, o before the first tile
-3e38, 0, 0, 0, and ' for values after the tile:

    s[h, j] = (q[h] . r[j]) (f[j] scale log2 e)        -inf where j does not count
    m'[h]   = max(m[h], max_j s[h, j])                 at most the largest float32
    p[h, j] = exp2(s[h, j] - m'[h])                    e[h] = exp2(m[h] - m'[h])
    l'[h]   = e[h] l[h] + sum_j p[h, j]
    g'[h]   = max(e[h] g[h], max_j |p[h, j] f[j]|)     2^-126 at least, at most 2^126; or 1
    c[h]    = e[h] g[h] / g'[h]                        exactly 1 if g' is e g
    o'[h]   = c[h] o[h] + sum_j bf16(p[h, j] f[j] / g'[h]) r[j]

After the last tile, with the sink only if queries are not split:

    o[h]    = o[h] (g[h] / (l[h] + exp2(sink[h] log2 e - m[h])))
    lse[h]  = m[h] + log2 l[h]                         in the form asked for; of a split as it is

o stays in tensor memory, where EPILOGUE multiplies it by c while SOFTMAX rounds the tile's weights; it skips
this if c is 1 in all rows of a warp. A weight is rounded relative to itself, whatever tile it is in, so tiles
add only float32 roundings: of e (2^-22 by ex2.approx, 2^-24 by its argument), of the products and the
reciprocal in c (4 x 2^-24), of c o (2^-24), below 2^-20 of o for each tile whose c is not 1. g is 1 if both
layouts are fp8_ds_mla. o is 0 if nothing counts.

An item is a query row and a tile of 64 heads. CTA (part, worker, split) processes items worker, worker +
workers, ... . With a tile without entries, a split without tiles gets lse -inf.

    tensor         shape            dtype     rows
    q              R, H, 512        bfloat16  by TMA, 64 heads and 128 features at once; R = B S
    pages          blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale      slots            float32   or bfloat16; with per_token_scale alone
    entries        R, W             int32     any distance apart; W <= 128
    lens           R                int32
    extra_pages, extra_inv_scale, extra_lens: the same, in the extra layout, or none
    extra_entries  R, n             int32     of 2^extra_entry_shift slots: 1, or those of a page
    attn_sink      H                float32   or none
    o              R, H, 512        bfloat16  by TMA; of splits n, R H, 512 float32, from registers
    lse            R, H             float32   or none; of splits n, R H; written by the CTAs of part 0

    SMEM       shape                dtype     layout
    s_kv       128 x 128, 4 stages  bfloat16  K-major, SW128; read as N-major too
    s_q        64 x 128, 4 stages   bfloat16  K-major, SW128
    s_p        64 x 128             bfloat16  K-major, SW128
    s_o        64 x 128             bfloat16  row = head, SW128
    s_factor   128 x 2              float32   factor of a token, then 0, or -inf if not attended
    s_inverse  64                   float32   what o of a head is multiplied by

    TMEM    shape               columns   lanes  layout
    t_s     64 x 128            0..127    low    M=64: row r in lane 32 (r/16) + r%16
    t_even  64 x 128, 2 stages  128..383  low    M=64: row r in lane 32 (r/16) + r%16
    t_odd   64 x 128, 2 stages  128..383  high   M=64: row r in lane 32 (r/16) + r%16, + 16

    role      warps   does
    SOFTMAX   0..3    S from TMEM, softmax over the tiles so far, P into s_p; c; lse
    EPILOGUE  4..7    O in TMEM times c; after the last tile divided, to memory
    GATHER    8..15   rows of both segments from the pages, as bf16 into s_kv; their factors
    LOAD      16      TMA of Q
    MMA       17      allocates TMEM; all products
    IDLE      18..19  nothing

    pipeline  stages  full: arrivals        empty: arrivals
    kv        4       8 GATHER warp         1 MMA commit
    q         4       1 LOAD + 16384 bytes  1 MMA commit
    factor    1       8 GATHER warp         4 SOFTMAX warp
    scores    1       1 MMA commit          4 SOFTMAX warp
    p         1       4 SOFTMAX warp        1 MMA commit
    inverse   1       4 SOFTMAX warp        4 EPILOGUE warp
    o         4       1 MMA commit          4 EPILOGUE warp

    sync                               who                     orders
    fence.mbarrier_init, barrier TMEM  all                     mbarriers, TMEM there before they are used
    setmaxnreg                         all                     increases wait for the others' decrease
    relinquish                         MMA                     TMEM taken before another CTA may ask for it
    fence.proxy.async, s_kv            GATHER                  rows written before products read them
    fence.proxy.async, s_p             SOFTMAX                 P written before products read it
    bar.warp.sync                      SOFTMAX                 no factor is loaded early: registers
    bar.warp.sync, arrivals            who arrives by warp     a warp's accesses before the arrival for it
    tcgen05.fence before, after        MMA, SOFTMAX, EPILOGUE  products, TMEM with arrivals, waits
    tcgen05.wait::ld                   SOFTMAX, EPILOGUE       TMEM read before its release
    bulk wait_group.read               EPILOGUE, warp 4        the last TMA store has read s_o
    barrier EPILOGUE, first            EPILOGUE                s_o read by the last store before it is written
    fence.proxy.async, s_o             EPILOGUE                o in s_o before the TMA store reads it
    barrier EPILOGUE, second           EPILOGUE                all of s_o written before it is stored
    bulk wait_group                    EPILOGUE, warp 4        o stored before the CTA ends
    producer_tail                      each producer           no arrival after the CTA ends
    barrier of the CTA                 all                     TMEM read before it is freed
    tcgen05.wait::st                   EPILOGUE                O rescaled before a product adds to it

640 threads, 230916 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

`kv`, `factor`, `scores`, `p`, `inverse` and `o` have a phase for each tile of the CTA, `q` for each item:
queries stay until the item's last tile. `inverse` carries c after all tiles of an item but the last, then the
item's divisor.

What counts is as in swa_decode's kernel. All scores of a row -inf: lse is -inf and o NaN or, with a sink or
splits, 0. Limits: as there; slots < 2^31; at most 32 splits. A row's bits depend on its own data and on
`splits`, not on B, S, `parts` or `workers`.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.plan import Sync
from gdnbench_kernels.swa_decode.kernel_sm100 import Tcgen05Decode, by_quarter
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sm100_gather import Gather
from gdnbench_kernels.swa_decode.sm100_output import Output
from gdnbench_kernels.swa_decode.sm100_plan import FEATURES, HEADS, PLAN, TileScheduler
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.sm100_segments import (
    PartialOutput,
    Segments,
    SegmentScheduler,
    SplitSoftmax,
    softmax_in,
)

SEGMENTS_PLAN = replace(
    PLAN,
    name="tcgen05_segments",
    does={
        **PLAN.does,
        "SOFTMAX": "S from TMEM, softmax over the tiles so far, P into s_p; c; lse",
        "EPILOGUE": "O in TMEM times c; after the last tile divided, to memory",
        "GATHER": "rows of both segments from the pages, as bf16 into s_kv; their factors",
    },
    syncs=(
        *PLAN.syncs,
        Sync("tcgen05.wait::st", "EPILOGUE", "O rescaled before a product adds to it"),
    ),
)
"""That of swa_decode's kernel, whose tile of entries is an item there and one of several here."""


class Tcgen05Segments(Tcgen05Decode):
    """The kernel for `heads` heads, a window in one layout, and an extra segment in another one, or none. It
    writes o, and lse in `form` if it is an output; or, with `split`, what `splits` says of each split."""

    def __init__(
        self,
        heads: int,
        window: CacheLayout,
        extra: CacheLayout | None,
        split: bool,
        form: LseForm,
    ) -> None:
        super().__init__(heads, window)
        self.extra_mla = extra is CacheLayout.FP8_DS_MLA
        self.tiled = extra is not None
        self.form = form
        self.split = split

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor | None,
        entries: cute.Tensor,
        lens: cute.Tensor,
        extra_pages: cute.Tensor | None,
        extra_inv_scale: cute.Tensor | None,
        extra_entries: cute.Tensor | None,
        extra_lens: cute.Tensor | None,
        attn_sink: cute.Tensor | None,
        o: cute.Tensor,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        extra_block_shift: cutlass.Int32,
        extra_entry_shift: cutlass.Int32,
        splits: cutlass.Int32,
        parts: cutlass.Int32,
        workers: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `launch_args.V4Arguments`, or o_part and lse_part for o and lse. Grid:
        `parts` (1, 2 or 4) x `workers` x `splits` CTAs."""
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        tma_q = blackwell.Tma.create(load, by_quarter(q), (HEADS, FEATURES))
        target: Any = o
        if cutlass.const_expr(not self.split):
            target = blackwell.Tma.create(store, by_quarter(o), (HEADS, FEATURES))
        self.kernel(
            tma_q,
            target,
            pages,
            inv_scale,
            entries,
            lens,
            extra_pages,
            extra_inv_scale,
            extra_entries,
            extra_lens,
            attn_sink,
            lse,
            scale,
            block_shift,
            extra_block_shift,
            extra_entry_shift,
        ).launch(
            grid=(parts, workers, splits),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma_q: blackwell.Tma,
        target: Any,
        pages: cute.Tensor,
        inv_scale: cute.Tensor | None,
        entries: cute.Tensor,
        lens: cute.Tensor,
        extra_pages: cute.Tensor | None,
        extra_inv_scale: cute.Tensor | None,
        extra_entries: cute.Tensor | None,
        extra_lens: cute.Tensor | None,
        attn_sink: cute.Tensor | None,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        extra_block_shift: cutlass.Int32,
        extra_entry_shift: cutlass.Int32,
    ) -> None:
        window = Gather(self.mla, pages, inv_scale, entries, lens, block_shift)
        extra = Gather(
            self.extra_mla,
            extra_pages,
            extra_inv_scale,
            extra_entries,
            extra_lens,
            extra_block_shift,
            extra_entry_shift,
        )
        softmax = SplitSoftmax if self.split else softmax_in(self.form)
        scaled = not self.mla or (self.tiled and not self.extra_mla)
        self.dispatch(
            tma_q,
            Segments(window, extra) if self.tiled else window,
            softmax(self.heads, scaled, self.tiled, attn_sink, lse, scale),
            PartialOutput(self.tiled, None, target, self.heads) if self.split else Output(self.tiled, target),
            lambda: (
                SegmentScheduler.of(lens.shape[0], self.heads, window, extra)
                if self.tiled
                else TileScheduler.create(lens.shape[0], self.heads)
            ),
        )
