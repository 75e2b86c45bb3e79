"""Decode attention over a window and an extra segment: DeepSeek-V4's. CuTe DSL, sm_90a, sm_100a.

Portable: products by mma.sync. Reads queries and the pages of both pools; writes o and lse, or the partial
outputs of splits, which `kernel_merge` adds up.

For query row t, j runs over the entries of its window, then over those of its extra segment, in tiles of 128;
no tile has entries of both. A tile is attended to as `swa_decode.kernel_mma` says: rows r, exact in f16, with
factors f = 2^e times a mantissa, and s[h, j] the scores in base 2. Sums are kept relative to an integer M,
and weights scaled by a power of two X, so that what earlier tiles gave is rescaled exactly:

    M[h]    = max(M', ceil(max_j s[h, j]))
    X[h]    = max(X' + M' - M[h], ceil(max_j (s[h, j] - M[h] + e[j])))     M', X': before the tile
    l[h]    = l'[h] 2^(M' - M[h]) + sum_j exp2(s[h, j] - M[h])
    w[h, j] = f16(2^13 exp2(s[h, j] - M[h] + e[j] - X[h]) mantissa[j])
    a[h]    = a'[h] 2^(M' + X' - M[h] - X[h]) + sum_j w[h, j] r[j]

and after the last tile

    o[h]    = a[h] 2^(X[h] - 13) / (l[h] + exp2(sink[h] log2 e - M[h]))    0 where l is 0
    lse[h]  = M[h] + log2 l[h]                                             in the form asked for

CTA (b, i) has 16 heads of query row b // ceil(H / 16), and split i of n of its tiles (`splits.first_tile`),
of those that its lengths leave: a tile past a length costs nothing. A split writes o_part, without the sink,
and lse_part in base 2; one without tiles writes -inf to lse_part alone. Heads above H are zeros and not
stored. The products are those of `swa_decode.kernel_mma`, and so is who computes them.

    tensor       shape            dtype     rows
    q, o         R, H, 512        bfloat16
    pages        blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale    slots            float32   or bfloat16; with per_token_scale alone
    indices      R, W             int32     any distance apart; W <= 128
    lens         R                int32
    extra_*                                 the same four of the extra segment, or none; extra_indices has
                                            slots, or pages in order of position
    attn_sink    H                float32   or none
    lse          R, H             float32   or none
    o_part       n, R H, 512      float32   for o, of splits
    lse_part     n, R H           float32   for lse, of splits

With fp8_ds_mla in both pools:

    SMEM            shape           dtype    layout
    s_rows          128 x 592       uint8    16 of a row are padding
    s_q             16 x 512        float16  16-byte chunk ^= row % 8 ^ chunk / 8 % 2
    s_p             16 x 128        float16  16-byte chunk ^= row % 8
    s_parts         8 x 2 x 32 x 4  float32  sums for each warp
    s_entries       128 x 4         float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         16 x 4 x 2      float32  a warp's largest score, exponent
    s_sums          16 x 4          float32  a warp's sum of weights
    s_tops          16 x 2          float32  reference of the sum, exponent of weights
    s_factors       16              float32  of a row of outputs, of each tile and the last
    s_coefficients  16              float32  of a head's scores
    s_arrived       8 x 2           int32    mbarriers of the warps
    s_groups        7 x 128         float16  2^(scale - factor)

    role  warps  does
    ALL   0..7   32 entries a pair in product 1, 64 features in product 2

    sync                    who                 orders
    s_arrived               each pair of warps  its entries' codes there before it multiplies them
    barrier, first          all                 s_q, s_coefficients, s_entries written before products 1
    barrier of a pair       each pair of warps  s_parts written before they are read
    barrier, second         all                 s_peaks written before they are read
    barrier, third          all                 s_p, s_factors written, all rows there before product 2
    fence, barrier, fourth  all                 all of a tile read before the next one is gathered
    barrier, fifth          all                 s_sums, s_tops of all tiles written before they are read
    barrier, sixth          all                 s_factors written before outputs are

256 threads, 109376 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

With per_token_scale in both pools:

    SMEM            shape           dtype    layout
    s_rows          128 x 528       uint8    16 of a row are padding
    s_q             16 x 512        float16  16-byte chunk ^= row % 8 ^ chunk / 8 % 2
    s_p             16 x 128        float16  16-byte chunk ^= row % 8
    s_parts         8 x 2 x 32 x 4  float32  sums for each warp
    s_entries       128 x 4         float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         16 x 4 x 2      float32  a warp's largest score, exponent
    s_sums          16 x 4          float32  a warp's sum of weights
    s_tops          16 x 2          float32  reference of the sum, exponent of weights
    s_factors       16              float32  of a row of outputs, of each tile and the last
    s_coefficients  16              float32  of a head's scores
    s_arrived       8 x 2           int32    mbarriers of the warps

    role  warps  does
    ALL   0..7   32 entries a pair in product 1, 64 features in product 2

    sync                    who                 orders
    s_arrived               each pair of warps  its entries' codes there before it multiplies them
    barrier, first          all                 s_q, s_coefficients, s_entries written before products 1
    barrier of a pair       each pair of warps  s_parts written before they are read
    barrier, second         all                 s_peaks written before they are read
    barrier, third          all                 s_p, s_factors written, all rows there before product 2
    fence, barrier, fourth  all                 all of a tile read before the next one is gathered
    barrier, fifth          all                 s_sums, s_tops of all tiles written before they are read
    barrier, sixth          all                 s_factors written before outputs are

256 threads, 99392 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

With a layout each, rows are as far apart as those of the longer layout need, and the outputs of the last warp
change their order between the segments.

An entry that does not count (past the length, or -1) is never dereferenced, nor is a page past the length:
its row is zeros, and its score is replaced, not multiplied. NaN in an entry that counts makes all outputs of
its query NaN, and no others; a query that is not finite affects only its head. With the same number of splits
a row's bits depend only on that row.

Limits: 1 <= H <= 128; R ceil(H / 16) < 2^31; slots < 2^31; pages aligned to 16 bytes. Of small values the
limits of `swa_decode.kernel_mma` hold, relative to the largest value of any tile so far.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import inf
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.blackwell import lane_of_turn
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.head_rows import TILE, Queries, Weights
from gdnbench_kernels.swa_decode.latent_rows import (
    CHUNK,
    FEATURE_TILES,
    DsMlaRows,
    Entries,
    PerTokenRows,
)
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.mma_tile import (
    ALL_SHARED,
    FINITE,
    LEAST_POWER,
    W_TOP,
    MmaTile,
    Shared,
    WorkTile,
)
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES, SHARES, WARPS
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM
from gdnbench_kernels.swa_decode.window import PADDING
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.lse_values import lse_in_form, sink_log2
from gdnbench_kernels.v4_decode.mma_state import Pool, Running, TileShared
from gdnbench_kernels.v4_decode.portable_plan import ROWS, THREADS, TILE_ENTRIES, plan
from gdnbench_kernels.v4_decode.splits import first_tile

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

LEAST_SHIFT = -127
"""A power of two of this exponent or less is 0."""


class MmaSyncTiles(MmaTile):
    """The kernel for `heads` heads; pools in `layouts`, that of the window and perhaps that of the extra
    segment; `split`: it writes partial outputs, else o and lse in `form`."""

    def __init__(self, heads: int, layouts: tuple[CacheLayout, ...], split: bool, form: LseForm) -> None:
        super().__init__(heads, ROWS, rope=layouts[-1] is CacheLayout.FP8_DS_MLA)
        self.layouts = layouts
        self.split = split
        self.form = form
        self.plan = plan(layouts)

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor,
        indices: cute.Tensor,
        lens: cute.Tensor,
        extra_pages: cute.Tensor,
        extra_inv_scale: cute.Tensor,
        extra_indices: cute.Tensor,
        extra_lens: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        extra_shift: cutlass.Int32,
        extra_entry_shift: cutlass.Int32,
        splits: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(
            q,
            pages,
            inv_scale,
            indices,
            lens,
            extra_pages,
            extra_inv_scale,
            extra_indices,
            extra_lens,
            attn_sink,
            o,
            lse,
            scale,
            block_shift,
            extra_shift,
            extra_entry_shift,
        ).launch(
            grid=(cute.size(q, mode=[0]) * self.groups, splits, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.plan.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor,
        indices: cute.Tensor,
        lens: cute.Tensor,
        extra_pages: cute.Tensor,
        extra_inv_scale: cute.Tensor,
        extra_indices: cute.Tensor,
        extra_lens: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        extra_shift: cutlass.Int32,
        extra_entry_shift: cutlass.Int32,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane, (block, split, _) = cute.arch.lane_idx(), cute.arch.block_idx()
        splits = cute.arch.grid_dim()[1]
        token = block // self.groups
        work = WorkTile(token, block % self.groups * self.rows, warp, lane)
        length = cutlass.max(ops.load_index(lens.iterator.toint() + I64(token) * 4), 0)
        extra_length = I32(0)
        if cutlass.const_expr(len(self.layouts) > 1):
            extra_length = cutlass.max(ops.load_index(extra_lens.iterator.toint() + I64(token) * 4), 0)
        words = self.read_queries(token, work.first_head, warp, lane, q)
        smem = cutlass.memory.SmemAllocator()
        where = {buffer.name: smem.allocate(buffer.bytes, buffer.align) for buffer in self.plan.smem}
        at = {name: pointer.toint() for name, pointer in where.items()}
        groups = at.get("s_groups", I32(0))
        barriers = cute.recast_ptr(where["s_arrived"], dtype=cutlass.Int64)
        shared = TileShared(
            at["s_q"],
            at["s_parts"],
            at["s_peaks"],
            at["s_tops"],
            at["s_sums"],
            at["s_factors"],
            at["s_coefficients"],
            at["s_p"],
            at["s_rows"],
            at["s_entries"],
            groups,
            barriers,
        )
        if lane == 0:
            cute.arch.mbarrier_init(barriers + warp, 1)
        cute.arch.mbarrier_init_fence()
        window = Pool.create(pages, inv_scale, indices, token, length, block_shift, I32(0))
        extra = None
        if cutlass.const_expr(len(self.layouts) > 1):
            extra = Pool.create(
                extra_pages,
                extra_inv_scale,
                extra_indices,
                token,
                extra_length,
                extra_shift,
                extra_entry_shift,
            )
        window_tiles = (length + TILE_ENTRIES - 1) // TILE_ENTRIES
        tiles = window_tiles + (extra_length + TILE_ENTRIES - 1) // TILE_ENTRIES
        first = first_tile(split, splits, tiles)
        after = cutlass.min(first_tile(split + 1, splits, tiles), tiles)
        if first >= after:
            self.store_empty(work, split, attn_sink, o, lse)
        if first < after:
            self.store_queries(work, shared, Queries(shared.q, lane, self.tiles), words, scale)
            self.attend(work, shared, window, extra, window_tiles, first, after, split, attn_sink, o, lse)

    @cute.jit
    def attend(
        self,
        work: WorkTile,
        shared: TileShared,
        window: Pool,
        extra: Pool,
        window_tiles: cutlass.Int32,
        first: cutlass.Int32,
        after: cutlass.Int32,
        split: cutlass.Int32,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        """All tiles of this split, then its outputs."""
        acc = cute.make_rmem_tensor((self.tiles * FEATURE_TILES * 4,), F32)
        acc.fill(0.0)
        running = Running(*(cute.make_rmem_tensor((self.tiles,), F32) for _ in range(3)))
        running.top.fill(FINITE)
        running.power.fill(LEAST_POWER)
        running.total.fill(0.0)
        if cutlass.const_expr(extra is None):
            self.attend_tile(work, shared, self.layouts[0], window, first, I32(0), acc, running)
        else:
            for tile in cutlass.range(first, after, unroll=1):
                self.attend_either(work, shared, window, extra, window_tiles, first, tile, acc, running)
        self.find_factors(work, shared, running, split, attn_sink, lse)
        if cutlass.const_expr(self.split):
            self.store_parts(work, acc, shared, split, o)
        else:
            self.store(work, acc, shared, o)

    @cute.jit
    def attend_either(
        self,
        work: WorkTile,
        shared: TileShared,
        window: Pool,
        extra: Pool,
        window_tiles: cutlass.Int32,
        first: cutlass.Int32,
        tile: cutlass.Int32,
        acc: cute.Tensor,
        running: Running,
    ) -> None:
        """A tile of either pool: the same code for both unless they differ in layout or scales."""
        phase = (tile - first) % 2
        of_window, number = tile < window_tiles, tile - window_tiles
        one, other = self.layouts
        if cutlass.const_expr(one is other and window.alike(extra)):
            pool = extra.unless(of_window, window)
            number = ops.select_value(of_window, tile, number)
            self.attend_tile(work, shared, one, pool, number, phase, acc, running)
        elif tile >= window_tiles:
            self.attend_tile(work, shared, other, extra, number, phase, acc, running)
        else:
            self.attend_tile(work, shared, one, window, tile, phase, acc, running)
            if cutlass.const_expr(one is not other):
                self.reorder(work, acc)

    @cute.jit
    def attend_tile(
        self,
        work: WorkTile,
        shared: TileShared,
        layout: cutlass.Constexpr,
        pool: Pool,
        tile: cutlass.Int32,
        phase: cutlass.Int32,
        acc: cute.Tensor,
        running: Running,
    ) -> None:
        """Gather a tile of the pool's entries, and add it to the accumulators."""
        # Recompute the lane's addresses for each tile: hoisted out of the loop they would be spilled.
        work = WorkTile(work.token, work.first_head, work.warp, lane_of_turn(tile))
        warp, lane, rows = work.warp, work.lane, self.rows_of(shared, layout, pool)
        arrived, beside = shared.barriers + warp, shared.barriers + (warp ^ 1)
        entries = Entries(self.slots(work, pool, tile), warp, lane, arrived, beside)
        loaded = rows.gather(entries, pool.pages)
        rows.describe(entries, pool.pages, loaded)
        cute.arch.sync_threads()
        cute.arch.mbarrier_wait(arrived, phase)
        cute.arch.mbarrier_wait(beside, phase)
        parts = cute.make_rmem_tensor((2 * self.mine,), F32)
        parts.fill(0.0)
        rows.score(parts, Queries(shared.q, lane, self.tiles), warp // 2, warp % 2, lane)
        scores = self.exchange(work, shared, parts)
        weights = Weights(shared.p, lane, self.tiles)
        self.softmax(work, shared, rows, scores, weights, running)
        self.rescale(work, shared, acc)
        rows.weigh(acc, weights, warp, lane)
        # The next tile's copies write what this one's threads wrote.
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()

    def rows_of(self, shared: TileShared, layout: CacheLayout, pool: Pool) -> Any:
        if layout is CacheLayout.PER_TOKEN_SCALE:
            return PerTokenRows(shared.rows, shared.entries, pool.inv_scale)
        return DsMlaRows(shared.rows, shared.entries, shared.groups, I32(1) << pool.pages.shift)

    @cute.jit
    def slots(self, work: WorkTile, pool: Pool, tile: cutlass.Int32) -> cutlass.Int32:
        """The slot of this lane's position of the tile; -1 if it does not count."""
        found, shift = I32(PADDING), pool.entry_shift
        place = tile * TILE_ENTRIES + work.warp * ENTRIES + work.lane % ENTRIES
        entry = place >> shift
        if place < pool.length and entry < pool.count:
            found = ops.load_index(pool.table + I64(entry) * 4)
            found = (found << shift) + (place & ((I32(1) << shift) - 1))
        return found

    def softmax(
        self,
        work: WorkTile,
        shared: Shared,
        rows: Any,
        scores: list[Any],
        weights: Weights,
        running: Running,
    ) -> None:
        """Write weights to shared memory, and the factor that earlier tiles' outputs are multiplied with.
        Every warp finds the same references and exponents."""
        share, places = work.warp // 2, self.places(work)
        own = [rows.entry(place + odd) for place in places for odd in range(2)]
        numbers = self.numbers(work)
        found, values = [], []
        for half, row in enumerate(numbers):
            values.append(self.row_scores(shared, row, half, scores, own))
            found.append(self.row_peak(values[half], own))
        self.publish(work, shared.peaks, share, numbers, found)
        cute.arch.sync_threads()
        factors = []
        for half, (row, s) in enumerate(zip(numbers, values, strict=True)):
            top, power, fading, factor = self.over_tiles(shared, row, half, running)
            p = self.store_weights(weights, row, places, [x - top for x in s], own, power)
            running.total[half] = ops.fused(running.total[half], fading, ops.sum_in_pairs(p))
            running.top[half], running.power[half] = top, power
            factors.append(factor)
        self.publish_factors(work, shared, share, numbers, factors)
        cute.arch.sync_threads()

    def over_tiles(self, shared: Shared, row: Any, half: int, running: Running) -> tuple[Any, Any, Any, Any]:
        """(reference of the row's sum with this tile, exponent of weights relative to it, factors of the
        earlier sum and of earlier outputs)."""
        found = self.row_peaks(shared, row)
        top = ops.greater(ops.round_up(ops.greatest([peak for peak, _ in found])), running.top[half])
        exponent = ops.greatest([peak - top + exponent for peak, exponent in found])
        lower = running.top[half] - top
        power = ops.greater(ops.round_up(exponent), running.power[half] + lower)
        power = ops.greater(power, F32(LEAST_POWER))
        factor = whole_power(lower + (running.power[half] - power))
        return top, power, whole_power(lower), factor

    @cute.jit
    def publish_factors(
        self,
        work: WorkTile,
        shared: Shared,
        share: cutlass.Int32,
        rows: list[Any],
        factors: list[Any],
    ) -> None:
        """Write a row's factor, which is equal in every warp, by one of the warps."""
        if work.lane % 4 == 0 and share == 0:
            for place in cutlass.range_constexpr(len(rows)):
                ops.store_shared(shared.factors + rows[place] * 4, factors[place])

    @cute.jit
    def rescale(self, work: WorkTile, shared: Shared, acc: cute.Tensor) -> None:
        """Multiply the outputs of earlier tiles with each row's factor."""
        for m in cutlass.range_constexpr(self.tiles):
            for half in cutlass.range_constexpr(2):
                number = m * TILE + 8 * half + work.lane // 4
                factor = ops.load_shared_float(shared.factors + number * 4)
                for tile in cutlass.range_constexpr(FEATURE_TILES):
                    for odd in cutlass.range_constexpr(2):
                        place = (m * FEATURE_TILES + tile) * 4 + 2 * half + odd
                        acc[place] = acc[place] * factor

    @cute.jit
    def reorder(self, work: WorkTile, acc: cute.Tensor) -> None:
        """Bring the last warp's outputs of the window to the order of the extra segment: one layout has rope
        there, the other codes (`adjacent`)."""
        swap = work.warp == WARPS - 1
        for pair in cutlass.range_constexpr(self.tiles * FEATURE_TILES // 2):
            for half in cutlass.range_constexpr(2):
                one, other = 8 * pair + 2 * half + 1, 8 * pair + 2 * half + 4
                left, right = acc[one], acc[other]
                acc[one] = ops.select_value(swap, right, left)
                acc[other] = ops.select_value(swap, left, right)

    @cute.jit
    def find_factors(
        self,
        work: WorkTile,
        shared: Shared,
        running: Running,
        split: cutlass.Int32,
        attn_sink: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        """Compute the factor of each row of outputs, 0 if nothing is attended to, and lse."""
        # After the last tile: the loop has no register for it.
        logit = self.sink_of(work, attn_sink)
        numbers, share = self.numbers(work), work.warp // 2
        halves = list(range(self.tiles))
        self.publish(work, shared.sums, share, numbers, [(ops.summed(running.total[i]),) for i in halves])
        tops = [(running.top[i], running.power[i]) for i in halves]
        self.publish_tops(work, shared, share, numbers, tops)
        cute.arch.sync_threads()
        row = self.shared_row(work)
        tells = work.lane % SHARES == 0 and work.lane < self.rows // WARPS * SHARES
        total = self.row_total(work, shared, row)
        top, power = ops.load_shared_floats(shared.tops + row * 8)
        below = total
        if cutlass.const_expr(self.split):
            value = ops.select_value(total == 0.0, F32(-inf), top + ops.log2(total))
            self.store_row_lse(work, split, row, value, tells, lse)
        else:
            sink = None if logit is None else sink_log2(logit)
            if cutlass.const_expr(lse is not None):
                value = lse_in_form(self.form, top, total, sink)
                self.store_row_lse(work, split, row, value, tells, lse)
            if cutlass.const_expr(logit is not None):
                below = total + ops.exp2(sink - top)
        factor = ops.exp2_whole(power - W_TOP) * ops.reciprocal(below)
        if tells:
            ops.store_shared(shared.factors + row * 4, ops.select_value(total == 0.0, F32(0.0), factor))
        cute.arch.sync_threads()

    @cute.jit
    def store_row_lse(
        self,
        work: WorkTile,
        split: cutlass.Int32,
        row: cutlass.Int32,
        value: cutlass.Float32,
        mine: cutlass.Boolean,
        lse: cute.Tensor,
    ) -> None:
        """Store lse [R, H], or lse_part [n, R H] of a split."""
        head = work.first_head + row
        if mine and head < self.heads:
            if cutlass.const_expr(self.split):
                lse[split, work.token * self.heads + head] = value
            else:
                lse[work.token, head] = value

    @cute.jit
    def store_parts(
        self, work: WorkTile, acc: cute.Tensor, shared: Shared, split: cutlass.Int32, o: cute.Tensor
    ) -> None:
        """Each thread stores four adjacent features of each chunk of 16 to o_part."""
        rows = I64(split) * cute.size(o, mode=[1]) + I64(work.token) * self.heads
        for m in cutlass.range_constexpr(self.tiles):
            for half in cutlass.range_constexpr(2):
                number = m * TILE + 8 * half + work.lane // 4
                head = work.first_head + number
                factor = ops.load_shared_float(shared.factors + number * 4)
                place = (rows + head) * HEAD_DIM + work.warp * (HEAD_DIM // WARPS) + work.lane % 4 * 4
                row = o.iterator.toint() + place * 4
                for pair in cutlass.range_constexpr(FEATURE_TILES // 2):
                    four = [x * factor for x in self.adjacent(work, acc, m, half, pair)]
                    if head < self.heads:
                        ops.store_global(row + pair * 4 * TILE, *four)

    @cute.jit
    def store_empty(
        self,
        work: WorkTile,
        split: cutlass.Int32,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        """Store o = 0 and lse of a sum over nothing; of a split lse_part alone."""
        for turn in cutlass.range_constexpr(self.rows // WARPS):
            number = turn * WARPS + work.warp
            head = work.first_head + number
            if cutlass.const_expr(not self.split):
                self.store_zeros(work, head, o)
            if cutlass.const_expr(lse is not None):
                value = F32(-inf) if self.split else self.empty_lse(head, attn_sink)
                self.store_row_lse(work, split, number, value, work.lane == 0, lse)

    @cute.jit
    def store_zeros(self, work: WorkTile, head: cutlass.Int32, o: cute.Tensor) -> None:
        zero = I32(0)
        if head < self.heads:
            row = self.row(o, work.token, head) + I64(work.lane * 2 * CHUNK)
            ops.store_global(row, zero, zero, zero, zero)
            ops.store_global(row + CHUNK, zero, zero, zero, zero)

    def empty_lse(self, head: Any, attn_sink: cute.Tensor) -> Any:
        """lse of a sum over nothing."""
        sink = None
        if attn_sink is not None:
            address = attn_sink.iterator.toint() + I64(cutlass.min(head, self.heads - 1)) * 4
            sink = sink_log2(ops.float_of(ops.load_index(address)))
        return lse_in_form(self.form, F32(FINITE), F32(0.0), sink)


def whole_power(exponent: Any) -> Any:
    """2^exponent of an integer up to 0, exactly; 0 below 2^-126."""
    return ops.power_of_two(I32(ops.greater(exponent, F32(LEAST_SHIFT))))
