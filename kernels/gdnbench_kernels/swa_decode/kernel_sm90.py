"""Sliding-window decode attention over FP8 pages: FlashMLA's `sparse_decode_fwd`. CuTe DSL, sm_90a.

Persistent CTAs, products by wgmma; reads queries and pages, writes o and lse.

The equations, and the powers of two that scale queries, rows and weights, are those of kernel_mma.py. An item
is `rows` heads of a token; heads above H are zeros and not stored. CTA b of `workers` processes items b, b +
workers, ... Both products are transposed: codes are converted in registers to a left operand, once for all
heads of the item, and queries and weights are right operands in shared memory:

    product      M    N     K    left                      right       in warpgroup w of two
    1. R Q^T     128  rows  512  registers, `ldmatrix`     s_q         entries 64 w .. + 63
    2. R^T P^T   512  rows  128  registers, `.trans`       s_p         features 256 w .. + 255, four tiles

A softmax is over the rows of an accumulator: 2 per thread, 8 lanes, 8 warps. While an item is multiplied, the
rows of the next item are loaded, and after product 1 its queries too. Outputs are stored through the stage of
their window; those that do not fit (fp8_ds_mla, the last 8 of 64 heads) are stored from registers. An item of
length 0 copies and multiplies nothing.

    tensor       shape            dtype     rows
    q, o         T, H, 512        bfloat16
    pages        blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale    slots            float32   or bfloat16; with per_token_scale alone
    indices      T, W             int32     any distance apart; W <= 128
    lens         T                int32
    attn_sink    H                float32   or none
    lse          T, H             float32   or none

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
    s_lens          2                    int32    of the windows
    s_ready         2                    int32    mbarrier: s_rope is there

    role      warps  does
    MULTIPLY  0..7   queries as f16; a warpgroup 64 entries of product 1, 256 features of product 2
    LOAD      8..11  windows, queries, what rows are multiplied by; outputs

    pipeline  stages  full: arrivals             empty: arrivals
    rows      2       12 LOAD, with their bytes  8 MULTIPLY warps
    q         1       1 LOAD + 65536 bytes       8 MULTIPLY warps

    sync                       who                     orders
    s_ready                    LOAD warps to MULTIPLY  s_rope before it is multiplied
    barrier MULTIPLY, queries  MULTIPLY                s_q in f16 before product 1
    barrier MULTIPLY, first    MULTIPLY                s_peaks written before they are compared
    barrier MULTIPLY, second   MULTIPLY                s_tops written; s_peaks read before sums are
    barrier MULTIPLY, third    MULTIPLY                s_p and the sums written before product 2
    barrier MULTIPLY, fourth   MULTIPLY                rows and s_p read, s_factors written before o is
    barrier LOAD               LOAD                    o read from a stage before rows are copied to it
    fence.proxy.async          LOAD                    zeros of rows before copies
    fence.proxy.async          MULTIPLY                s_q, s_p before products, o before it is copied

384 threads, 232000 bytes of SMEM, 0 columns of TMEM, 1 CTA an SM

With per_token_scale a row of s_rows is 528 bytes, and there is neither s_rope nor s_groups.

An entry that does not count (past the length, or -1) is never dereferenced: its row is zeros, and its score
is replaced, not multiplied. NaN in the codes, scale or rope of an entry that counts makes all outputs of its
token NaN, and no others; a query that is not finite affects only its head. A row's bits depend only on that
row, not on T, `rows`, `workers`, the rest of `Tuning` or the order of CTAs.

Limits: 1 <= H <= 128; T ceil(H / rows) < 2^31; pages aligned to 16 bytes; sm_90a only. Values far below the
largest of their row or of their head's query lose bits as in kernel_mma.py.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from gdnbench_kernels import blackwell
from gdnbench_kernels.swa_decode import sm90_ops as wgmma
from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.early_prefetch import prefetch_entry, prefetch_queries
from gdnbench_kernels.swa_decode.latent_rows import STEP, Pages
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.mma_tile import FINITE, LEAST_POWER, LOG2_E, W_TOP
from gdnbench_kernels.swa_decode.sizes import GROUP, HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.sm90_load import (
    Loader,
    Pipelines,
    Shared,
    TileScheduler,
    query_state,
    window_state,
)
from gdnbench_kernels.swa_decode.sm90_plan import (
    BLOCKS,
    GROUP_WARPS,
    LOADERS,
    MULTIPLIERS,
    OUT_BYTES,
    STAGES,
    THREADS,
    Barrier,
    Role,
    Tuning,
    plan,
    row_bytes,
    staged_heads,
)
from gdnbench_kernels.swa_decode.sm90_window import NOPE_PAIRS, TILES, ThreadCoord

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

KEY_PAIRS, VALUE_STEPS = HEAD_DIM // (2 * STEP), MAX_WINDOW // STEP
"""Pairs of steps of product 1; steps of product 2."""
SHARERS = 4
"""Threads that compare the warps' results of a head."""


