"""The affine map of each segment: the fused kernel without outputs, from zeros and from the identity.
CuTe DSL, sm_100a.

Reads k, v, gates and initial states; writes firsts and maps (fused_segments.py). A segment of chunks maps the
state S before it to S M + B behind it, with B [V, K] and M [K, K]. The equations of kernel_sm100_fused.py
give both, chunk after chunk, without P and o:

    X     = V - exp(g_cu) K h^T                     h the rounding of S
    V_new = (Ai beta_j) X
    S     = exp(g_last) S + (V_new exp(g_last - g_cu))^T K

B is S after the segment if S is 0 before it, M is S if S is the identity before it and V is 0. B of a
sequence's first segment begins with its initial state: so it is the state before the second segment, and that
M is not needed. The last segment needs neither. The products in order, KKT of the chunk after next after 3:

    product              M    N    K    left operand            right operand      accumulator
    1. KKT               64   64   128  s_k, K-major            s_k, K-major       t_kkt
    2. (K h^T)^T         128  64   128  s_h, K-major            s_k, K-major       t_ks
    3. V_new^T           128  64   64   s_left = X^T, K-major   s_aib, K-major     t_v_new
    4. D2, added to S    128  128  64   s_left = Vs^T, K-major  s_k, N-major       t_added

Vs is V_new exp(g_last - g_cu). A CTA computes B and M of a segment, which share K, gates and Ai beta:
products 2 to 4 of B, each followed by that of M with s_map_h, s_map_left, t_map_ks and t_map. B is in
registers, where D2 is added to it; M is in t_map, multiplied by exp(g_last), and product 4 adds to it in
place. CTA Hv (UB - 2 - s) + head has segment s. A CTA without work ends before its first chunk.

    SMEM        shape               dtype     layout
    s_k         64 x 128, 3 stages  bfloat16  K-major, SW128; read as N-major too
    s_v         64 x 128            bfloat16  row = token, SW128
    s_h         128 x 128           bfloat16  K-major, SW128
    s_map_h     128 x 128           bfloat16  K-major, SW128
    s_left      128 x 64            bfloat16  K-major, SW128: X^T, then (V_new exp(g_last - g_cu))^T
    s_map_left  128 x 64            bfloat16  K-major, SW128: X^T, then (V_new exp(g_last - g_cu))^T
    s_aib       64 x 64, 2 stages   bfloat16  K-major, SW128: Ai beta_j
    s_gate      4 x 64, 4 stages    float32   a row for each of GATE's
    s_blocks    64 x 64             float16   rows contiguous, 128 B swizzle
    s_diagonal  4 x 16 x 20         float32   columns contiguous, padded

    TMEM      shape              columns   lanes  layout
    t_kkt     64 x 64, 2 stages  0..127    low    M=64: row r in lane 32 (r/16) + r%16
    t_ks      128 x 64           128..191  all    row r in lane r: (K h^T)^T, then V_new^T
    t_map_ks  128 x 64           192..255  all    row r in lane r: (K h^T)^T, then V_new^T, of M
    t_map     128 x 128          256..383  all    row r in lane r: M
    t_added   128 x 128          384..511  all    row r in lane r

    role    warps  does
    STATE   0..7   carries B in registers and M in TMEM, 64 rows each four warps; h, X and V_new
    INVERT  8..11  KKT from TMEM; A and Ai in registers; Ai beta into SMEM
    GATE    12     scans g; g_cu, beta, exp(g_cu) and exp(g_last - g_cu) into SMEM
    MMA     13     allocates TMEM; all products, KKT ahead
    LOAD    14     TMA of K and V; zeros past the end of the sequence
    STORE   15     nothing: setmaxnreg needs a fourth warp

    pipeline    stages  full: arrivals        empty: arrivals
    k           3       1 LOAD + 16384 bytes  1 MMA commit
    v           1       1 LOAD + 16384 bytes  8 STATE warp
    tail        2       1 LOAD + 16384 bytes  1 nobody
    gate        4       1 GATE                12 INVERT, STATE warp
    scores      2       1 MMA commit          1 nobody
    squares     2       4 INVERT warp         1 nobody
    h           2       8 STATE warp          1 nobody
    map_h       2       8 STATE warp          1 nobody
    ks          1       1 MMA commit          1 nobody
    map_ks      1       1 MMA commit          1 nobody
    left        1       8 STATE warp          1 nobody
    map_left    1       8 STATE warp          1 nobody
    update      1       1 MMA commit          1 nobody
    map_update  1       1 MMA commit          1 nobody
    added       1       1 MMA commit          1 nobody
    map_added   1       1 MMA commit          1 nobody

    sync                               who                 orders
    fence.mbarrier_init, barrier TMEM  all                 mbarriers, tensor memory: before their use
    setmaxnreg                         all                 increases wait for the others' decrease
    tail pipeline                      LOAD                K, V have landed before zeros are stored
    fence.proxy.async                  LOAD                zeros in s_k written before products read them
    barrier INVERT                     INVERT              exchanges within the inverse: inverse.py
    fence.proxy.async                  INVERT              s_aib written before products read it
    fence.proxy.async                  STATE               s_h, s_left, also of M, written before products
    fence.proxy.async                  STATE               s_v read before TMA writes
    tcgen05.wait::st                   STATE               M stored before a product adds to it
    tcgen05.wait::ld                   INVERT, STATE       tensor memory read before its release
    tcgen05.fence before, after        MMA, INVERT, STATE  tensor memory, with the mbarriers around
    producer_tail                      each producer       no arrival after the CTA ends
    barrier of the CTA                 all                 tensor memory read before it is freed

512 threads, 198052 bytes of SMEM, 512 columns of TMEM, 1 CTA an SM

fused_plan.py makes these tables. With `split` there are 2 stages of s_blocks, 206244 bytes.

Limits: those of kernel_sm100_fused.py, and UB Hv V K < 2^31. firsts and maps are f32; rows of them that no
segment needs are not written. NaN in a segment stays in its B and M. Their bits depend only on the segment,
and B's of a first one on the initial state.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode

from gdnbench_kernels import blackwell
from gdnbench_kernels.delta_prefill.fused_tiles import PARTS, Half, TileMma, read_given
from gdnbench_kernels.gdn_prefill import transfer_state
from gdnbench_kernels.gdn_prefill.fused_plan import (
    AHEAD,
    T_ADDED,
    T_KKT,
    T_KS,
    T_MAP,
    T_MAP_KS,
    Pipelines,
    Shared,
    planned_transfer,
)
from gdnbench_kernels.gdn_prefill.fused_segments import Cuts, SegmentTile, write_slot
from gdnbench_kernels.gdn_prefill.fused_state import State
from gdnbench_kernels.gdn_prefill.kernel_sm100_fused import DECAYED, FIRST, ChunkFused, Tma, X
from gdnbench_kernels.gdn_prefill.sizes import CHUNK
from gdnbench_kernels.plan import Accumulator, KernelPlan

PLAN = planned_transfer(split=False)
SPLIT_PLAN = planned_transfer(split=True)


@dataclass(frozen=True, kw_only=True)
class TransferTile(SegmentTile):
    """The work of a CTA: B and, if it `has_map`, M of a segment, for one value head."""

    has_map: cutlass.Boolean


@dataclass(frozen=True)
class TransferStates:
    """Where B starts and where B and M end up."""

    initial: cute.Tensor | None  # [N, Hv, V, K]
    firsts: cute.Tensor
    maps: cute.Tensor

    @cute.jit
    def load(self, half: Half, work: TransferTile, r_b: State) -> None:
        """Load the initial state before a first segment, zeros before others. The initial state also goes to
        its slot: the last segment of the sequence may overwrite it."""
        for part in cutlass.range_constexpr(PARTS):
            r_b[part].fill(0.0)
            if work.exists & work.first:
                read_given(half, work, self.initial, part, r_b[part])
                write_slot(half, self.firsts, work.segment, work.head, part, r_b[part])

    @cute.jit
    def store(self, half: Half, work: TransferTile, r_b: State) -> None:
        """Store B in the next segment's slot, M in this one's."""
        # Located anew, which leaves more registers to the chunks.
        block = blackwell.opaque(cute.arch.block_idx()[0])
        segment, head = task(block, *self.firsts.shape[:2])
        if work.chunks > 0:
            for part in cutlass.range_constexpr(PARTS):
                write_slot(half, self.firsts, segment + 1, head, part, r_b[part])
            if work.has_map:
                for part in cutlass.range_constexpr(PARTS):
                    r_map = half.registers()
                    half.tmem_copy.load(T_MAP, 0, part * CHUNK, r_map)
                    cute.arch.fence_view_async_tmem_load()
                    write_slot(half, self.maps, segment, head, part, r_map)


def task(block: cutlass.Int32, rows: Any, value_heads: Any) -> tuple[cutlass.Int32, cutlass.Int32]:
    """(segment, value head) of a CTA; the table has `rows` rows. Order: heads of a segment, segments from the
    last but one to the first: CTAs of a sequence's first segment, without M, end soonest."""
    return rows - 2 - block // value_heads, block % value_heads


