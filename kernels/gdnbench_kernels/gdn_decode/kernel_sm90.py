"""Gated-delta-net decode, FLA's and vLLM's `fused_recurrent_gated_delta_rule`. CuTe DSL, sm_90a and sm_100a.

Updates a sequence's state, fp32 or bf16, in place, token by token. In shapes S is the number of tokens, in
equations S [V, K] is the state. n(x) = (sum x^2 + 1e-6) ** -0.5, or 1 if the inputs q, k are normalised:

    alpha = exp(g)               if gates are raw (inputs a, b):  g = -exp(A_log) softplus(a + dt_bias)
    beta                         if gates are raw:                beta = beta_max sigmoid(b)
    u     = beta (v - alpha n(k) (S k))
    o     = scale alpha n(q) (S q) + scale n(k) n(q) (k . q) u
    S'    = alpha S + n(k) u k^T

o equals scale S' n(q) q, but takes one pass over S: S k, S q and k . q are all sums over the old state. S is
fp32 in registers from the first token to the last, and rounded to its dtype where it is stored.

    tensor                      shape             dtype                layout
    q, k                        B, S, H, 128      bfloat16             any strides, 16-byte aligned
    v, o                        B, S, Hv, 128     bfloat16             the same; o is contiguous
    g, beta (a, b)              B, S, Hv          f32, bf16 or f16     any strides
    A_log, dt_bias              Hv                f32; f32 or bf16     where gates are raw
    state                       slots, Hv, V, K   f32 or bf16          slots any multiple of 16 bytes apart
    state_indices               B, S              int32                any strides; -1 writes nothing
    num_accepted, read_indices  B                 int32                one of them, or neither

The 128 rows of a state are divided into `tiles` blocks. CTA (x, y) updates block x % tiles of value head
x / tiles of sequence y, in `passes` passes. In a pass a warp has 4 x `rows` rows, a group of 8 lanes `rows`,
and lane p of a group bytes 16 p to 16 p + 15 of every 128 bytes of each row. Warps share no data.

    who         does                                                        waits for
    lane t      loads the slot and the gate inputs of token t               nothing
    every lane  copies 16 bytes of each token's q or k by `cp.async`        nothing; arrives at `qkv_barrier`
    every lane  loads its 16 bytes of every 128 of its rows                 the slot to read, the gate inputs
    every lane  gates of its token, broadcast by shuffles; norms and k . q  gate inputs, `qkv_barrier`
    every lane  sums over 16 elements in order, then over the 8 lanes of a  its rows
                group as a tree; updates the state and stores it

The slot, q, k, v and the gate inputs are loaded together, the rows after the slot and the gate inputs have
arrived. What does not depend on the rows is computed while they are in flight. A padding sequence (its slot
to read is -1) takes the same path with its state loads predicated off, and exits before the update.

A row's bits depend only on its sequence, head and row, not on B, the plan, the architecture or the order of
CTAs. A NaN in a sequence reaches only its own rows. Limits: 8 tokens, B <= 65,535, slots inside the pool.
The products S k and S q are formed with q and k as given and must not overflow fp32. Raw q and k, whose norms
may exceed 1, reach that limit earlier than normalised ones.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import gate_math, ptx
from gdnbench_kernels.gdn_decode.decode_plan import (
    GROUPS,
    LANE_ELEMENTS,
    ROW_LANES,
    STATE_BYTES,
    DecodePlan,
)
from gdnbench_kernels.gdn_decode.kernel_values import Factors, Gates, KernelParams, Token, WorkTile
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.gdn_decode.slot_order import sequence_at
from gdnbench_kernels.plan import BARRIER_BYTES, WARP
from gdnbench_kernels.state_slots import PADDING

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

CHUNK = 16
"""Bytes of one load, store or cp.async of a lane."""
ROWS_AT_ONCE = 2
"""Rows that a lane widens from bf16 to floats at a time. Widening more rows takes registers, hence occupancy,
hence bytes in flight."""
TILE_ALIGN = 128
"""Bytes. Every tile starts in the first shared-memory bank."""
DRIVER_DEFAULT = -1
"""Shared-memory carveout: the driver's default. Ahead-of-time compilation requires a fixed value: without one
the compiler queries the device, and there may be none."""
NORM_EPS = 1e-6
BF16 = 2
"""Bytes of an element of q, k, v and o."""


class StateUpdate:
    """The kernel for S = `tokens` with a state dtype, a form of the gate and of q and k, and a plan."""

    loads_next_pass_early = False
    """Whether the state of the next pass is loaded before the current pass is computed. Not with loads to
    registers: ptxas lets them share a scoreboard with the shuffles of the sums, and each sum would then wait
    for the next pass's state too."""

    def __init__(
        self, tokens: int, group: int, state_dtype: str, gate: str, qk: str, plan: DecodePlan
    ) -> None:
        self.tokens = tokens
        self.group = group
        self.state_dtype = state_dtype
        self.size = STATE_BYTES[state_dtype]
        self.row_bytes = HEAD_DIM * self.size
        self.raw_gate = gate == "raw"
        self.raw_qk = qk == "raw"
        self.plan = plan
        self.chunk_elements = CHUNK // self.size
        """Elements of a chunk."""
        self.chunks = LANE_ELEMENTS // self.chunk_elements
        self.word_type = F32 if self.size == 4 else I32

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        A_log: cute.Tensor,
        dt_bias: cute.Tensor,
        state: cute.Tensor,
        state_indices: cute.Tensor,
        num_accepted: cute.Tensor,
        read_indices: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
        beta_max: cutlass.Float32,
        stream: cuda.CUstream,
    ) -> None:
        params = KernelParams(
            q,
            k,
            v,
            g,
            beta,
            A_log,
            dt_bias,
            state,
            state_indices,
            num_accepted,
            read_indices,
            o,
            None,
            scale,
            beta_max,
        )
        self.kernel(params).launch(**self.launch(v, stream))

    def launch(self, v: cute.Tensor, stream: cuda.CUstream) -> dict[str, Any]:
        """The launch configuration: x counts the tiles of all value heads, y the sequences."""
        return {
            "grid": (cute.size(v, mode=[2]) * self.plan.tiles, cute.size(v, mode=[0]), 1),
            "block": (self.plan.threads, 1, 1),
            "stream": stream,
            "min_blocks_per_mp": self.plan.ctas_per_sm,
            "preferred_smem_carveout": DRIVER_DEFAULT,
            "use_pdl": self.plan.pdl,
        }

    @cute.kernel
    def kernel(self, params: KernelParams) -> None:
        self.decode(params)

    @cute.jit
    def decode(self, params: KernelParams) -> None:
        """One thread's part of the kernel: load, gates, update, store."""
        work = self.work_tile()
        self.init_barriers(work)
        if cutlass.const_expr(self.plan.pdl):
            # Wait before launch_dependents: the next kernel must find all work before this kernel done.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.plan.ranked > 0):
            work = replace(work, sequence=self.sequence_of(work.sequence, params.state_indices))
        slots, read = self.slots(work, params)
        self.load_qkv_async(work, params)
        given = self.load_gates(work, params)
        loaded = self.load_state(work, self.order_after_gates(read, given), params.state)
        gates = self.tap_gates(work, self.gates(given, params.beta_max), params.taps)
        # mbarrier_wait spins in a loop. ptxas would hoist a single wait instruction above the state loads.
        cute.arch.mbarrier_wait(work.qkv_barrier, 0)
        self.make_channel_gates(work, given, params)
        first = self.token(work, 0, gates, params.scale)
        if read >= 0:
            self.update_state(work, slots, read, gates, first, loaded, params)

    @cute.jit
    def update_state(
        self,
        work: WorkTile,
        slots: Any,
        read: Any,
        gates: tuple[Any, ...],
        first: Token,
        loaded: Any,
        params: KernelParams,
    ) -> None:
        """Apply all tokens to all rows, pass by pass. `first` is the first token, already computed;
        `loaded` is what `load_state` returned for the first pass, still in flight."""
        for turn in cutlass.range_constexpr(self.plan.passes):
            here, own = self.pass_tile(work, turn), loaded
            following = turn + 1 < self.plan.passes
            if cutlass.const_expr(following and self.loads_next_pass_early):
                loaded = self.load_state(self.pass_tile(work, turn + 1), read, params.state)
            rows = self.unpack_state(here, own)
            before: list[Any] = []
            for number in cutlass.range_constexpr(self.tokens):
                token = first if number == 0 else self.token(work, number, gates, params.scale)
                values = self.values(work, number, turn)
                rows, outputs, updates = self.apply_token(token, values, rows, number == self.tokens - 1)
                self.store_outputs(here, number, outputs, params.o)
                self.tap_updates(here, number, updates, params.taps)
                slot = self.broadcast(slots, number)
                if slot >= 0:
                    self.store_state(here, slot, params.state, rows, before)
                before = [*before, slot]
            if cutlass.const_expr(following and not self.loads_next_pass_early):
                loaded = self.load_state(self.pass_tile(work, turn + 1), read, params.state)
        self.wait_for_stores(work)

    def work_tile(self) -> WorkTile:
        block, sequence, _ = cute.arch.block_idx()
        thread = cute.arch.thread_idx()[0]
        warp, lane = thread // WARP, thread % WARP
        first = block % self.plan.tiles * self.plan.cta_rows + warp * self.plan.warp_rows
        smem = cutlass.memory.SmemAllocator()
        through = self.plan.transport != "registers"
        tiles = self.plan.passes * self.plan.tile_bytes(self.state_dtype)
        tile = smem.allocate(tiles, TILE_ALIGN).toint() if through else I32(0)
        operands = smem.allocate(self.plan.operand_bytes(self.tokens), CHUNK).toint()
        barriers = cute.recast_ptr(
            smem.allocate(self.plan.barriers * self.plan.warps * BARRIER_BYTES, BARRIER_BYTES),
            dtype=cutlass.Int64,
        )
        used = self.plan.used_bytes(self.tokens, self.state_dtype)
        more = self.plan.shared_bytes(self.tokens, self.state_dtype) - used
        if more:
            smem.allocate(more, BARRIER_BYTES)
        return WorkTile(
            sequence=sequence,
            head=block // self.plan.tiles,
            first_row=first,
            row=first + self.group_row(lane),
            part=lane % ROW_LANES,
            lane=lane,
            operands=operands + warp * (self.tokens * self.plan.token_bytes),
            qkv_barrier=barriers + self.plan.barriers * warp,
            tile=tile + warp * (self.plan.warp_rows * HEAD_DIM * self.size),
            state_barrier=barriers + self.plan.barriers * warp + 1,
        )

    def group_row(self, lane: Any) -> Any:
        """The first row of the lane's group, relative to the warp's first row."""
        group = lane // ROW_LANES
        return group if self.plan.spread else group * self.plan.rows

    def pass_tile(self, work: WorkTile, turn: int) -> WorkTile:
        """The thread's work in pass `turn`."""
        rows = turn * self.plan.tile_rows
        return replace(
            work,
            first_row=work.first_row + rows,
            row=work.row + rows,
            tile=work.tile + rows * self.row_bytes,
            state_barrier=work.state_barrier + turn,
        )

    def token(self, work: WorkTile, number: int, gates: tuple[Any, ...], scale: Any) -> Token:
        """Everything of a token that does not depend on the state."""
        queries, keys = self.operands(work, number)
        alpha, beta = (self.broadcast(gate, number) for gate in gates)
        return Token(queries, keys, self.factors((alpha, beta), keys, queries, scale))

    def apply_token(
        self, token: Token, values: list[Any], rows: list[list[Any]], last: bool
    ) -> tuple[list[list[Any]], list[Any], list[Any]]:
        """Returns (rows of the state after the token, outputs, u of each row)."""
        found = token.factors
        after: list[list[Any]] = []
        outputs: list[Any] = []
        updates: list[Any] = []
        for first in range(0, self.plan.rows, ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            given = self.before_sums(token, rows[some])
            sums = [(dot(row, token.keys), dot(row, token.queries)) for row in map(self.to_floats, given)]
            for row, value, (sk, sq) in zip(given, values[some], sums, strict=True):
                sk, sq = ptx.summed(sk, ROW_LANES), ptx.summed(sq, ROW_LANES)
                u = ptx.multiply(found.beta, ptx.fma(ptx.negative(found.sk_factor), sk, value))
                updates.append(u)
                outputs.append(ptx.fma(found.u_factor, u, ptx.multiply(found.sq_factor, sq)))
                uk = ptx.multiply(u, found.k_factor) if self.raw_qk else u
                moved = [
                    ptx.fma(uk, key, self.after_sums(token, x))
                    for key, x in zip(token.keys, self.to_floats(row), strict=True)
                ]
                # After the last token pack bf16 states here: they take half the registers until stored.
                after.append(self.to_words(moved) if last else moved)
        return after, outputs, updates

    def before_sums(self, token: Token, rows: list[list[Any]]) -> list[list[Any]]:
        """The rows that are summed: the old ones, whose factor alpha is one of the sums' factors."""
        return rows

    def after_sums(self, token: Token, x: Any) -> Any:
        """An element of a row that was summed, decayed."""
        return ptx.multiply(token.factors.alpha, x)

    def tap_gates(self, work: WorkTile, gates: tuple[Any, ...], taps: Any) -> tuple[Any, ...]:
        """Returns the gates to use. The tapped build stores or replaces them."""
        return gates

    def tap_updates(self, work: WorkTile, number: int, updates: list[Any], taps: Any) -> None:
        """Does nothing; the tapped build stores the token's u."""

    def factors(self, gate: tuple[Any, Any], keys: list[Any], queries: list[Any], scale: Any) -> Factors:
        alpha, beta = gate
        kq, k_factor, q_norm = self.norms(keys, queries)
        if not self.raw_qk:
            return Factors(alpha, alpha, ptx.multiply(scale, alpha), ptx.multiply(scale, kq), k_factor, beta)
        scaled_q = ptx.multiply(scale, q_norm)
        return Factors(
            alpha=alpha,
            sk_factor=ptx.multiply(alpha, k_factor),
            sq_factor=ptx.multiply(alpha, scaled_q),
            u_factor=ptx.multiply(ptx.multiply(kq, k_factor), scaled_q),
            k_factor=k_factor,
            beta=beta,
        )

    def norms(self, keys: list[Any], queries: list[Any]) -> tuple[Any, Any, Any]:
        """(k . q, n(k), n(q))."""
        kq = ptx.summed(dot(keys, queries), ROW_LANES)
        if not self.raw_qk:
            return kq, F32(1.0), F32(1.0)
        k_norm, q_norm = (
            gate_math.inverse_norm(ptx.add(ptx.summed(dot(x, x), ROW_LANES), F32(NORM_EPS)))
            for x in (keys, queries)
        )
        return kq, k_norm, q_norm

    def gates(self, given: Gates, beta_max: Any) -> tuple[Any, ...]:
        """(alpha, beta) of this lane's token."""
        if not self.raw_gate:
            return gate_math.exp(given.g), given.beta
        rate = gate_math.exp(given.A_log)
        log_decay = ptx.multiply(ptx.negative(rate), gate_math.softplus(ptx.add(given.g, given.dt_bias)))
        return gate_math.exp(log_decay), ptx.multiply(beta_max, gate_math.sigmoid(given.beta))

    def own_token(self, work: WorkTile) -> Any:
        """The token whose gates this lane computes: its lane number, at most the last token."""
        return I32(0) if self.tokens == 1 else cutlass.min(work.lane, I32(self.tokens - 1))

    def broadcast(self, value: Any, number: int) -> Any:
        """The value of the lane that owns token `number`, in all lanes."""
        return value if self.tokens == 1 else cute.arch.shuffle_sync(value, number)

    def slots(self, work: WorkTile, params: KernelParams) -> tuple[Any, Any]:
        """(slot of this lane's token, slot that the sequence's state is read from)."""
        own = ptx.load_index(address(params.state_indices, (work.sequence, self.own_token(work)), 4))
        if params.read_indices is not None:
            return own, ptx.load_index(address(params.read_indices, (work.sequence,), 4))
        if params.num_accepted is None:
            return own, self.broadcast(own, 0)
        # A padding sequence may have any count: clamp it to the tokens that there are.
        last = ptx.load_index(address(params.num_accepted, (work.sequence,), 4)) - 1
        last = cutlass.max(cutlass.min(last, I32(self.tokens - 1)), I32(0))
        return own, self.broadcast(own, last)

    @cute.jit
    def sequence_of(self, place: cutlass.Int32, state_indices: cute.Tensor) -> cutlass.Int32:
        """The sequence of the CTAs that come at `place`: the first sequences in the order of the call, the
        others in ascending order of their first token's slot."""
        if cutlass.const_expr(self.plan.started == 0):
            return sequence_at(place, self.slots_from(I32(0), state_indices))
        ctas = cute.arch.grid_dim()[0]
        first = (self.plan.started + ctas - 1) // ctas
        found = place
        if place >= first:
            found = first + sequence_at(place - first, self.slots_from(first, state_indices))
        return found

    def slots_from(self, first: Any, state_indices: cute.Tensor) -> list[Any]:
        """The first tokens' slots of the sequences from `first` on, as `sequence_at` takes them."""
        sequences = [first + (number * WARP + cute.arch.lane_idx()) for number in range(self.plan.ranked)]
        last = cute.arch.grid_dim()[1] - 1
        return [
            ptx.load_index_if(last - own, address(state_indices, (own,), 4), PADDING) for own in sequences
        ]

    @cute.jit
    def init_barriers(self, work: WorkTile) -> None:
        """Initialise the warp's mbarriers."""
        if work.lane == 0:
            cute.arch.mbarrier_init(work.qkv_barrier, WARP)
            if cutlass.const_expr(self.plan.transport != "registers"):
                for turn in cutlass.range_constexpr(self.plan.passes):
                    cute.arch.mbarrier_init(work.state_barrier + turn, 1)
                cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()

    @cute.jit
    def load_qkv_async(self, work: WorkTile, params: KernelParams) -> None:
        """Start cp.async of all tokens' operands. Per token, half of the warp copies the row of q and half
        the row of k, 16 bytes a lane; lanes with `mine` >= 0 also copy the warp's v."""
        key_head = work.head // self.group
        half, place = work.lane // (WARP // 2), work.lane % (WARP // 2)
        chunks = self.plan.warp_rows * BF16 // CHUNK
        mine = I32(chunks * self.plan.passes - 1) - work.lane
        offset = work.lane // chunks * (self.plan.tile_rows * BF16) + work.lane % chunks * CHUNK
        for number in cutlass.range_constexpr(self.tokens):
            where = (work.sequence, number, key_head)
            row = ptx.select_value(half == 0, address(params.q, where, BF16), address(params.k, where, BF16))
            here = work.operands + number * self.plan.token_bytes + work.lane * CHUNK
            ptx.cp_async_16B(here, row + I64(place * CHUNK))
            values = address(params.v, (work.sequence, number, work.head), BF16) + I64(work.first_row * BF16)
            ptx.cp_async_16B_if(mine, here + 2 * HEAD_DIM * BF16, values + I64(offset))
            self.load_channel_gates_async(work, number, params)
        ptx.cp_async_arrive(work.qkv_barrier.toint())

    def load_channel_gates_async(self, work: WorkTile, number: int, params: KernelParams) -> None:
        """Does nothing: a token has one gate. kda_decode has one per channel."""

    def make_channel_gates(self, work: WorkTile, given: Gates, params: KernelParams) -> None:
        """Does nothing, as above."""

    def load_gates(self, work: WorkTile, params: KernelParams) -> Gates:
        """The inputs of the gates of this lane's token."""
        where = (work.sequence, self.own_token(work), work.head)
        found = (self.scalar(params.g, where), self.scalar(params.beta, where))
        if not self.raw_gate:
            return Gates(*found, None, None)
        per_head = (self.scalar(params.A_log, (work.head,)), self.scalar(params.dt_bias, (work.head,)))
        return Gates(*found, *per_head)

    def operands(self, work: WorkTile, number: int) -> tuple[list[Any], list[Any]]:
        """(q, k): this lane's elements of a token, as floats."""
        first = work.operands + number * self.plan.token_bytes
        words = self.chunk_elements * BF16 // 4
        lines = []
        for half in range(2):
            at = first + half * (HEAD_DIM * BF16) + work.part * (self.chunk_elements * BF16)
            parts = [
                ptx.load_shared(at, chunk * ROW_LANES * self.chunk_elements * BF16, words)
                for chunk in range(self.chunks)
            ]
            lines.append(unpacked([word for part in parts for word in part]))
        return lines[0], lines[1]

    def values(self, work: WorkTile, number: int, turn: int) -> list[Any]:
        """The token's elements of v for this group's rows of a pass, as floats."""
        at = work.operands + (number * self.plan.token_bytes + 2 * HEAD_DIM * BF16)
        at = at + (turn * self.plan.warp_rows * BF16) + self.group_row(work.lane) * BF16
        if self.plan.spread:
            return [ptx.load_shared_bf16(at, row * GROUPS * BF16) for row in range(self.plan.rows)]
        return unpacked(ptx.load_shared(at, 0, self.plan.rows * BF16 // 4))

    def scalar(self, x: cute.Tensor, where: tuple[Any, ...]) -> Any:
        """Load one element as a float."""
        return ptx.load_float(address(x, where, x.element_type.width // 8), x.element_type)

    def row_address(self, work: WorkTile, slot: Any, row: Any, state: cute.Tensor) -> Any:
        """Global address of a row of this head in a slot."""
        slot_at = state.iterator.toint() + I64(slot) * (I64(state.stride[0]) * self.size)
        return slot_at + I64(work.head * HEAD_DIM + row) * self.row_bytes

    def chunk_offsets(self) -> list[tuple[int, int]]:
        """(row, byte offset from this thread's first chunk) of each of its chunks, in load order."""
        return [
            (row, row * self.plan.row_step * self.row_bytes + chunk * ROW_LANES * CHUNK)
            for row in range(self.plan.rows)
            for chunk in range(self.chunks)
        ]

    def group_by_row(self, chunks: list[list[Any]]) -> list[list[Any]]:
        """The words of each row, from those of each chunk."""
        rows: list[list[Any]] = [[] for _ in range(self.plan.rows)]
        for (row, _), words in zip(self.chunk_offsets(), chunks, strict=True):
            rows[row] += words
        return rows

    def stored_chunks(self, rows: list[list[Any]]) -> list[tuple[int, list[Any]]]:
        """(byte offset from this thread's first chunk, words) of each chunk, rounded to the state's dtype."""
        words = [self.to_words(row) for row in rows]
        found = []
        for place, (row, offset) in enumerate(self.chunk_offsets()):
            first = 4 * (place % self.chunks)
            found.append((offset, words[row][first : first + 4]))
        return found

    def order_after_gates(self, read: Any, given: Gates) -> Any:
        """The slot to read, made to depend on the gates' inputs: the state's loads issue after those have
        arrived. Issued earlier, they may share one of the warp's six scoreboards for loads with the inputs,
        and the gates then wait for all of the state (docs/gdn_decode.md)."""
        return ptx.false_dependency(read, given.loaded())

    def load_state(self, work: WorkTile, read: Any, state: cute.Tensor) -> Any:
        """Load this thread's rows of a pass, zeros for padding. All loads are issued before one is used."""
        at = self.row_address(work, read, work.row, state) + I64(work.part * CHUNK)
        return [
            ptx.load_if(read, at, offset, self.plan.load, self.word_type)
            for _, offset in self.chunk_offsets()
        ]

    def unpack_state(self, work: WorkTile, loaded: Any) -> list[list[Any]]:
        """The words of each of this thread's rows, from what `load_state` returned."""
        return self.group_by_row(loaded)

    def store_state(
        self, work: WorkTile, slot: Any, state: cute.Tensor, rows: list[list[Any]], before: list[Any]
    ) -> None:
        """Store this thread's rows after a token to its slot. `before`: the slots of the tokens before it."""
        at = self.row_address(work, slot, work.row, state) + I64(work.part * CHUNK)
        for offset, words in self.stored_chunks(rows):
            ptx.store(at, offset, words, self.plan.store)

    def wait_for_stores(self, work: WorkTile) -> None:
        """Wait until the CTA may exit. Plain stores need no wait."""

    def to_floats(self, row: list[Any]) -> list[Any]:
        """This lane's elements of a row as floats, unpacked if they are words of bf16."""
        return row if isinstance(row[0], F32) else unpacked(row)

    def to_words(self, row: list[Any]) -> list[Any]:
        """A row's elements as words of the state's dtype, packed if they are floats of a bf16 state."""
        return packed(row) if self.size == BF16 and isinstance(row[0], F32) else row

    def store_outputs(self, work: WorkTile, number: int, outputs: list[Any], o: cute.Tensor) -> None:
        """Store o. All eight lanes of a group have its outputs: its lane 0 stores them, or with `spread` its
        lane r stores row r."""
        at = address(o, (work.sequence, number, work.head), BF16) + I64(work.row * BF16)
        if not self.plan.spread:
            ptx.store_if(-work.part, at, packed(outputs))
            return
        own = outputs[-1]
        for row, output in enumerate(outputs[:-1]):
            own = ptx.select_value(work.part == row, output, own)
        ptx.store_bf16_if(self.plan.rows - 1 - work.part, at + I64(work.part * (GROUPS * BF16)), own)


def address(x: cute.Tensor, where: tuple[Any, ...], size: int) -> Any:
    """Global address of the element at `where` (later axes 0) of a tensor of `size`-byte elements."""
    elements = sum((I64(place) * I64(x.stride[axis]) for axis, place in enumerate(where)), I64(0))
    return x.iterator.toint() + elements * size


def dot(x: list[Any], y: list[Any]) -> Any:
    """The dot product of this lane's elements, summed left to right by fma."""
    found = ptx.multiply(x[0], y[0])
    for one, other in zip(x[1:], y[1:], strict=True):
        found = ptx.fma(one, other, found)
    return found


def unpacked(words: list[Any]) -> list[Any]:
    """The two floats of each word of two bf16."""
    return [value for word in words for value in ptx.widened(word)]


def packed(values: list[Any]) -> list[Any]:
    """Pairs of floats, each pair rounded to a word of two bf16."""
    return [ptx.bfloats(low, high) for low, high in zip(values[::2], values[1::2], strict=True)]
