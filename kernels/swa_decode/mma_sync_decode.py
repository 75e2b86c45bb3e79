"""All of a swa_decode call in one kernel: queries and pages in, o and lse out. CuTe DSL, sm_90a and sm_100a.

Of request t, with j over the entries of its window, r the entry's row and f its factor as latent_rows.py
makes them from the page (value = r f, r exact in f16), a power of two 2^-k of the head making q[h] fill f16:

    s[h, j] = (2^k q[h] . r[j]) (2^-k scale log2 e) f[j]      -inf where j does not count
    m[h]    = max_j s[h, j]
    p[h, j] = exp2(s[h, j] - m[h])                            l[h] = sum_j p[h, j]
    x[h]    = ceil(max_j (s[h, j] - m[h] + e[j]))             f = 2^e times a mantissa, of size 1 to 2
    w[h, j] = f16(2^13 exp2(s[h, j] - m[h] + e[j] - x[h]) mantissa[j])
    o[h]    = (sum_j w[h, j] r[j]) 2^(x[h] - 13) / (l[h] + exp2(sink[h] log2 e - m[h]))       0 where l is 0
    lse[h]  = (m[h] + log2 l[h]) ln 2

so that what is multiplied fills f16 whatever the factors are. CTA b has `rows` heads, those above H zeros
that are not stored, of token b // ceil(H / rows): CTAs of a token are neighbours, and its rows come from L2
for all but the first. A token of length 0 is left at once. The products are `mma.sync` m16n8k16, f16 with f32
sums, their right operands made in registers from the codes in shared memory:

    product    M     N   K    left  right                   in warp w
    1. Q R^T   rows  16  512  s_q   s_rows, `ldmatrix`      entries 16 w .. + 15
    2. W R     rows  64  128  s_p   s_rows, `.trans`        features 64 w .. + 63

Sums over a window go over 16 entries in a warp (4 of a thread, then 4 lanes), then over the warps in order.

    tensor       shape            dtype     rows
    q, o         T, H, 512        bfloat16
    pages        blocks, bytes    uint8     a multiple of 16 bytes apart
    inv_scale    slots            float32   or bfloat16; with per_token_scale alone
    indices      T, W             int32     any distance apart; W <= 128
    lens         T                int32
    attn_sink    H                float32   or none
    lse          T, H             float32   or none

With fp8_ds_mla and 32 heads a CTA:

    SMEM            shape       dtype    layout
    s_rows          128 x 576   uint8    16-byte chunk ^= entry / 2 % 4
    s_q             32 x 512    float16  16-byte chunk ^= row % 8; s_p over it
    s_entries       128 x 4     float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         8 x 32 x 2  float32  a warp's largest score, exponent
    s_sums          8 x 32      float32  a warp's sum of weights
    s_coefficients  32          float32  of a head's scores
    s_groups        7 x 128     float16  2^(scale - factor)

    role  warps  does
    ALL   0..7   16 entries in products 1, 64 features in product 2

    sync                            who        orders
    cp.async.wait_group, warp sync  each warp  its entries' rows there before it multiplies them
    barrier, first                  all        s_q, s_coefficients written before products 1
    barrier, second                 all        s_peaks written, s_q read before s_p is written over it
    barrier, third                  all        s_p, s_sums written, all rows there before product 2

256 threads, 113536 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

With per_token_scale and 16 heads a CTA:

    SMEM            shape       dtype    layout
    s_rows          128 x 512   uint8    16-byte chunk ^= entry % 8
    s_q             16 x 512    float16  16-byte chunk ^= row % 8; s_p over it
    s_entries       128 x 4     float32  factor, its exponent, mantissa, 1 if it counts
    s_peaks         8 x 16 x 2  float32  a warp's largest score, exponent
    s_sums          8 x 16      float32  a warp's sum of weights
    s_coefficients  16          float32  of a head's scores

    role  warps  does
    ALL   0..7   16 entries in products 1, 64 features in product 2

    sync                            who        orders
    cp.async.wait_group, warp sync  each warp  its entries' rows there before it multiplies them
    barrier, first                  all        s_q, s_coefficients written before products 1
    barrier, second                 all        s_peaks written, s_q read before s_p is written over it
    barrier, third                  all        s_p, s_sums written, all rows there before product 2

256 threads, 85568 bytes of SMEM, 0 columns of TMEM, 2 CTAs an SM

An entry that does not count is never followed: its row is zeros, and its score is replaced, not multiplied.
NaN of an entry that counts, in its codes, scale or rope, makes all of its token's outputs NaN and no other's;
a query that is not finite makes its own head's. A row's bits depend on that row alone: not on T, on `rows`,
on the architecture or on who runs first.

Limits: 1 <= H <= 128; T ceil(H / rows) < 2^31; pages aligned to 16 bytes. What is less than 2^-11
of the largest value of its row (fp8_ds_mla) or of its head's query may lose bits, and less than 2^-24 become
0; where rope is as large as the codes these are 2^-27 and 2^-40.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, inf, log, log2
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.swa_decode.latent_rows import (
    BIAS,
    CHUNK,
    FEATURE_TILES,
    NO_NUMBER,
    VALUE_BITS,
    DsMlaRows,
    Entries,
    Pages,
    PerTokenRows,
)
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.portable_plan import ENTRIES, THREADS, WARPS, plan
from gdnbench_kernels.swa_decode.sizes import HEAD_DIM, MAX_WINDOW
from gdnbench_kernels.swa_decode.window import PADDING

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

ALL_SHARED = 100
"""Percent of the L1 cache that become shared memory."""
LOG2_E = log2(e)
TILE = 16
"""Heads of a product."""
Q_TOP = 14
"""A head's largest |q| is scaled to [2^14, 2^15)."""
W_TOP = 13
"""Weights are scaled to at most about 2^14."""
LEAST_POWER = -200.0
"""Where all factors are 0 their largest exponent is none."""
FINITE = -3.0e38
"""Stands in for a largest score of -inf, to be subtracted from one."""