@dataclass(frozen=True)
class Products:
    """Those of B or of M that need the state, with the barriers around them."""

    pipelines: Pipelines
    read_k: TileMma
    update: TileMma
    add: TileMma
    in_place: bool
    """Whether the last product adds to what its accumulator holds."""

    @staticmethod
    def create(
        pipelines: Pipelines, shared: Shared, base: cute.Pointer, parts: tuple[Accumulator, Accumulator]
    ) -> Products:
        """`parts` are the accumulators of K h^T and V_new and of the state."""
        ks, state = parts
        return Products(
            pipelines,
            TileMma.create(base, ks, shared.h, shared.k),
            TileMma.create(base, ks, shared.left, shared.aib),
            TileMma.create(base, state, shared.left, shared.k, OperandMajorMode.MN),
            state is T_MAP,
        )

    def read(self, chunk: Any, k: Any) -> None:
        """Issue K h^T."""
        for half in range(PARTS):
            self.pipelines.h.consumer_wait(blackwell.Turn(half, chunk.phase))
            blackwell.after_thread_sync()
            self.read_k.issue(FIRST, k, half=half)
        self.pipelines.ks.umma_commit(chunk)

    def form_v_new(self, chunk: Any, squares: Any) -> None:
        """Issue V_new, whose squares MMA has waited for."""
        self.pipelines.left.consumer_wait(X)
        blackwell.after_thread_sync()
        self.update.issue(FIRST, squares)
        self.pipelines.update.umma_commit(chunk)

    def add_up(self, chunk: Any, k: Any) -> None:
        """Issue what the chunk adds to the state."""
        self.pipelines.left.consumer_wait(DECAYED)
        blackwell.after_thread_sync()
        self.add.issue(FIRST, k, add=self.in_place)
        self.pipelines.added.umma_commit(chunk)


