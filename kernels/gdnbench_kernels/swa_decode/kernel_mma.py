"""Sliding-window decode attention over FP8 pages: FlashMLA's `sparse_decode_fwd`. CuTe DSL, sm_90a, sm_100a.

Portable: products by mma.sync. Reads queries and pages, writes o and lse.

For request t, with j over the entries of its window, latent_rows.py computes from the page the entry's row r,
exact in f16, and its factor f, where value = r f. A power of two 2^-k per head scales q[h] to f16's range:

    s[h, j] = (2^k q[h] . r[j]) (2^-k scale log2 e) f[j]      -inf where j does not count
    m[h]    = max_j s[h, j]
    p[h, j] = exp2(s[h, j] - m[h])                            l[h] = sum_j p[h, j]
    x[h]    = ceil(max_j (s[h, j] - m[h] + e[j]))             f = 2^e times a mantissa, of size 1 to 2
    w[h, j] = f16(2^13 exp2(s[h, j] - m[h] + e[j] - x[h]) mantissa[j])
    o[h]    = (sum_j w[h, j] r[j]) 2^(x[h] - 13) / (l[h] + exp2(sink[h] log2 e - m[h]))       0 where l is 0
    lse[h]  = (m[h] + log2 l[h]) ln 2

So operands use f16's range whatever the factors are. CTA b has `rows` heads of token b // ceil(H / rows);
heads above H are zeros and not stored. CTAs of a token are neighbours, so all but the first read its rows
from L2. A CTA of a token of length 0 exits at once. The products are `mma.sync` m16n8k16, f16 with f32 sums;
their right operands are converted in registers from the codes in shared memory:

    product    M     N   K    left  right                   in warp w
    1. Q R^T   rows  32  256  s_q   s_rows, `ldmatrix`      entries 32 (w / 2) .. + 31, half w % 2 of features
    2. W R     rows  64  128  s_p   s_rows, `.trans`        features 64 w .. + 63

The two warps of a pair exchange sums: each adds both halves for half of the heads and computes their weights.
Sums over a window are over 32 entries in a warp (8 per thread, then 4 lanes), then over the four pairs.

    tensor       shape            dtype     rows
    q, o         T, H, 512        bfloat16
    pages        blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale    slots            float32   or bfloat16; with per_token_scale alone
    indices      T, W             int32     any distance apart; W <= 128
    lens         T                int32
    attn_sink    H                float32   or none
    lse          T, H             float32   or none

With fp8_ds_mla and 32 heads per CTA:

    SMEM            shape       dtype    layout
    s_rows          128 x 592   uint8    16 of a row are padding
    s_q             32 x 512    float16  16-byte chunk ^= row % 8 ^ chunk / 8 % 2; sums, s_p over it
    s_entries       128 x 4     float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         32 x 4 x 2  float32  a warp's largest score, exponent
    s_sums          32 x 4      float32  a warp's sum of weights
    s_tops          32 x 2      float32  the largest score, exponent
    s_factors       32          float32  of a row of outputs
    s_coefficients  32          float32  of a head's scores
    s_arrived       8 x 2       int32    mbarriers of the warps
    s_groups        7 x 128     float16  2^(scale - factor)

    role  warps  does
    ALL   0..7   32 entries a pair in product 1, 64 features in product 2

    sync               who                 orders
    s_arrived          each pair of warps  its entries' codes there before it multiplies them
    barrier, first     all                 s_q, s_coefficients, s_entries written before products 1
    barrier, second    all                 s_q read before sums of products 1 are written over it
    barrier of a pair  each pair of warps  these sums written before they are read
    barrier, third     all                 s_peaks written, these sums read before s_p and s_sums are written
    barrier, fourth    all                 s_p, s_sums, s_tops written, all rows there before product 2
    barrier, fifth     all                 s_factors written before outputs are

256 threads, 114496 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

With per_token_scale and 16 heads per CTA:

    SMEM            shape       dtype    layout
    s_rows          128 x 528   uint8    16 of a row are padding
    s_q             16 x 512    float16  16-byte chunk ^= row % 8 ^ chunk / 8 % 2; sums, s_p over it
    s_entries       128 x 4     float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         16 x 4 x 2  float32  a warp's largest score, exponent
    s_sums          16 x 4      float32  a warp's sum of weights
    s_tops          16 x 2      float32  the largest score, exponent
    s_factors       16          float32  of a row of outputs
    s_coefficients  16          float32  of a head's scores
    s_arrived       8 x 2       int32    mbarriers of the warps

    role  warps  does
    ALL   0..7   32 entries a pair in product 1, 64 features in product 2

    sync               who                 orders
    s_arrived          each pair of warps  its entries' codes there before it multiplies them
    barrier, first     all                 s_q, s_coefficients, s_entries written before products 1
    barrier, second    all                 s_q read before sums of products 1 are written over it
    barrier of a pair  each pair of warps  these sums written before they are read
    barrier, third     all                 s_peaks written, these sums read before s_p and s_sums are written
    barrier, fourth    all                 s_p, s_sums, s_tops written, all rows there before product 2
    barrier, fifth     all                 s_factors written before outputs are

256 threads, 87104 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

An entry that does not count (past the length, or -1) is never dereferenced: its row is zeros, and its score
is replaced, not multiplied. NaN in the codes, scale or rope of an entry that counts makes all outputs of its
token NaN, and no others; a query that is not finite affects only its head. A row's bits depend only on that
row, not on T, `rows`, the architecture or the order of CTAs.

Limits: 1 <= H <= 128; T ceil(H / rows) < 2^31; pages aligned to 16 bytes. Values below 2^-11 of the largest
value of their row (fp8_ds_mla) or of their head's query may lose bits, and those below 2^-24 may become 0; if
rope is as large as the codes these limits are 2^-27 and 2^-40.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from math import inf, log
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.early_prefetch import prefetch_entry, prefetch_queries
from gdnbench_kernels.swa_decode.head_rows import Queries, Weights
from gdnbench_kernels.swa_decode.latent_rows import (
    CHUNK,
    FEATURE_TILES,
    DsMlaRows,
    Entries,
    Pages,
    PerTokenRows,
)
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.mma_tile import (
    ALL_SHARED,
    LEAST_POWER,
    LOG2_E,
    W_TOP,
    MmaTile,
    Shared,
    WorkTile,
)
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES, SHARES, THREADS, WARPS, plan
from gdnbench_kernels.swa_decode.sizes import MAX_WINDOW
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32


class MmaSyncDecode(MmaTile):
    """The kernel for `heads` heads, `rows` of them per CTA, and a cache in `layout`. `pdl`: programmatic
    dependent launch: the kernel may start before the previous one is complete, and waits for its end before
    it uses what it reads."""

    def __init__(self, heads: int, layout: CacheLayout, rows: int, pdl: bool) -> None:
        super().__init__(heads, rows, rope=layout is CacheLayout.FP8_DS_MLA)
        self.layout = layout
        self.plan = plan(layout, rows)
        self.pdl = pdl

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
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(q, pages, inv_scale, indices, lens, attn_sink, o, lse, scale, block_shift).launch(
            grid=(cute.size(q, mode=[0]) * self.groups, 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.plan.ctas_per_sm,
            preferred_smem_carveout=ALL_SHARED,
            use_pdl=self.pdl,
        )

    @cute.kernel
    def kernel(
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
    ) -> None:
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block = cute.arch.block_idx()[0]
        token = block // self.groups
        first_head, lane = block % self.groups * self.rows, cute.arch.lane_idx()
        work = WorkTile(token, first_head, warp, lane)
        smem = cutlass.memory.SmemAllocator()
        where = {buffer.name: smem.allocate(buffer.bytes, buffer.align) for buffer in self.plan.smem}
        at = {name: pointer.toint() for name, pointer in where.items()}
        shared = Shared(
            at["s_q"],
            at["s_q"] + self.rows * (2 * MAX_WINDOW),
            at["s_peaks"],
            at["s_tops"],
            at["s_sums"],
            at["s_factors"],
            at["s_coefficients"],
        )
        barriers = cute.recast_ptr(where["s_arrived"], dtype=cutlass.Int64)
        arrived = barriers + warp
        if lane == 0:
            cute.arch.mbarrier_init(arrived, 1)
        cute.arch.mbarrier_init_fence()
        rows: Any
        if cutlass.const_expr(self.layout is CacheLayout.PER_TOKEN_SCALE):
            rows = PerTokenRows(at["s_rows"], at["s_entries"], inv_scale)
        else:
            rows = DsMlaRows(at["s_rows"], at["s_entries"], at["s_groups"], I32(1) << block_shift)
        cache = Pages(pages.iterator.toint(), I64(pages.stride[0]), block_shift)
        if cutlass.const_expr(self.pdl):
            if block < self.plan.ctas_per_sm * ops.multiprocessors():
                if lane == 0:
                    each = self.rows // WARPS
                    prefetch_queries(token, first_head + self.warp_row(warp, 0), each, q)
                if lane < ENTRIES:
                    entry = warp * ENTRIES + lane
                    prefetch_entry(token, entry, pages, inv_scale, indices, lens, block_shift)
            # Wait before launch_dependents: the next kernel must find all work before this kernel done.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        # Issue all loads that depend on no other load before using any of them.
        index = self.index(token, warp, lane, indices)
        length = ops.load_index(lens.iterator.toint() + I64(token) * 4)
        words = self.read_queries(token, first_head, warp, lane, q)
        if length <= 0:
            self.store_empty(work, o, lse)
        if length > 0:
            counts = warp * ENTRIES + lane % ENTRIES < length
            entries = Entries(
                ops.select_value(counts, index, I32(PADDING)), warp, lane, arrived, barriers + (warp ^ 1)
            )
            self.attend(work, shared, rows, cache, entries, words, attn_sink, o, lse, scale)

    @cute.jit
    def store_empty(self, work: WorkTile, o: cute.Tensor, lse: cute.Tensor) -> None:
        """Store o = 0 and lse = -inf for a token that attends to nothing."""
        zero = I32(0)
        for turn in cutlass.range_constexpr(self.rows // WARPS):
            head = work.first_head + turn * WARPS + work.warp
            if head < self.heads:
                row = self.row(o, work.token, head) + I64(work.lane * 2 * CHUNK)
                ops.store_global(row, zero, zero, zero, zero)
                ops.store_global(row + CHUNK, zero, zero, zero, zero)
                if cutlass.const_expr(lse is not None):
                    self.store_lse(work, head, F32(-inf), work.lane == 0, lse)

    @cute.jit
    def attend(
        self,
        work: WorkTile,
        shared: Shared,
        rows: Any,
        cache: Pages,
        entries: Entries,
        words: list[list[Any]],
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        cute.arch.sync_warp()
        loaded = rows.gather(entries, cache)
        queries = Queries(shared.q, work.lane, self.tiles)
        self.store_queries(work, shared, queries, words, scale)
        rows.describe(entries, cache, loaded)
        logit = self.sink_of(work, attn_sink)
        cute.arch.sync_threads()
        cute.arch.mbarrier_wait(entries.arrived, 0)
        cute.arch.mbarrier_wait(entries.beside, 0)
        parts = cute.make_rmem_tensor((2 * self.mine,), F32)
        parts.fill(0.0)
        rows.score(parts, queries, work.warp // 2, work.warp % 2, work.lane)
        cute.arch.sync_threads()
        scores = self.exchange(work, shared, parts)
        weights = Weights(shared.q, work.lane, self.tiles)
        self.softmax(work, shared, rows, scores, weights)
        self.find_factors(work, shared, logit, lse)
        acc = cute.make_rmem_tensor((self.tiles * FEATURE_TILES * 4,), F32)
        acc.fill(0.0)
        rows.weigh(acc, weights, work.warp, work.lane)
        cute.arch.sync_threads()
        self.store(work, acc, shared, o)

    @cute.jit
    def index(
        self, token: cutlass.Int32, warp: cutlass.Int32, lane: cutlass.Int32, indices: cute.Tensor
    ) -> cutlass.Int32:
        """This lane's entry among the warp's entries; it may be stale."""
        found = I32(PADDING)
        entry = warp * ENTRIES + lane % ENTRIES
        if entry < cute.size(indices, mode=[1]):
            row = indices.iterator.toint() + I64(token) * I64(indices.stride[0]) * 4
            found = ops.load_index(row + I64(entry) * 4)
        return found

    def softmax(self, work: WorkTile, shared: Shared, rows: Any, scores: list[Any], weights: Weights) -> None:
        """Write weights to shared memory, with their sums over this warp's entries and each row's score and
        exponent, which are equal in every warp."""
        share, places = work.warp // 2, self.places(work)
        own = [rows.entry(place + odd) for place in places for odd in range(2)]
        numbers = self.numbers(work)
        found, values = [], []
        for half, row in enumerate(numbers):
            values.append(self.row_scores(shared, row, half, scores, own))
            found.append(self.row_peak(values[half], own))
        self.publish(work, shared.peaks, share, numbers, found)
        cute.arch.sync_threads()
        sums, tops = [], []
        for row, s in zip(numbers, values, strict=True):
            top, power = self.over_warps(shared, row)
            p = self.store_weights(weights, row, places, [x - top for x in s], own, power)
            sums.append((ops.summed(ops.sum_in_pairs(p)),))
            tops.append((top, power))
        self.publish(work, shared.sums, share, numbers, sums)
        self.publish_tops(work, shared, share, numbers, tops)
        cute.arch.sync_threads()

    def over_warps(self, shared: Shared, row: Any) -> tuple[Any, Any]:
        """(the largest score of a row, an integer exponent relative to it that bounds the weights)."""
        found = self.row_peaks(shared, row)
        top = ops.greatest([peak for peak, _ in found])
        exponent = ops.greatest([peak - top + exponent for peak, exponent in found])
        return top, ops.greater(ops.round_up(exponent), F32(LEAST_POWER))

    @cute.jit
    def find_factors(self, work: WorkTile, shared: Shared, logit: Any, lse: cute.Tensor) -> None:
        """Compute the factor of each row of P V, 0 if nothing is attended to, and lse."""
        row = self.shared_row(work)
        head = work.first_head + row
        share = work.lane % SHARES
        tells = share == 0 and work.lane < self.rows // WARPS * SHARES
        total = self.row_total(work, shared, row)
        top, power = ops.load_shared_floats(shared.tops + row * 8)
        if cutlass.const_expr(lse is not None):
            natural = ops.select_value(total == 0.0, F32(-inf), (top + ops.log2(total)) * F32(log(2)))
            self.store_lse(work, head, natural, tells and head < self.heads, lse)
        below = total
        if cutlass.const_expr(logit is not None):
            below = total + ops.exp2(ops.product(logit, F32(LOG2_E)) - top)
        factor = ops.exp2_whole(power - W_TOP) * ops.reciprocal(below)
        if tells:
            ops.store_shared(shared.factors + row * 4, ops.select_value(total == 0.0, F32(0.0), factor))
