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
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, inf, log, log2
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.head_rows import TILE, Queries, Weights
from gdnbench_kernels.swa_decode.latent_rows import (
    BIAS,
    CHUNK,
    FEATURE_TILES,
    NO_NUMBER,
    PAIR_BITS,
    DsMlaRows,
    Entries,
    Pages,
    PerTokenRows,
)
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.portable_plan import (
    ENTRIES,
    KEY_TILES,
    PAIR_ENTRIES,
    SHARES,
    THREADS,
    WARPS,
    plan,
)
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

ALL_SHARED = 100
"""Shared-memory carveout in percent of the L1 cache."""
LOG2_E = log2(e)
Q_TOP = 14
"""A head's largest |q| is scaled to [2^14, 2^15)."""
W_TOP = 13
"""Weights are scaled to at most about 2^14."""
LEAST_POWER = -200.0
"""Stands for the largest exponent if all factors are 0."""
FINITE = -3.0e38
"""Replaces a largest score of -inf before it is subtracted."""


@dataclass(frozen=True)
class WorkTile:
    """The work of a CTA: heads `first_head` .. of a token; and this thread's position in it."""

    token: cutlass.Int32
    first_head: cutlass.Int32
    length: cutlass.Int32
    warp: cutlass.Int32
    lane: cutlass.Int32


@dataclass(frozen=True)
class Shared:
    """Addresses of the plan's buffers, except those of the rows."""

    q: cutlass.Int32
    parts: cutlass.Int32
    peaks: cutlass.Int32
    tops: cutlass.Int32
    sums: cutlass.Int32
    factors: cutlass.Int32
    coefficients: cutlass.Int32