@dataclass(frozen=True)
class ChunkTransfer(ChunkFused):
    """B and M of every segment that another one follows; M only where a segment came before."""

    outputs = False
    registers = (160, 144, 48)

    @cute.jit
    def __call__(
        self,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        cu_seqlens: cute.Tensor,
        offsets: cute.Tensor,
        indices: cute.Tensor,
        total: cute.Tensor,
        initial_state: cute.Tensor | None,
        firsts: cute.Tensor,
        maps: cute.Tensor,
        tokens: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The tensors are those of `ChunkFused` and of fused_segments.py."""
        cuts = Cuts(cu_seqlens, offsets, indices, total, tokens)
        states = TransferStates(initial_state, firsts, maps)
        self.kernel(Tma.create(k, None, v, None), (g, beta), cuts, states, None, cutlass.Float32(1.0)).launch(
            grid=(self.works(cuts), 1, 1),
            block=(PLAN.threads, 1, 1),
            min_blocks_per_mp=PLAN.ctas_per_sm,
            stream=stream,
        )

    @property
    def plan(self) -> KernelPlan:
        return SPLIT_PLAN if self.split else PLAN

    def works(self, cuts: Cuts) -> cutlass.Int32:
        """For each row of the table but the last, which no segment follows. A CTA has one."""
        return (cute.size(cuts.indices, mode=[0]) - 1) * self.value_heads

    def work(self, cuts: Cuts, number: cutlass.Int32) -> TransferTile:
        segment, head = task(number, cute.size(cuts.indices, mode=[0]), self.value_heads)
        tile = SegmentTile.locate(cuts, segment, head, lambda index, count: index < count - 1)
        found = {field.name: getattr(tile, field.name) for field in fields(tile)}
        return TransferTile(**found, has_map=~tile.first)

    def recurrence(
        self, cuts: Any, pipelines: Pipelines, shared: Shared, base: cute.Pointer, states: Any, scale: Any
    ) -> None:
        transfer_state.recurrence(self, cuts, pipelines, shared, base, states)

    @cute.jit
    def mma(self, cuts: Any, pipelines: Pipelines, shared: Shared, base: cute.Pointer) -> None:
        """Issue all products, those of B before those of M. KKT is issued two chunks ahead."""
        kkt = TileMma.create(base, T_KKT, shared.k, shared.k)
        of_b = Products.create(pipelines, shared, base, (T_KS, T_ADDED))
        of_map = Products.create(pipelines.of_map(), shared.of_map(), base, (T_MAP_KS, T_MAP))
        k_ahead, k = pipelines.k.consumer_state(), pipelines.k.consumer_state()
        work = self.work(cuts, cute.arch.block_idx()[0])
        for turn in cutlass.range(work.chunks + AHEAD, unroll=1):
            # The chunk whose state is read, as a stage of one and of two.
            chunk, squares = blackwell.Turn.consumer(turn), blackwell.Turn.consumer(turn + AHEAD, AHEAD)
            if turn >= AHEAD:
                of_b.read(chunk, k)
                if work.has_map:
                    of_map.read(chunk, k)
                pipelines.squares.consumer_wait(squares)
                of_b.form_v_new(chunk, squares)
                if work.has_map:
                    of_map.form_v_new(chunk, squares)
            if turn < work.chunks:
                self.issue_kkt(pipelines, turn, kkt, k_ahead)
                pipelines.scores.umma_commit(blackwell.Turn.consumer(turn, AHEAD))
                k_ahead.advance()
            if turn >= AHEAD:
                of_b.add_up(chunk, k)
                if work.has_map:
                    of_map.add_up(chunk, k)
                pipelines.k.umma_release(k)
                k.advance()