@dataclass(frozen=True)
class WorkTile:
    """The current item, and this thread's position in it."""

    token: cutlass.Int32
    first_head: cutlass.Int32
    coord: ThreadCoord
    thread: cutlass.Int32


class WgmmaDecode:
    """The kernel for `heads` heads and a cache in `layout`."""

    def __init__(self, heads: int, layout: CacheLayout, tuning: Tuning) -> None:
        self.heads = heads
        self.mla = layout is CacheLayout.FP8_DS_MLA
        self.tuning = tuning
        self.rows = tuning.rows
        self.plan = plan(layout, tuning)
        self.row_bytes = row_bytes(layout)
        self.staged = staged_heads(layout, tuning.rows)

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor,
        indices: cute.Tensor,
        lens: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
        workers: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `launch_args.Arguments`. Grid: `workers` CTAs, at most one a work tile."""
        tma_q = blackwell.Tma.create(cpasync.CopyBulkTensorTileG2SOp(), by_block(q), (self.rows, GROUP))
        self.kernel(tma_q, q, pages, inv_scale, indices, lens, attn_sink, o, lse, scale, block_shift).launch(
            grid=(workers, 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            use_pdl=self.tuning.pdl,
        )

    @cute.kernel
    def kernel(
        self,
        tma_q: blackwell.Tma,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor,
        indices: cute.Tensor,
        lens: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
        block_shift: cutlass.Int32,
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = cutlass.memory.SmemAllocator()
        shared = self.allocate(smem)
        pipelines = Pipelines(*(blackwell.Pipeline.allocate(pipe, smem) for pipe in self.plan.pipelines))
        if warp >= Role.LOAD:
            self.prefetch_first(q, pages, inv_scale, indices, lens, block_shift)
        if warp == Role.LOAD:
            cpasync.prefetch_descriptor(tma_q.atom)
            with cute.arch.elect_one():
                pipelines.rows.init()
                pipelines.q.init()
                cute.arch.mbarrier_init(shared.ready, LOADERS)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if cutlass.const_expr(self.tuning.pdl):
            # Wait before launch_dependents: the next kernel must find all work before this kernel done.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        # Each role builds its scheduler itself: ptxas spills values that live across setmaxnreg.
        if warp < Role.LOAD:
            cute.arch.setmaxregister_increase(self.tuning.multiply_registers)
            self.attend(self.scheduler(lens), pipelines, shared, attn_sink, o, lse, scale)
        else:
            cute.arch.setmaxregister_decrease(self.tuning.load_registers)
            loader = Loader(
                self.mla,
                self.staged,
                self.tuning,
                Pages(pages.iterator.toint(), I64(pages.stride[0]), block_shift),
                I32(1) << block_shift,
                inv_scale,
                indices,
                lens,
                q,
                o,
            )
            loader.load(self.scheduler(lens), pipelines, shared, tma_q)

    @cute.jit
    def prefetch_first(
        self,
        q: cute.Tensor,
        pages: cute.Tensor,
        inv_scale: cute.Tensor,
        indices: cute.Tensor,
        lens: cute.Tensor,
        block_shift: cutlass.Int32,
    ) -> None:
        """With `pdl`, prefetch the first work tile's queries and rows into L2, before the previous kernel is
        complete."""
        if cutlass.const_expr(self.tuning.pdl):
            token, first_head = self.scheduler(lens).work_tile(0)
            entry = wgmma.thread_in_role(Role.LOAD)
            if entry == 0:
                prefetch_queries(token, first_head, self.rows, q)
            prefetch_entry(token, entry, pages, inv_scale, indices, lens, block_shift)

    def scheduler(self, lens: cute.Tensor) -> TileScheduler:
        return TileScheduler.create(lens.shape[0], self.heads, self.rows)

    def allocate(self, smem: Any) -> Shared:
        first, *others = self.plan.smem
        tiles = blackwell.tiles(smem, first)
        found = {buffer.name: smem.allocate(buffer.bytes, buffer.align) for buffer in others}
        at = {name: pointer.toint() for name, pointer in found.items()}
        nowhere = I32(0)
        return Shared(
            tiles,
            tiles.iterator.toint(),
            at["s_p"],
            at["s_rows"],
            at.get("s_rope", nowhere),
            at.get("s_groups", nowhere),
            at["s_entries"],
            at["s_peaks"],
            at["s_tops"],
            at["s_factors"],
            at["s_coefficients"],
            at.get("s_lens", nowhere),
            cute.recast_ptr(found["s_ready"], dtype=cutlass.Int64),
            self.row_bytes,
        )

    @cute.jit
    def attend(
        self,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        queries = shared.queries(self.mla, self.rows, scale)
        for turn in cutlass.range(scheduler.count, unroll=1):
            thread = wgmma.thread_in_role(Role.MULTIPLY)
            warp = cute.arch.make_warp_uniform(thread // 32)
            token, first_head = scheduler.work_tile(turn)
            coord = ThreadCoord(warp // GROUP_WARPS, warp % GROUP_WARPS, thread % 32)
            work = WorkTile(token, first_head, coord, thread)
            logit = self.sink_of(work, attn_sink)
            # For an item that attends to nothing these are an earlier item's values, which nothing reads.
            pipelines.q.consumer_wait(query_state(turn))
            queries.convert(warp)
            cute.arch.fence_proxy("async.shared", space="cta")
            self.mma_barrier()
            pipelines.rows.consumer_wait(window_state(turn))
            if ops.load_shared_word(shared.lens + turn % STAGES * 4) > 0:
                self.multiply(turn, work, scheduler, pipelines, shared, logit, o, lse)
            else:
                self.store_empty(turn, work, scheduler, pipelines, shared, o, lse)
            cute.arch.fence_proxy("async.shared", space="cta")
            pipelines.rows.consumer_release(window_state(turn))

    @cute.jit
    def multiply(
        self,
        turn: cutlass.Int32,
        work: WorkTile,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        logit: Any,
        o: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        window = shared.window(turn % STAGES, self.mla, None)
        scores = self.score(shared, window, work.coord, turn)
        coefficients = self.by_head(shared.coefficients, work.coord)
        pipelines.q.consumer_release(query_state(turn))
        self.softmax(work, shared, window, scores, coefficients)
        self.find_factors(work, shared, logit, lse)
        outputs = self.weigh(shared, window, work.coord)
        self.mma_barrier()
        factors = self.by_head(shared.factors, work.coord)
        self.store_outputs(work, scheduler, shared.stage(turn % STAGES), factors, outputs, o)

    @cute.jit
    def store_empty(
        self,
        turn: cutlass.Int32,
        work: WorkTile,
        scheduler: TileScheduler,
        pipelines: Pipelines,
        shared: Shared,
        o: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        """Store o = 0 and lse = -inf for a token that attends to nothing."""
        pipelines.q.consumer_release(query_state(turn))
        if cutlass.const_expr(self.mla):
            shared.wait_for_rope(turn)
        zero = F32(0.0)
        factors, outputs = [zero] * (self.rows // 4), [[zero] * (self.rows // 2)] * TILES
        self.store_outputs(work, scheduler, shared.stage(turn % STAGES), factors, outputs, o)
        if cutlass.const_expr(lse is not None):
            head = work.first_head + work.thread
            if work.thread < self.rows and head < self.heads:
                lse[work.token, head] = F32(-inf)

    def mma_barrier(self) -> None:
        cute.arch.barrier(barrier_id=Barrier.MULTIPLY, number_of_threads=32 * MULTIPLIERS)

    def by_head(self, at: Any, coord: ThreadCoord) -> list[Any]:
        """A float for each of this thread's heads."""
        found: list[Any] = []
        for n in range(self.rows // 8):
            found += ops.load_shared_floats(at + (8 * n + coord.lane % 4 * 2) * 4)
        return found

    def score(self, shared: Shared, window: Any, coord: ThreadCoord, turn: Any) -> list[Any]:
        """R Q^T of the warpgroup's entries. The words of the next two steps are loaded while the current ones
        are multiplied."""
        b = wgmma.descriptor(shared.q)
        sums: list[Any] | None = None
        words = window.key_words(coord, 0)
        for pair in range(KEY_PAIRS):
            operands = window.key_operands(coord, pair, words)
            wgmma.fence()
            for step, a in enumerate(operands, 2 * pair):
                sums = wgmma.mma_async(sums, a, b + self.columns(step) // wgmma.UNIT, self.rows)
            wgmma.commit()
            if self.mla and pair + 1 == NOPE_PAIRS:
                shared.wait_for_rope(turn)
            if pair + 1 < KEY_PAIRS:
                words = window.key_words(coord, pair + 1)
            wgmma.wait(1)
        wgmma.wait(0)
        return wgmma.results(sums or [])

    def columns(self, step: int) -> int:
        """Byte offset of 16 columns of a right operand in its tiles."""
        block, part = divmod(step, GROUP // STEP)
        return block * (self.rows * 2 * GROUP) + part * 2 * STEP

    def weigh(
        self, shared: Shared, window: Any, coord: ThreadCoord, sums: Sequence[Any] = (None,) * TILES
    ) -> list[list[Any]]:
        """R^T P^T of the warpgroup's features, by tile, added to `sums`; pipelined like `score`."""
        b = wgmma.descriptor(shared.p)
        sums = list(sums)
        words = window.value_words(coord, 0)
        for step in range(VALUE_STEPS):
            operands = window.value_operands(coord, step, words)
            wgmma.fence()
            for tile, a in enumerate(operands):
                sums[tile] = wgmma.mma_async(sums[tile], a, b + self.columns(step) // wgmma.UNIT, self.rows)
            wgmma.commit()
            if step + 1 < VALUE_STEPS:
                words = window.value_words(coord, step + 1)
            wgmma.wait(self.tuning.groups_in_flight)
        wgmma.wait(0)
        return [wgmma.results(tile) for tile in sums]

    def softmax(
        self, work: WorkTile, shared: Shared, window: Any, scores: list[Any], coefficients: list[Any]
    ) -> None:
        """Write weights to s_p, their sums over this warp's entries to s_peaks, and s_tops."""
        own, values = self.find_peaks(work, shared, window, scores, coefficients)
        self.mma_barrier()
        self.compare(work, shared)
        self.mma_barrier()
        self.write_weights(work, shared, own, values)
        self.mma_barrier()

    def find_peaks(
        self, work: WorkTile, shared: Shared, window: Any, scores: list[Any], coefficients: list[Any]
    ) -> tuple[list[Any], list[list[Any]]]:
        """Write this warp's peaks to s_peaks; returns (this thread's two entries in s_entries, their scores
        by head)."""
        coord = work.coord
        first = coord.group * GROUP + coord.warp * STEP + coord.lane // 4
        own = [window.entry(first + 8 * half) for half in range(2)]
        values, found = [], []
        for number, coefficient in enumerate(coefficients):
            raw = [scores[number // 2 * 4 + 2 * half + number % 2] for half in range(2)]
            s, peak = self.peak_of_entries(raw, own, coefficient)
            values.append(s)
            found.append(peak)
        self.publish(work, shared.peaks, combine_lanes(found, coord.lane, combine_peaks))
        return own, values

    def write_weights(self, work: WorkTile, shared: Shared, own: list[Any], values: list[list[Any]]) -> None:
        """Write weights to s_p and their sums to s_peaks."""
        weights, sums = [], []
        for number, s in enumerate(values):
            if number % 2 == 0:
                tops = self.tops_of(shared, number, work.coord)
            weight, total = self.weights_of(s, own, *tops[number % 2])
            weights.append(weight)
            sums.append(total)
        for n in range(0, self.rows // 8, 2):
            self.store_weights_of(shared, work.coord, n, weights[2 * n : 2 * n + 4])
        self.publish(work, shared.peaks, combine_lanes(sums, work.coord.lane, add_tuples))
        cute.arch.fence_proxy("async.shared", space="cta")

    def peak_of_entries(self, raw: list[Any], own: list[Any], coefficient: Any) -> tuple[list[Any], Any]:
        """(the scores of a head and two entries, their peak and largest exponent relative to it)."""
        s = [
            ops.select_value(counts != 0.0, ops.product(x * coefficient, factor), F32(-inf))
            for x, (factor, _, _, counts) in zip(raw, own, strict=True)
        ]
        peak = ops.greater(ops.greatest(s), F32(FINITE))
        u = [x - peak + exponent for x, (_, exponent, _, _) in zip(s, own, strict=True)]
        return s, (peak, ops.greatest(u))

    def tops_of(self, shared: Shared, number: int, coord: ThreadCoord) -> list[Any]:
        """(largest score, exponent) of a head of this thread and of the next one."""
        head = number // 2 * 8 + coord.lane % 4 * 2
        tops = [ops.float_of(x) for x in ops.load_shared(shared.tops + head * 8)]
        return [tops[:2], tops[2:]]

    def weights_of(self, s: list[Any], own: list[Any], top: Any, power: Any) -> tuple[list[Any], Any]:
        """(the weights of a head and two entries, their sum)."""
        t = [x - top for x in s]
        total = (ops.exp2(t[0]) + ops.exp2(t[1]),)
        weights = [
            ops.exp2(x + (exponent - power)) * (mantissa * F32(2.0**W_TOP))
            for x, (_, exponent, mantissa, _) in zip(t, own, strict=True)
        ]
        return weights, total

    def store_weights_of(self, shared: Shared, coord: ThreadCoord, n: int, weights: list[list[Any]]) -> None:
        """Store the weights of 8 heads and the next 8. Heads are rows of s_p, so every 8 x 8 matrix is
        transposed by the store."""
        lane = coord.lane
        row = shared.p + coord.group * (self.rows * 2 * GROUP) + lane % 8 * 128
        chunk = (coord.warp * 2 + (lane >> 3) % 2) ^ (lane % 8)
        words = [
            ops.halves(weights[2 * m][half], weights[2 * m + 1][half]) for m in range(2) for half in range(2)
        ]
        address = row + (n + (lane >> 4)) * 1024 + chunk * 16
        wgmma.store_matrices_transposed(address, *words)

    @cute.jit
    def publish(self, work: WorkTile, at: cutlass.Int32, values: list[tuple[Any, ...]]) -> None:
        """Write this warp's results per head, by the lane that has them after `fold`, to [warps, rows,
        values]."""
        head, writes = self.owned_head(work.coord.lane)
        size = 4 * len(values[0])
        warp = work.coord.group * GROUP_WARPS + work.coord.warp
        words = [word for value in values for word in value]
        if writes:
            ops.store_shared(at + (warp * self.rows + head) * size, *words)

    def owned_head(self, lane: Any) -> tuple[Any, Any]:
        """(the first head that a lane has after `fold`, whether no earlier lane has it too)."""
        number = {64: 2 * (lane >> 2), 32: lane >> 2, 16: lane >> 3}[self.rows]
        head = number // 2 * 8 + lane % 4 * 2 + number % 2
        return head, (lane & 4 == 0 if self.rows == 16 else lane >= 0)

    @cute.jit
    def compare(self, work: WorkTile, shared: Shared) -> None:
        """For every head: the largest score, and an integer exponent that bounds the weights."""
        if work.thread < SHARERS * self.rows:
            head, share = work.thread // SHARERS, work.thread % SHARERS
            found = self.peak_of_warps(shared, head, share)
            power = ops.greater(ops.round_up(found[1]), F32(LEAST_POWER))
            if share == 0:
                ops.store_shared(shared.tops + head * 8, found[0], power)

    def peak_of_warps(self, shared: Shared, head: Any, share: Any) -> tuple[Any, Any]:
        """A head's (largest score, largest exponent relative to it), in all its SHARERS."""
        at = shared.peaks + (share * (MULTIPLIERS // SHARERS) * self.rows + head) * 8
        pairs = [ops.load_shared_floats(at + more * self.rows * 8) for more in range(MULTIPLIERS // SHARERS)]
        found = combine_peaks(*pairs)
        for step in (1, 2):
            found = combine_peaks(found, tuple(cute.arch.shuffle_sync_bfly(x, step) for x in found))
        return found

    def sum_of_warps(self, shared: Shared, head: Any, share: Any) -> Any:
        """A head's sum of weights, in all its SHARERS."""
        at = shared.peaks + (share * (MULTIPLIERS // SHARERS) * self.rows + head) * 4
        parts = [ops.load_shared_float(at + more * self.rows * 4) for more in range(MULTIPLIERS // SHARERS)]
        return ops.summed(ops.sum_in_pairs(parts), SHARERS)

    @cute.jit
    def find_factors(self, work: WorkTile, shared: Shared, logit: Any, lse: cute.Tensor) -> None:
        """Compute the factor of a head's outputs, 0 if nothing is attended to, and lse."""
        if work.thread < SHARERS * self.rows:
            number, share = work.thread // SHARERS, work.thread % SHARERS
            head = work.first_head + number
            total = self.sum_of_warps(shared, number, share)
            top, power = ops.load_shared_floats(shared.tops + number * 8)
            if cutlass.const_expr(lse is not None):
                natural = ops.select_value(total == 0.0, F32(-inf), (top + ops.log2(total)) * F32(log(2)))
                if share == 0 and head < self.heads:
                    lse[work.token, head] = natural
            below = total
            if cutlass.const_expr(logit is not None):
                below = total + ops.exp2(ops.product(logit, F32(LOG2_E)) - top)
            factor = ops.exp2_whole(power - W_TOP) * ops.reciprocal(below)
            if share == 0:
                ops.store_shared(
                    shared.factors + number * 4, ops.select_value(total == 0.0, F32(0.0), factor)
                )

    def sink_of(self, work: WorkTile, attn_sink: cute.Tensor) -> Any:
        """The sink of the head that this thread compares; None without sinks."""
        if attn_sink is None:
            return None
        head = cutlass.min(work.first_head + work.thread // SHARERS, self.heads - 1)
        return ops.float_of(ops.load_index(attn_sink.iterator.toint() + I64(head) * 4))

    def store_outputs(
        self,
        work: WorkTile,
        scheduler: TileScheduler,
        stage: Any,
        factors: list[Any],
        outputs: list[list[Any]],
        o: cute.Tensor,
    ) -> None:
        """Store two adjacent features of a head at a time: to shared memory, or to o for heads that do not
        fit there."""
        coord = work.coord
        for tile, sums in enumerate(outputs):
            feature = (TILES * coord.group + tile) * GROUP + coord.warp * STEP + coord.lane // 4 * 2
            for number, factor in enumerate(factors):
                n, odd = divmod(number, 2)
                head = 8 * n + coord.lane % 4 * 2 + odd
                pair = ops.bfloats(sums[4 * n + odd] * factor, sums[4 * n + 2 + odd] * factor)
                if 8 * n < self.staged:
                    ops.store_shared(stage + head * OUT_BYTES + feature * 2, pair)
                else:
                    self.store_output_word(
                        scheduler.row(o, work.token, work.first_head + head), feature, head, pair, work
                    )

    @cute.jit
    def store_output_word(self, row: Any, feature: Any, head: Any, pair: Any, work: WorkTile) -> None:
        if work.first_head + head < self.heads:
            ops.store_global(row + I64(feature * 2), pair)


def by_block(x: cute.Tensor) -> cute.Tensor:
    """View a tensor (tokens, heads, features) as (heads, features of a block, blocks, tokens)."""
    tokens, heads, features = x.stride
    shape = (x.shape[1], GROUP, BLOCKS, x.shape[0])
    return cute.make_tensor(x.iterator, cute.make_layout(shape, stride=(heads, features, GROUP, tokens)))


def combine_peaks(one: Any, other: Any) -> tuple[Any, Any]:
    """Combine two (largest score, largest exponent relative to it)."""
    peak = ops.greater(one[0], other[0])
    return peak, ops.greater(one[0] - peak + one[1], other[0] - peak + other[1])


def add_tuples(one: Any, other: Any) -> tuple[Any, ...]:
    return (one[0] + other[0],)


def combine_lanes(values: list[tuple[Any, ...]], lane: Any, combine: Any) -> list[tuple[Any, ...]]:
    """Combine values of the 8 lanes that have the same heads. Each lane keeps some results: of 16 two, of 8
    one, of 4 one, which two lanes share."""
    for step in (16, 8, 4):
        values = combine_halves(values, lane, step, combine)
    return values


def combine_halves(
    values: list[tuple[Any, ...]], lane: Any, step: int, combine: Any
) -> list[tuple[Any, ...]]:
    """Combine values with those of the lane `step` away: lanes without bit `step` keep the results of the
    first half of values, the others those of the second half. Both keep the result of a single value."""
    upper, half = (lane & step) != 0, len(values) // 2
    if half:
        pairs = list(zip(values[:half], values[half:], strict=True))
        given = [tuple(ops.select_value(upper, x, y) for x, y in zip(*pair, strict=True)) for pair in pairs]
        values = [tuple(ops.select_value(upper, y, x) for x, y in zip(*pair, strict=True)) for pair in pairs]
    else:
        given = values
    got = [tuple(cute.arch.shuffle_sync_bfly(x, step) for x in value) for value in given]
    return [combine(x, y) for x, y in zip(values, got, strict=True)]