class MmaSyncDecode:
    """The kernel for `heads` heads, `rows` of them per CTA, and a cache in `layout`."""

    def __init__(self, heads: int, layout: CacheLayout, rows: int) -> None:
        self.heads = heads
        self.layout = layout
        self.rows = rows
        self.tiles = rows // TILE
        self.groups = -(-heads // rows)
        self.plan = plan(layout, rows)
        self.mine = self.tiles * KEY_TILES * 4 // 2
        """Scores of a thread."""

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
        # Issue all loads that depend on no other load before using any of them.
        index = self.index(token, warp, lane, indices)
        length = ops.load_index(lens.iterator.toint() + I64(token) * 4)
        words = self.read_queries(token, first_head, warp, lane, q)
        work = WorkTile(token, first_head, length, warp, lane)
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

    def row(self, x: cute.Tensor, token: Any, head: Any) -> Any:
        """Address of a head's features in q or o."""
        return x.iterator.toint() + (I64(token) * self.heads + I64(head)) * (2 * HEAD_DIM)

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

    def read_queries(
        self, token: Any, first_head: Any, warp: Any, lane: Any, q: cute.Tensor
    ) -> list[list[Any]]:
        """16 features of each of this warp's heads, as eight pairs of bf16; zeros past the last head."""
        found = []
        for turn in range(self.rows // WARPS):
            head = first_head + self.warp_row(warp, turn)
            there = I32(head < self.heads)
            row = self.row(q, token, head) + I64(lane * CHUNK)
            found.append([*ops.load_global_if(there, row), *ops.load_global_if(there, row + HEAD_DIM)])
        return found

    def warp_row(self, warp: Any, turn: Any) -> Any:
        """A row of Q that this warp converts and whose sums over warps it computes."""
        return warp * (self.rows // WARPS) + turn

    @cute.jit
    def store_queries(
        self,
        work: WorkTile,
        shared: Shared,
        queries: Queries,
        words: list[list[Any]],
        scale: cutlass.Float32,
    ) -> None:
        """Store rows as f16, each times a power of two; the scores' coefficient compensates."""
        for turn in cutlass.range_constexpr(self.rows // WARPS):
            row = self.warp_row(work.warp, turn)
            largest = words[turn][0] & PAIR_BITS
            for word in cutlass.range_constexpr(1, 8):
                largest = ops.greater_halves(largest, words[turn][word] & PAIR_BITS)
            largest = cutlass.max(largest >> 16, largest & 0x7FFF)
            field = cute.arch.warp_redux_sync(largest, "max") >> 7
            power = cutlass.min(Q_TOP + BIAS - field, BIAS - 1)
            factor = ops.power_of_two(power)
            pairs = []
            for word in cutlass.range_constexpr(8):
                low, high = ops.widened(words[turn][word])
                pairs.append(ops.halves(low * factor, high * factor))
            queries.store_row(row, 0, pairs[:4])
            queries.store_row(row, 1, pairs[4:])
            if work.lane == 0:
                coefficient = scale * F32(LOG2_E) * ops.power_of_two(-power)
                # A query that is not finite has no finite score.
                spoilt = ops.select_value(field == 255, ops.float_of(I32(NO_NUMBER)), coefficient)
                ops.store_shared(shared.coefficients + row * 4, spoilt)

    def halves(self) -> tuple[list[int], list[int]]:
        """Which of a thread's products become scores of the first warp of a pair, and which of the second:
        those of the first 16 heads and of the others, or of heads l / 4 and heads l / 4 + 8."""
        if self.tiles == 2:
            return list(range(self.mine)), list(range(self.mine, 2 * self.mine))
        first = [4 * n + odd for n in range(KEY_TILES) for odd in range(2)]
        return first, [place + 2 for place in first]

    @cute.jit
    def exchange(self, work: WorkTile, shared: Shared, parts: cute.Tensor) -> list[Any]:
        """Scores of this warp's heads. The warp writes its sums for the other warp's heads to s_q, and adds
        the sums that the other warp wrote for its own."""
        mine, lane, warp = self.mine, work.lane, work.warp
        first, second = self.halves()
        at = shared.parts + lane * CHUNK
        theirs = at + (warp ^ 1) * (mine * 128)
        if warp % 2 == 0:
            for place in cutlass.range_constexpr(mine // 4):
                given = [parts[i] for i in second[4 * place : 4 * place + 4]]
                ops.store_shared(theirs + place * 512, *given)
        else:
            for place in cutlass.range_constexpr(mine // 4):
                given = [parts[i] for i in first[4 * place : 4 * place + 4]]
                ops.store_shared(theirs + place * 512, *given)
        cute.arch.barrier(barrier_id=1 + warp // 2, number_of_threads=64)
        found = []
        for place in cutlass.range_constexpr(mine // 4):
            got = ops.load_shared(at + warp * (mine * 128) + place * 512)
            for i in cutlass.range_constexpr(4):
                number = 4 * place + i
                own = ops.select_value(warp % 2 == 0, parts[first[number]], parts[second[number]])
                found.append(own + ops.float_of(got[i]))
        return found

    def softmax(self, work: WorkTile, shared: Shared, rows: Any, scores: list[Any], weights: Weights) -> None:
        """Write weights to shared memory, with their sums over this warp's entries and each row's score and
        exponent, which are equal in every warp."""
        lane, share, second = work.lane, work.warp // 2, work.warp % 2
        heads = self.tiles
        places = [share * PAIR_ENTRIES + 8 * n + lane % 4 * 2 for n in range(KEY_TILES)]
        own = [rows.entry(place + odd) for place in places for odd in range(2)]
        numbers = [second * (8 * heads) + 8 * half + lane // 4 for half in range(heads)]
        found, values = [], []
        for half, row in enumerate(numbers):
            coefficient = ops.load_shared_float(shared.coefficients + row * 4)
            raw = [scores[(n * heads + half) * 2 + odd] for n in range(KEY_TILES) for odd in range(2)]
            s = [
                ops.select_value(counts != 0.0, ops.product(x * coefficient, factor), F32(-inf))
                for x, (factor, _, _, counts) in zip(raw, own, strict=True)
            ]
            peak = ops.greater(ops.across(ops.greatest(s)), F32(FINITE))
            u = [x - peak + exponent for x, (_, exponent, _, _) in zip(s, own, strict=True)]
            values.append(s)
            found.append((peak, ops.across(ops.greatest(u))))
        self.publish(work, shared.peaks, share, numbers, found)
        cute.arch.sync_threads()
        sums, tops = [], []
        for row, s in zip(numbers, values, strict=True):
            top, power = self.over_warps(shared, row)
            t = [x - top for x in s]
            p = [ops.exp2(x) for x in t]
            w = [
                ops.exp2(x + (exponent - power)) * (mantissa * F32(2.0**W_TOP))
                for x, (_, exponent, mantissa, _) in zip(t, own, strict=True)
            ]
            for n, place in enumerate(places):
                weights.store_pair(row, place, ops.halves(w[2 * n], w[2 * n + 1]))
            sums.append((ops.summed(ops.sum_in_pairs(p)),))
            tops.append((top, power))
        self.publish(work, shared.sums, share, numbers, sums)
        self.publish_tops(work, shared, share, numbers, tops)
        cute.arch.sync_threads()

    @cute.jit
    def publish(
        self,
        work: WorkTile,
        at: cutlass.Int32,
        share: cutlass.Int32,
        rows: list[Any],
        values: list[tuple[Any, ...]],
    ) -> None:
        """Write this warp's result for each row, by one of the lanes that share the row, to [rows, shares,
        values]."""
        if work.lane % 4 == 0:
            for place in cutlass.range_constexpr(len(rows)):
                size = 4 * len(values[place])
                ops.store_shared(at + (rows[place] * SHARES + share) * size, *values[place])

    @cute.jit
    def publish_tops(
        self,
        work: WorkTile,
        shared: Shared,
        share: cutlass.Int32,
        rows: list[Any],
        tops: list[tuple[Any, ...]],
    ) -> None:
        """Write a row's result that is equal in every warp, by one of the warps."""
        if work.lane % 4 == 0 and share == 0:
            for place in cutlass.range_constexpr(len(rows)):
                ops.store_shared(shared.tops + rows[place] * 8, *tops[place])

    def over_warps(self, shared: Shared, row: Any) -> tuple[Any, Any]:
        """(the largest score of a row, an integer exponent relative to it that bounds the weights)."""
        found = []
        for pair in range(SHARES // 2):
            four = ops.load_shared(shared.peaks + row * (SHARES * 8) + pair * 16)
            found += [tuple(map(ops.float_of, four[:2])), tuple(map(ops.float_of, four[2:]))]
        top = ops.greatest([peak for peak, _ in found])
        exponent = ops.greatest([peak - top + exponent for peak, exponent in found])
        return top, ops.greater(ops.round_up(exponent), F32(LEAST_POWER))

    def shared_row(self, work: WorkTile) -> Any:
        """The row whose sum over warps this lane computes; a row has one lane per share. Lanes past those of
        the warp's rows repeat them."""
        return self.warp_row(work.warp, work.lane // SHARES % (self.rows // WARPS))

    @cute.jit
    def find_factors(self, work: WorkTile, shared: Shared, logit: Any, lse: cute.Tensor) -> None:
        """Compute the factor of each row of P V, 0 if nothing is attended to, and lse."""
        row = self.shared_row(work)
        head = work.first_head + row
        share = work.lane % SHARES
        tells = share == 0 and work.lane < self.rows // WARPS * SHARES
        total = ops.load_shared_float(shared.sums + (row * SHARES + share) * 4)
        total = ops.summed(total, SHARES)
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

    def sink_of(self, work: WorkTile, attn_sink: cute.Tensor) -> Any:
        """The sink of the row whose sums over warps this lane computes; None without sinks."""
        if attn_sink is None:
            return None
        head = cutlass.min(work.first_head + self.shared_row(work), self.heads - 1)
        return ops.float_of(ops.load_index(attn_sink.iterator.toint() + I64(head) * 4))

    @cute.jit
    def store_lse(
        self,
        work: WorkTile,
        head: cutlass.Int32,
        value: cutlass.Float32,
        mine: cutlass.Boolean,
        lse: cute.Tensor,
    ) -> None:
        if mine:
            lse[work.token, head] = value

    @cute.jit
    def store(self, work: WorkTile, acc: cute.Tensor, shared: Shared, o: cute.Tensor) -> None:
        """Each thread stores four adjacent features of each chunk of 16. Tiles come in pairs: for codes the
        even and the odd features, for rope the first and the second of every two pairs."""
        rope = self.layout is CacheLayout.FP8_DS_MLA
        for m in cutlass.range_constexpr(self.tiles):
            for half in cutlass.range_constexpr(2):
                number = m * TILE + 8 * half + work.lane // 4
                head = work.first_head + number
                factor = ops.load_shared_float(shared.factors + number * 4)
                row = self.row(o, work.token, head) + I64(
                    work.warp * (2 * HEAD_DIM // WARPS) + work.lane % 4 * 8
                )
                for pair in cutlass.range_constexpr(FEATURE_TILES // 2):
                    one, other = ((m * FEATURE_TILES + 2 * pair + more) * 4 + 2 * half for more in (0, 1))
                    first, second, third, last = acc[one], acc[other], acc[one + 1], acc[other + 1]
                    if cutlass.const_expr(rope):
                        swap = work.warp == WARPS - 1
                        second, third = (
                            ops.select_value(swap, third, second),
                            ops.select_value(swap, second, third),
                        )
                    low = ops.bfloats(first * factor, second * factor)
                    high = ops.bfloats(third * factor, last * factor)
                    if head < self.heads:
                        ops.store_global(row + pair * 2 * TILE, low, high)