@dataclass(frozen=True)
class Queries:
    """Q in shared memory, f16, features in the order of keys."""

    s_q: cutlass.Int32
    lane: cutlass.Int32
    tiles: int

    def put(self, row: Any, words: list[Any]) -> None:
        """This lane's 16 features of a row, eight pairs."""
        for half in range(2):
            chunk = (2 * self.lane + half) ^ (row % 8)
            address = self.s_q + row * (2 * HEAD_DIM) + chunk * CHUNK
            ops.store_shared(address, *words[half::2])

    def multiply(self, acc: cute.Tensor, step: Any, low: ops.Pair, high: ops.Pair) -> None:
        """acc[m][0], acc[m][1] += Q K^T over 16 features, of 8 entries each."""
        lane = self.lane
        for m in range(self.tiles):
            chunk = (2 * step + (lane >> 4)) ^ (lane & 7)
            row = m * TILE + (lane & 15)
            a = ops.ldmatrix(self.s_q + row * (2 * HEAD_DIM) + chunk * CHUNK)
            for n, b in enumerate((low, high)):
                ops.multiply(acc, (2 * m + n) * 4, a, b)


@dataclass(frozen=True)
class Weights:
    """P in shared memory, f16 [rows, 128]."""

    s_p: cutlass.Int32
    lane: cutlass.Int32
    tiles: int

    def put(self, row: Any, entry: Any, pair: Any) -> None:
        """Of `entry`, which is even, and the next."""
        chunk = (entry // 8) ^ (row % 8)
        ops.store_shared(self.s_p + row * (2 * MAX_WINDOW) + chunk * CHUNK + entry % 8 * 2, pair)

    def fragments(self, step: Any) -> list[ops.Quad]:
        """Of 16 entries, for every 16 rows."""
        lane = self.lane
        chunk = (2 * step + (lane >> 4)) ^ (lane & 7)
        at = self.s_p + (lane & 15) * (2 * MAX_WINDOW) + chunk * CHUNK
        return [ops.ldmatrix(at + m * TILE * (2 * MAX_WINDOW)) for m in range(self.tiles)]


@dataclass(frozen=True)
class Item:
    """What a CTA does: heads `first_head` .. of a token; and where this thread is in it."""

    token: cutlass.Int32
    first_head: cutlass.Int32
    length: cutlass.Int32
    warp: cutlass.Int32
    lane: cutlass.Int32


@dataclass(frozen=True)
class Shared:
    """Addresses of the plan's buffers, but for those of the rows."""

    q: cutlass.Int32
    peaks: cutlass.Int32
    sums: cutlass.Int32
    coefficients: cutlass.Int32


class MmaSyncDecode:
    """The kernel for `heads` heads, `rows` of them a CTA, and a cache in `layout`."""

    def __init__(self, heads: int, layout: CacheLayout, rows: int) -> None:
        self.heads = heads
        self.layout = layout
        self.rows = rows
        self.tiles = rows // TILE
        self.groups = -(-heads // rows)
        self.plan = plan(layout, rows)

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
        item = Item(token, block % self.groups * self.rows, lens[token], warp, cute.arch.lane_idx())
        smem = cutlass.memory.SmemAllocator()
        at = {buffer.name: smem.allocate(buffer.bytes, buffer.align).toint() for buffer in self.plan.smem}
        shared = Shared(at["s_q"], at["s_peaks"], at["s_sums"], at["s_coefficients"])
        rows: Any
        if cutlass.const_expr(self.layout is CacheLayout.PER_TOKEN_SCALE):
            rows = PerTokenRows(at["s_rows"], at["s_entries"], inv_scale)
        else:
            rows = DsMlaRows(at["s_rows"], at["s_entries"], at["s_groups"], I32(1) << block_shift)
        cache = Pages(pages.iterator.toint(), I64(pages.stride[0]), block_shift)
        if item.length <= 0:
            self.leave(item, o, lse)
        if item.length > 0:
            self.attend(item, shared, rows, cache, q, indices, attn_sink, o, lse, scale)

    @cute.jit
    def leave(self, item: Item, o: cute.Tensor, lse: cute.Tensor) -> None:
        """Of a token that attends to nothing: zeros, and -inf."""
        zero = I32(0)
        for turn in cutlass.range_constexpr(self.rows // WARPS):
            head = item.first_head + turn * WARPS + item.warp
            if head < self.heads:
                row = self.row(o, item.token, head) + I64(item.lane * 2 * CHUNK)
                ops.store_global(row, zero, zero, zero, zero)
                ops.store_global(row + CHUNK, zero, zero, zero, zero)
                if cutlass.const_expr(lse is not None):
                    self.put_lse(item, head, F32(-inf), item.lane == 0, lse)

    def row(self, x: cute.Tensor, token: Any, head: Any) -> Any:
        """Where a head's features lie, in q or o."""
        return x.iterator.toint() + (I64(token) * self.heads + I64(head)) * (2 * HEAD_DIM)

    @cute.jit
    def attend(
        self,
        item: Item,
        shared: Shared,
        rows: Any,
        cache: Pages,
        q: cute.Tensor,
        indices: cute.Tensor,
        attn_sink: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
    ) -> None:
        entries = Entries(self.slots(item, indices), item.warp, item.lane)
        words = self.read_queries(item, q)
        loaded = rows.gather(entries, cache)
        queries = Queries(shared.q, item.lane, self.tiles)
        self.put_queries(item, shared, queries, words, scale)
        rows.describe(entries, cache, loaded)
        cute.arch.sync_threads()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_warp()
        scores = cute.make_rmem_tensor((self.tiles * 2 * 4,), F32)
        scores.fill(0.0)
        rows.score(scores, queries, item.warp, item.lane)
        weights = Weights(shared.q, item.lane, self.tiles)
        factors = self.soften(item, shared, rows, scores, weights, attn_sink, lse)
        acc = cute.make_rmem_tensor((self.tiles * FEATURE_TILES * 4,), F32)
        acc.fill(0.0)
        rows.weigh(acc, weights, item.warp, item.lane)
        self.store(item, acc, factors, o)

    @cute.jit
    def slots(self, item: Item, indices: cute.Tensor) -> cutlass.Int32:
        """This lane's entry of the warp's, padding where it does not count."""
        slot = I32(PADDING)
        entry = item.warp * ENTRIES + item.lane % ENTRIES
        if entry < item.length:
            slot = indices[item.token, entry]
        return slot

    def read_queries(self, item: Item, q: cute.Tensor) -> list[list[Any]]:
        """16 features of each of this warp's heads, eight pairs of bf16; zeros past the last head."""
        found = []
        for turn in range(self.rows // WARPS):
            head = item.first_head + self.warp_row(item, turn)
            there = I32(head < self.heads)
            row = self.row(q, item.token, head) + I64(item.lane * 2 * CHUNK)
            found.append([*ops.load_global_if(there, row), *ops.load_global_if(there, row + CHUNK)])
        return found

    def warp_row(self, item: Item, turn: int) -> Any:
        return item.warp * (self.rows // WARPS) + turn

    @cute.jit
    def put_queries(
        self,
        item: Item,
        shared: Shared,
        queries: Queries,
        words: list[list[Any]],
        scale: cutlass.Float32,
    ) -> None:
        """Rows as f16, each times a power of two, which the scores' coefficient takes back."""
        for turn in cutlass.range_constexpr(self.rows // WARPS):
            row = self.warp_row(item, turn)
            largest = I32(0)
            for word in cutlass.range_constexpr(8):
                largest = cutlass.max(largest, words[turn][word] & VALUE_BITS)
                largest = cutlass.max(largest, (words[turn][word] << 16) & VALUE_BITS)
            field = cute.arch.warp_redux_sync(largest, "max") >> 23
            power = cutlass.min(Q_TOP + BIAS - field, BIAS - 1)
            factor = ops.power_of_two(power)
            pairs = []
            for word in cutlass.range_constexpr(8):
                low, high = ops.widened(words[turn][word])
                pairs.append(ops.halves(low * factor, high * factor))
            queries.put(row, pairs)
            if item.lane == 0:
                coefficient = scale * F32(LOG2_E) * ops.power_of_two(-power)
                # A query that is not finite has no score that is.
                spoilt = ops.pick(field == 255, ops.float_of(I32(NO_NUMBER)), coefficient)
                ops.store_shared(shared.coefficients + row * 4, spoilt)

    def soften(
        self,
        item: Item,
        shared: Shared,
        rows: Any,
        scores: cute.Tensor,
        weights: Weights,
        attn_sink: cute.Tensor,
        lse: cute.Tensor,
    ) -> list[Any]:
        """Weights into shared memory; what this thread's rows of O are multiplied by; lse."""
        lane, warp = item.lane, item.warp
        column = lane % 4 * 2
        own = [rows.entry(warp * ENTRIES + 8 * n + column + odd) for n in range(2) for odd in range(2)]
        parts = [(m, half) for m in range(self.tiles) for half in range(2)]
        numbers = [m * TILE + 8 * half + lane // 4 for m, half in parts]
        peaks, exponents, values = [], [], []
        for (m, half), row in zip(parts, numbers, strict=True):
            coefficient = ops.load_shared_float(shared.coefficients + row * 4)
            raw = [scores[(2 * m + n) * 4 + 2 * half + odd] for n in range(2) for odd in range(2)]
            s = [
                ops.pick(counts != 0.0, ops.product(x * coefficient, factor), F32(-inf))
                for x, (factor, _, _, counts) in zip(raw, own, strict=True)
            ]
            peak = ops.greater(across(greatest(s)), F32(FINITE))
            u = [x - peak + exponent for x, (_, exponent, _, _) in zip(s, own, strict=True)]
            values.append(s)
            peaks.append(peak)
            exponents.append(across(greatest(u)))
        self.tell(item, shared.peaks, numbers, list(zip(peaks, exponents, strict=True)))
        cute.arch.sync_threads()
        sums, tops, powers = [], [], []
        for row, s in zip(numbers, values, strict=True):
            top, power = self.over_warps(shared, row)
            p = [ops.exp2(x - top) for x in s]
            w = [
                ops.exp2(x - top + (exponent - power)) * (mantissa * F32(2.0**W_TOP))
                for x, (_, exponent, mantissa, _) in zip(s, own, strict=True)
            ]
            for n in range(2):
                weights.put(row, warp * ENTRIES + 8 * n + column, ops.halves(w[2 * n], w[2 * n + 1]))
            sums.append(summed(p[0] + p[1] + (p[2] + p[3])))
            tops.append(top)
            powers.append(power)
        self.tell(item, shared.sums, numbers, [(total,) for total in sums])
        cute.arch.sync_threads()
        return [
            self.factor(item, shared, row, tops[place], powers[place], attn_sink, lse)
            for place, row in enumerate(numbers)
        ]

    @cute.jit
    def tell(self, item: Item, at: cutlass.Int32, rows: list[Any], values: list[tuple[Any, ...]]) -> None:
        """What this warp found of each row, by one of the lanes that share it, into [warps, rows, values]."""
        if item.lane % 4 == 0:
            for place in cutlass.range_constexpr(len(rows)):
                size = 4 * len(values[place])
                ops.store_shared(at + (item.warp * self.rows + rows[place]) * size, *values[place])

    def over_warps(self, shared: Shared, row: Any) -> tuple[Any, Any]:
        """(the largest score of a row, a whole exponent that no weight is much above, relative to it)."""
        found = [ops.load_shared_floats(shared.peaks + (w * self.rows + row) * 8) for w in range(WARPS)]
        top = greatest([peak for peak, _ in found])
        exponent = greatest([peak - top + exponent for peak, exponent in found])
        return top, ops.greater(ops.round_up(exponent), F32(LEAST_POWER))

    @cute.jit
    def factor(
        self,
        item: Item,
        shared: Shared,
        row: cutlass.Int32,
        top: cutlass.Float32,
        power: cutlass.Float32,
        attn_sink: cute.Tensor,
        lse: cute.Tensor,
    ) -> cutlass.Float32:
        """What a row of P V is multiplied by, 0 where nothing is attended to."""
        head = item.first_head + row
        total = ops.load_shared_float(shared.sums + row * 4)
        for w in cutlass.range_constexpr(1, WARPS):
            total = total + ops.load_shared_float(shared.sums + (w * self.rows + row) * 4)
        if cutlass.const_expr(lse is not None):
            found = ops.pick(total == 0.0, F32(-inf), (top + ops.log2(total)) * F32(log(2)))
            mine = item.warp == 0 and item.lane % 4 == 0 and head < self.heads
            self.put_lse(item, head, found, mine, lse)
        below = total
        if cutlass.const_expr(attn_sink is not None):
            sink = attn_sink[cutlass.min(head, self.heads - 1)]
            below = total + ops.exp2(ops.product(sink, F32(LOG2_E)) - top)
        factor = ops.exp2_whole(power - W_TOP) * ops.reciprocal(below)
        return ops.pick(total == 0.0, F32(0.0), factor)

    @cute.jit
    def put_lse(
        self,
        item: Item,
        head: cutlass.Int32,
        value: cutlass.Float32,
        mine: cutlass.Boolean,
        lse: cute.Tensor,
    ) -> None:
        if mine:
            lse[item.token, head] = value

    @cute.jit
    def store(self, item: Item, acc: cute.Tensor, factors: list[Any], o: cute.Tensor) -> None:
        """Four adjacent features a thread of each chunk of 16: tiles come in twos, of codes the even and the
        odd features, of rope the first and the second of every two pairs."""
        rope = self.layout is CacheLayout.FP8_DS_MLA
        for m in cutlass.range_constexpr(self.tiles):
            for half in cutlass.range_constexpr(2):
                head = item.first_head + m * TILE + 8 * half + item.lane // 4
                factor = factors[2 * m + half]
                row = self.row(o, item.token, head) + I64(
                    item.warp * (2 * HEAD_DIM // WARPS) + item.lane % 4 * 8
                )
                for pair in cutlass.range_constexpr(FEATURE_TILES // 2):
                    one, other = ((m * FEATURE_TILES + 2 * pair + more) * 4 + 2 * half for more in (0, 1))
                    first, second, third, last = acc[one], acc[other], acc[one + 1], acc[other + 1]
                    if cutlass.const_expr(rope):
                        swap = item.warp == WARPS - 1
                        second, third = (
                            ops.pick(swap, third, second),
                            ops.pick(swap, second, third),
                        )
                    low = ops.bfloats(first * factor, second * factor)
                    high = ops.bfloats(third * factor, last * factor)
                    if head < self.heads:
                        ops.store_global(row + pair * 2 * TILE, low, high)


def greatest(values: list[Any]) -> Any:
    """Of floats; of numbers if there are any."""
    found = values[0]
    for value in values[1:]:
        found = ops.greater(found, value)
    return found


def across(value: Any) -> Any:
    """The greatest of the four lanes that share a row."""
    for step in (1, 2):
        value = ops.greater(value, cute.arch.shuffle_sync_bfly(value, step))
    return value


def summed(value: Any) -> Any:
    """The sum over the four lanes that share a row."""
    for step in (1, 2):
        value = value + cute.arch.shuffle_sync_bfly(value, step)
    return value
