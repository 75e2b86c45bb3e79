"""Decode attention of DeepSeek-V4 over FP8 pages of a window and of compressed rows. CuTe DSL, sm_90a.

The products, the roles and the softmax of a tile are those of swa_decode's kernel_sm90.py, whose class this
one extends. An item, `rows` heads of a query row and one of its splits, has as many tiles as its lengths
leave (sm90_tiles.py). Per head MULTIPLY keeps m, the largest score so far in base 2; b, the largest exponent
of a weight relative to m; l, the sum of weights; and in registers the sums of product 2, A. After product 1
of a tile with scores s[j], factors f[j] = 2^e[j] times a mantissa and rows r[j]:

    m' = max(m, max_j s[j])
    b' = max(m - m' + b, max_j (s[j] - m' + e[j]))             x = ceil(b), x' = ceil(b')
    A' = 2^(m - m' + x - x') A + sum_j f16(2^13 2^(s[j] - m' + e[j] - x') mantissa[j]) r[j]
    l' = 2^(m - m') l + sum_j 2^(s[j] - m')

and after the last tile o = 2^(x - 13) A / (l + 2^(sink log2 e - m)), 0 where l is 0, and lse = m + log2 l in
the form asked for. With `form` None the outputs are those of a split instead: o without the sink in float32,
and lse in base 2, which kernel_merge.py adds up.

    tensor           shape            dtype     rows
    q                T, H, 512        bfloat16
    pages            blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale        slots            float32   or bfloat16; with per_token_scale alone
    indices          T, W             int32     any distance apart; W <= 128
    lens             T                int32
    extra_pages, extra_inv_scale, extra_indices, extra_lens: likewise, any number of entries; an entry names
                     2^entry_shift positions in a row
    attn_sink        H                float32   or none
    o                T, H, 512        bfloat16  splits: n, T, H, 512 float32
    lse              T, H             float32   or none; splits: n, T, H

With fp8_ds_mla and 64 heads per CTA:

    SMEM            shape                dtype    layout
    s_q             8 x 64 x 64          float16  16-byte chunk ^= head % 8
    s_p             2 x 64 x 64          float16  16-byte chunk ^= head % 8
    s_rows          128 x 464, 2 stages  uint8    16 of a row are padding; then o, heads 1040 bytes apart
    s_rope          128 x 72             float16  as s_rows
    s_groups        7 x 128, 2 stages    float16  2^(scale - factor)
    s_entries       128 x 4, 2 stages    float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         8 x 64 x 2           float32  a warp's largest score, exponent; its sums over them
    s_tops          64 x 2               float32  the largest score, exponent
    s_factors       64                   float32  of a head's outputs
    s_coefficients  64                   float32  of a head's scores
    s_ready         2                    int32    mbarrier: s_rope is there

    role      warps  does
    MULTIPLY  0..7   queries as f16; a warpgroup 64 entries of product 1, 256 features of product 2
    LOAD      8..11  tiles, queries, what rows are multiplied by; outputs

    pipeline  stages  full: arrivals             empty: arrivals
    rows      2       12 LOAD, with their bytes  8 MULTIPLY warps
    q         1       1 LOAD + 65536 bytes       8 MULTIPLY warps

    sync                       who                     orders
    s_ready                    LOAD warps to MULTIPLY  s_rope before it is multiplied
    barrier MULTIPLY, queries  MULTIPLY                s_q in f16 before product 1
    barrier MULTIPLY, first    MULTIPLY                s_peaks written before they are compared
    barrier MULTIPLY, second   MULTIPLY                s_tops, s_factors written; s_peaks read before sums are
    barrier MULTIPLY, third    MULTIPLY                s_p and sums written; s_factors read before it is again
    barrier MULTIPLY, fourth   MULTIPLY                rows, s_p, sums read, s_factors written
    barrier LOAD               LOAD                    o read from a stage before rows are copied to it
    fence.proxy.async          LOAD                    zeros of rows before copies
    fence.proxy.async          MULTIPLY                s_q, s_p before products, o before it is copied

384 threads, 231992 bytes of SMEM, 0 columns of TMEM, 1 CTA an SM

An entry that does not count (past the length, or -1) is never dereferenced, and entries past a length are not
read. A NaN spoils what it spoils in swa_decode. A row's bits depend on that row and the number of splits, not
on T, `rows`, `workers`, the rest of `Tuning` or the order of CTAs. A segment without entries changes no bit
if the number of splits stays.

Limits: both pools in one layout; 1 <= H <= 128; T n ceil(H / rows) < 2^31; pages aligned to 16 bytes; sm_90a
only.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode import sm90_ops as wgmma
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.kernel_sm90 import (
    SHARERS,
    WgmmaDecode,
    WorkTile,
    add_tuples,
    by_block,
    combine_halves,
    combine_lanes,
    combine_peaks,
)
from gdnbench_kernels.swa_decode.latent_rows import STEP, Pages
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.mma_tile import FINITE, LEAST_POWER, W_TOP
from gdnbench_kernels.swa_decode.sizes import GROUP, HEAD_DIM
from gdnbench_kernels.swa_decode.sm90_load import Pipelines, Shared, query_state, window_state
from gdnbench_kernels.swa_decode.sm90_plan import (
    GROUP_WARPS,
    LOADERS,
    STAGES,
    THREADS,
    Role,
    row_bytes,
    staged_heads,
)
from gdnbench_kernels.swa_decode.sm90_window import TILES, ThreadCoord, first_entry
from gdnbench_kernels.v4_decode.lse_forms import LseForm
from gdnbench_kernels.v4_decode.lse_values import lse_in_form, sink_log2
from gdnbench_kernels.v4_decode.sm90_load import SegmentLoader
from gdnbench_kernels.v4_decode.sm90_plan import Tuning, plan
from gdnbench_kernels.v4_decode.sm90_tiles import Pool, Segments, Table

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32


@dataclass(frozen=True)
class Item(WorkTile):
    """The current item, and this thread's position in it."""

    split: cutlass.Int32


class WgmmaSegments(WgmmaDecode):
    """The kernel for `heads` heads. `form`: that of lse; None: partial outputs of
    splits, as `partials` describes them."""

    def __init__(self, heads: int, tuning: Tuning, form: LseForm | None) -> None:
        layout = tuning.layout
        self.heads = heads
        self.mla = layout is CacheLayout.FP8_DS_MLA
        self.tuning = tuning
        self.rows = tuning.rows
        self.plan = plan(tuning)
        self.row_bytes = row_bytes(layout)
        self.staged = staged_heads(layout, tuning.rows)
        self.form = form

    @property
    def partial(self) -> bool:
        return self.form is None

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
        entry_shift: cutlass.Int32,
        splits: cutlass.Int32,
        workers: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Grid: `workers` CTAs, at most one an item."""
        tma_q = blackwell.Tma.create(cpasync.CopyBulkTensorTileG2SOp(), by_block(q), (self.rows, GROUP))
        self.kernel(
            tma_q,
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
            entry_shift,
            splits,
        ).launch(grid=(workers, 1, 1), block=(THREADS, 1, 1), stream=stream, min_blocks_per_mp=1)

    @cute.kernel
    def kernel(
        self,
        tma_q: blackwell.Tma,
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
        entry_shift: cutlass.Int32,
        splits: cutlass.Int32,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = self.allocate(smem)
        pipelines = Pipelines(*(blackwell.Pipeline.allocate(pipe, smem) for pipe in self.plan.pipelines))
        tables = Table(indices, lens, I32(0)), Table(extra_indices, extra_lens, entry_shift)
        if warp == Role.LOAD:
            cpasync.prefetch_descriptor(tma_q.atom)
            with cute.arch.elect_one():
                pipelines.rows.init()
                pipelines.q.init()
                cute.arch.mbarrier_init(shared.ready, LOADERS)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        # Each role builds its scheduler itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.LOAD:
            cute.arch.setmaxregister_increase(self.tuning.multiply_registers)
            scheduler = Segments.of(q.shape[0], self.heads, self.rows, splits, *tables)
            self.attend_items(scheduler, pipelines, shared, attn_sink, o, lse, scale)
        else:
            cute.arch.setmaxregister_decrease(self.tuning.load_registers)
            window = Pages(pages.iterator.toint(), I64(pages.stride[0]), block_shift)
            extra = Pages(extra_pages.iterator.toint(), I64(extra_pages.stride[0]), extra_shift)
            loader = SegmentLoader(
                self.mla,
                self.staged,
                self.tuning,
                window,
                I32(1) << block_shift,
                inv_scale,
                indices,
                lens,
                q,
                o,
                Pool(extra, extra_inv_scale),
                self.partial,
            )
            scheduler = Segments.of(q.shape[0], self.heads, self.rows, splits, *tables)
            loader.load_segments(scheduler, pipelines, shared, tma_q)

    @cute.jit
    def attend_items(
        self,
        scheduler: Segments,
        pipelines: Pipelines,
        shared: Shared,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        queries = shared.queries(self.mla, self.rows, scale)
        sums = cute.make_rmem_tensor((TILES * self.rows // 2,), F32)
        first_turn = I32(0)
        for number in cutlass.range(scheduler.count, unroll=1):
            work = self.item(scheduler, number)
            share = scheduler.share(number, scheduler.lengths(number))
            logit = self.sink_of(work, attn_sink)
            pipelines.q.consumer_wait(query_state(number))
            queries.convert(work.thread // 32)
            cute.arch.fence_proxy("async.shared", space="cta")
            self.mma_barrier()
            sums.fill(0.0)
            top, bound, total = F32(FINITE), F32(-inf), F32(0.0)
            for tile in cutlass.range(share.count, unroll=1):
                # Computed anew where it is needed, so that no register has to hold it between products.
                work = self.item(scheduler, blackwell.opaque(number))
                turn = first_turn + tile
                last = tile + 1 == share.count
                pipelines.rows.consumer_wait(window_state(turn))
                window = shared.window(turn % STAGES, self.mla, None)
                scores = self.score(shared, window, work.coord, turn)
                own, values = self.find_peaks_in_turn(work, shared, window, scores)
                if last:
                    pipelines.q.consumer_release(query_state(number))
                self.mma_barrier()
                top, bound, total = self.compare_running(work, shared, top, bound, total)
                self.mma_barrier()
                self.rescale(shared, work.coord, sums)
                self.write_weights_in_turn(work, shared, own, values)
                self.mma_barrier()
                total = self.add_tile(work, shared, total)
                if last:
                    self.store_factors(work, scheduler, shared, logit, top, bound, total, lse)
                self.weigh_tile(shared, window, work.coord, sums)
                self.mma_barrier()
                if last:
                    work = self.item(scheduler, blackwell.opaque(number))
                    self.finish(work, scheduler, shared, turn, sums, o)
                cute.arch.fence_proxy("async.shared", space="cta")
                pipelines.rows.consumer_release(window_state(turn))
            if share.count == 0:
                self.store_nothing(
                    number, first_turn, work, scheduler, pipelines, shared, logit, sums, o, lse
                )
            first_turn = first_turn + share.turns

    def item(self, scheduler: Segments, number: Any) -> Item:
        thread = wgmma.thread_in_role(Role.MULTIPLY)
        warp = cute.arch.make_warp_uniform(thread // 32)
        row, first_head = scheduler.work_tile(number)
        coord = ThreadCoord(warp // GROUP_WARPS, warp % GROUP_WARPS, thread % 32)
        return Item(row, first_head, coord, thread, scheduler.split_of(number))

    @cute.jit
    def store_nothing(
        self,
        number: cutlass.Int32,
        turn: cutlass.Int32,
        work: Item,
        scheduler: Segments,
        pipelines: Pipelines,
        shared: Shared,
        logit: Any,
        sums: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        """Store the outputs of an item that attends to nothing: `sums` are zeros."""
        pipelines.rows.consumer_wait(window_state(turn))
        pipelines.q.consumer_release(query_state(number))
        if cutlass.const_expr(self.mla):
            shared.wait_for_rope(turn)
        self.store_factors(work, scheduler, shared, logit, F32(FINITE), F32(-inf), F32(0.0), lse)
        self.mma_barrier()
        if cutlass.const_expr(not self.partial):
            self.finish(work, scheduler, shared, turn, sums, o)
        cute.arch.fence_proxy("async.shared", space="cta")
        pipelines.rows.consumer_release(window_state(turn))

    def find_peaks_in_turn(
        self, work: Item, shared: Shared, window: Any, scores: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """As `find_peaks`, with few values in registers at a time, beside the sums of outputs."""
        coord = work.coord
        own = [window.entry(first_entry(coord) + coord.lane // 4 + 8 * half) for half in range(2)]
        values: list[Any] = [None] * (self.rows // 4)

        def peak_of(number: int) -> tuple[Any, Any]:
            head = number // 2 * 8 + coord.lane % 4 * 2 + number % 2
            coefficient = ops.load_shared_float(shared.coefficients + head * 4)
            raw = [scores[number // 2 * 4 + 2 * half + number % 2] for half in range(2)]
            values[number], (peak, largest) = self.peak_of_entries(raw, own, coefficient)
            return peak, largest

        found = combine_in_turn(peak_of, self.rows // 4, coord.lane, combine_peaks)
        self.publish(work, shared.peaks, found)
        return own, values

    def write_weights_in_turn(self, work: Item, shared: Shared, own: list[Any], values: list[Any]) -> None:
        """As `write_weights`, storing weights as soon as a matrix is full."""
        sums: list[Any] = []
        for n in range(0, self.rows // 8, 2):
            weights: list[Any] = []
            for number in range(2 * n, 2 * n + 4):
                if number % 2 == 0:
                    tops = self.tops_of(shared, number, work.coord)
                weight, total = self.weights_of(values[number], own, *tops[number % 2])
                weights.append(weight)
                sums.append(total)
            self.store_weights_of(shared, work.coord, n, weights)
        self.publish(work, shared.peaks, combine_lanes(sums, work.coord.lane, add_tuples))
        cute.arch.fence_proxy("async.shared", space="cta")

    @cute.jit
    def compare_running(
        self,
        work: Item,
        shared: Shared,
        top: cutlass.Float32,
        bound: cutlass.Float32,
        total: cutlass.Float32,
    ) -> tuple[cutlass.Float32, cutlass.Float32, cutlass.Float32]:
        """For every head: the largest score so far, an integer exponent that bounds the weights, and the
        factor of what was added up before. Returns (top, bound, total) relative to the new top."""
        head, share, mine = self.compared_head(work)
        peak, above = combine_peaks((top, bound), self.peak_of_warps(shared, head, share))
        power = power_above(above)
        fall = top - peak
        if mine:
            ops.store_shared(shared.tops + head * 8, peak, power)
            ops.store_shared(shared.factors + head * 4, ops.exp2(fall + (power_above(bound) - power)))
        return peak, above, ops.product(total, ops.exp2(fall))

    def compared_head(self, work: Item) -> tuple[Any, Any, Any]:
        """(the head whose warps' results a thread compares, its number among the SHARERS of that head,
        whether it stores what they find). With fewer heads than threads for them heads are compared several
        times: ptxas serialises products if only a part of a warpgroup does it (C7520)."""
        share = work.thread % SHARERS
        mine = (share == 0) & (work.thread < SHARERS * self.rows)
        return work.thread // SHARERS % self.rows, share, mine

    def add_tile(self, work: Item, shared: Shared, total: Any) -> Any:
        """The sum of a head's weights, with those of a tile."""
        head, share, _ = self.compared_head(work)
        return total + self.sum_of_warps(shared, head, share)

    def rescale(self, shared: Shared, coord: ThreadCoord, sums: cute.Tensor) -> None:
        """Multiply the outputs so far by their heads' factors."""
        for n in range(self.rows // 8):
            both = ops.load_shared_floats(shared.factors + (8 * n + coord.lane % 4 * 2) * 4)
            for tile in range(TILES):
                for place in range(4):
                    at = tile * self.rows // 2 + 4 * n + place
                    sums[at] = sums[at] * both[place % 2]

    def weigh_tile(self, shared: Shared, window: Any, coord: ThreadCoord, sums: cute.Tensor) -> None:
        found = self.weigh(shared, window, coord, self.by_tile(sums))
        for tile, values in enumerate(found):
            for place, value in enumerate(values):
                sums[tile * self.rows // 2 + place] = value

    def by_tile(self, sums: cute.Tensor) -> list[list[Any]]:
        size = self.rows // 2
        return [[sums[tile * size + place] for place in range(size)] for tile in range(TILES)]

    @cute.jit
    def store_factors(
        self,
        work: Item,
        scheduler: Segments,
        shared: Shared,
        logit: Any,
        top: cutlass.Float32,
        bound: cutlass.Float32,
        total: cutlass.Float32,
        lse: cute.Tensor,
    ) -> None:
        """Write the factor of a head's outputs to s_factors, 0 if nothing is attended to, and lse to global
        memory."""
        number, _, mine = self.compared_head(work)
        head = work.first_head + number
        sink = None if cutlass.const_expr(logit is None) else sink_log2(logit)
        if cutlass.const_expr(lse is not None):
            stored = mine & (head < self.heads)
            self.store_lse(stored, work, scheduler, head, self.lse_of(top, total, sink), lse)
        below = total
        if cutlass.const_expr(sink is not None):
            below = total + ops.exp2(sink - top)
        factor = ops.exp2_whole(power_above(bound) - W_TOP) * ops.reciprocal(below)
        if mine:
            ops.store_shared(shared.factors + number * 4, ops.select_value(total == 0.0, F32(0.0), factor))

    @cute.jit
    def store_lse(
        self,
        mine: cutlass.Boolean,
        work: Item,
        scheduler: Segments,
        head: cutlass.Int32,
        value: cutlass.Float32,
        lse: cute.Tensor,
    ) -> None:
        if mine:
            row = (work.split * scheduler.tokens + work.token) * self.heads + head
            ops.store_global(lse.iterator.toint() + I64(row) * 4, value)

    def lse_of(self, top: Any, total: Any, sink: Any) -> Any:
        if self.form is None:
            return top + ops.log2(total)
        return lse_in_form(self.form, top, total, sink)

    @cute.jit
    def finish(
        self,
        work: Item,
        scheduler: Segments,
        shared: Shared,
        turn: cutlass.Int32,
        sums: cute.Tensor,
        o: cute.Tensor,
    ) -> None:
        """Store an item's outputs."""
        factors, outputs = self.by_head(shared.factors, work.coord), self.by_tile(sums)
        if cutlass.const_expr(self.partial):
            self.store_partial(work, scheduler, factors, outputs, o)
        else:
            self.store_outputs(work, scheduler, shared.stage(turn % STAGES), factors, outputs, o)

    def store_partial(
        self, work: Item, scheduler: Segments, factors: list[Any], outputs: list[list[Any]], o: cute.Tensor
    ) -> None:
        """Store two adjacent features of a head at a time, as float32."""
        coord = work.coord
        row = I64(work.split * scheduler.tokens + work.token) * self.heads + work.first_head
        first_head, lane_feature = coord.lane % 4 * 2, coord.warp * STEP + coord.lane // 4 * 2
        place = (row + first_head) * HEAD_DIM + coord.group * (TILES * GROUP) + lane_feature
        address = o.iterator.toint() + place * 4
        for number, factor in enumerate(factors):
            n, odd = divmod(number, 2)
            pairs = [(sums[4 * n + odd] * factor, sums[4 * n + 2 + odd] * factor) for sums in outputs]
            self.store_head(work, 8 * n + odd + first_head, address + (8 * n + odd) * (HEAD_DIM * 4), pairs)

    @cute.jit
    def store_head(
        self, work: Item, head: cutlass.Int32, address: cutlass.Int64, pairs: list[tuple[Any, Any]]
    ) -> None:
        """Store two adjacent features in each tile of a head, if the head exists."""
        if work.first_head + head < self.heads:
            for tile, pair in enumerate(pairs):
                ops.store_global(address + tile * (GROUP * 4), *pair)


def power_above(bound: Any) -> Any:
    """The integer exponent of weights that are bounded by 2^bound."""
    return ops.greater(ops.round_up(bound), F32(LEAST_POWER))


def combine_in_turn(value_of: Any, count: int, lane: Any, combine: Any) -> list[tuple[Any, ...]]:
    """`combine_lanes` of `count` values, each computed when it is needed."""
    steps = (16, 8, 4)

    def node(level: int, number: int) -> tuple[Any, ...]:
        if level == 0:
            found: tuple[Any, ...] = value_of(number)
            return found
        half = (count >> (level - 1)) // 2
        parts = [node(level - 1, part) for part in (number, number + half)[: 2 if half else 1]]
        (found,) = combine_halves(parts, lane, steps[level - 1], combine)
        return found

    return [node(len(steps), number) for number in range(max(1, count >> len(steps)))]
