"""A few tokens of a sequence on one state, S [V, K] of fp32 or bf16, in place. CuTe DSL, sm_90a and sm_100a.

Of each token, with n(x) = (sum x^2 + 1e-6) ** -0.5, or 1 where q and k come normalised:

    alpha = exp(g)                                   g = -exp(A_log) softplus(a + dt_bias) where gates are raw
    beta                                             = beta_max sigmoid(b) where they are
    u     = beta (v - alpha n(k) (S k))
    o     = scale alpha n(q) (S q) + scale n(k) n(q) (k . q) u
    S'    = alpha S + n(k) u k^T

which is scale S' n(q) q in one pass over S: S k, S q and k . q are all sums over the state as it came. S is
fp32 in registers from the first token to the last, and rounded to its dtype where it is stored.

    tensor                      shape             dtype                rows
    q, k                        B, S, H, 128      bfloat16             any strides, 16-byte aligned
    v, o                        B, S, Hv, 128     bfloat16             the same; o is contiguous
    g, beta (a, b)              B, S, Hv          f32, bf16 or f16     any strides
    A_log, dt_bias              Hv                f32; f32 or bf16     where gates are raw
    state                       slots, Hv, V, K   f32 or bf16          slots any multiple of 16 bytes apart
    state_indices               B, S              int32                any strides; -1 writes nothing
    num_accepted, read_indices  B                 int32                one of them, or neither

CTA (x, y) has rows x % tiles of value head x / tiles of sequence y, in `passes` one after another. Of a pass
a warp has 4 `rows` rows of the state, a group of 8 lanes `rows` of them, and a lane 16 elements of each: of
every 128 bytes of a row the same 16. Nothing is shared between warps.

    who         does                                                     waits for
    lane t      slot, gates of token t; shuffles give them to the warp   its loads
    every lane  brings 16 bytes of each token's q or k by `cp.async`     nothing; told to `landed`
    every lane  asks for its 16 bytes of every 128 of its rows           the slot that is read, gates' inputs
    every lane  gates, norms and k . q                                   `landed`
    every lane  sums over 16 elements, one after another; then over 8    its rows
                lanes in pairs of pairs; updates and stores

The slot, the operands and what the gates are made of are asked for together, the rows as soon as the slot is
there, and what does not take the rows is done while they are on their way. A padding sequence goes the same
way with predicated loads up to there, and leaves.

A row's bits depend on its sequence, head and row alone: not on B, on the plan, on the architecture or on who
runs first. NaN of a sequence shows in its own rows alone. Limits: S <= 8, B <= 65,535, slots in the pool; S k
and S q with q and k as they come must be floats, which of raw ones asks more than of normalised ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.plan import BARRIER_BYTES, WARP

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

CHUNK = 16
"""Bytes that a lane moves at once."""
AT_ONCE = 2
"""Rows of a lane whose elements are floats at once, of those that came as bf16: registers for more of them
would be bytes that are not in flight."""
TILE_ALIGN = 128
"""Bytes: a row of bf16 and more begin in the first bank."""
DRIVERS_CHOICE = -1
"""Of how much of the L1 cache is shared memory. Host code that is compiled ahead sets no other; without it
the compiler asks the device, and there may be none."""
NORM_EPS = 1e-6
BF16 = 2
"""Bytes of an element of q, k, v and o."""


@dataclass(frozen=True)
class Item:
    """What a thread does: rows `row` .. of value head `head` of a sequence, `part` of 8 of each; and its
    place: lane `lane` of a warp whose rows begin at `first_row`. `operands` is where the warp's q, k and v
    lie in shared memory, and `landed` the mbarrier that says when they do; `tile` and `arrived` are those
    of the warp's rows of the state, where these go through shared memory."""

    sequence: cutlass.Int32
    head: cutlass.Int32
    first_row: cutlass.Int32
    row: cutlass.Int32
    part: cutlass.Int32
    lane: cutlass.Int32
    operands: cutlass.Int32
    landed: cute.Pointer
    tile: cutlass.Int32
    arrived: cute.Pointer


@dataclass(frozen=True)
class Gates:
    """Floats, of the token that a lane looks after: g or a, beta or b; of the head A_log and dt_bias, None
    where gates are not raw."""

    g: Any
    beta: Any
    A_log: Any
    dt_bias: Any


@dataclass(frozen=True)
class Factors:
    """Floats that a token multiplies with: alpha; alpha n(k); scale alpha n(q); scale n(k) n(q) k . q;
    n(k); beta."""

    alpha: Any
    of_sk: Any
    of_sq: Any
    of_u: Any
    of_k: Any
    beta: Any


@dataclass(frozen=True)
class Token:
    """This lane's elements of q and k, floats, and the factors."""

    queries: list[Any]
    keys: list[Any]
    factors: Factors


class StateUpdate:
    """The kernel for S = `tokens`, a dtype of the state, forms of the gate and of q and k, and a plan."""

    asks_ahead = False
    """Whether a pass is asked for before the one in front of it is worked on. Of loads to registers it is
    not: sums would wait for both, whose counters an assembler shares with shuffles."""

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
        self.together = CHUNK // self.size
        """Elements of a chunk."""
        self.chunks = LANE_ELEMENTS // self.together
        self.kind = F32 if self.size == 4 else I32

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
        self.kernel(
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
            scale,
            beta_max,
        ).launch(**self.launch(v, stream))

    def launch(self, v: cute.Tensor, stream: cuda.CUstream) -> dict[str, Any]:
        """How the kernel is launched."""
        return {
            "grid": (cute.size(v, mode=[2]) * self.plan.tiles, cute.size(v, mode=[0]), 1),
            "block": (self.plan.threads, 1, 1),
            "stream": stream,
            "min_blocks_per_mp": self.plan.ctas_per_sm,
            "preferred_smem_carveout": DRIVERS_CHOICE,
            "use_pdl": self.plan.pdl,
        }

    @cute.kernel
    def kernel(
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
    ) -> None:
        self.run(
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
            scale,
            beta_max,
        )

    @cute.jit
    def run(
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
    ) -> None:
        """What a thread does."""
        item = self.item()
        self.set_up(item)
        if cutlass.const_expr(self.plan.pdl):
            # In this order: what starts behind this kernel finds done all that came before it.
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        slots, read = self.slots(item, state_indices, num_accepted, read_indices)
        self.bring(item, q, k, v)
        given = self.bring_gates(item, g, beta, A_log, dt_bias)
        asked = self.ask(item, self.ahead(read, given), state)
        gates = self.seen(item, self.gates(given, beta_max))
        # A wait that is a loop: of one that is an instruction a compiler would make the first.
        cute.arch.mbarrier_wait(item.landed, 0)
        first = self.token(item, 0, gates, scale)
        if read >= 0:
            self.update(item, slots, read, gates, first, asked, scale, state, o)

    @cute.jit
    def update(
        self,
        item: Item,
        slots: Any,
        read: Any,
        gates: tuple[Any, Any],
        first: Token,
        asked: Any,
        scale: Any,
        state: cute.Tensor,
        o: cute.Tensor,
    ) -> None:
        """All tokens, of which the first is ready, on all rows, of which those of the first pass were asked
        for."""
        for turn in cutlass.range_constexpr(self.plan.passes):
            here, own = self.of_pass(item, turn), asked
            following = turn + 1 < self.plan.passes
            if cutlass.const_expr(following and self.asks_ahead):
                asked = self.ask(self.of_pass(item, turn + 1), read, state)
            rows = self.take(here, own)
            before: list[Any] = []
            for number in cutlass.range_constexpr(self.tokens):
                token = first if number == 0 else self.token(item, number, gates, scale)
                values = self.values(item, number, turn)
                rows, outputs, updates = self.step(token, values, rows, number == self.tokens - 1)
                self.store_outputs(here, number, outputs, o)
                self.see_updates(here, number, updates)
                slot = self.of_token(slots, number)
                if slot >= 0:
                    self.put(here, slot, state, rows, before)
                before = [*before, slot]
            if cutlass.const_expr(following and not self.asks_ahead):
                asked = self.ask(self.of_pass(item, turn + 1), read, state)
        self.finish(item)

    def item(self) -> Item:
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
        return Item(
            sequence=sequence,
            head=block // self.plan.tiles,
            first_row=first,
            row=first + self.group_row(lane),
            part=lane % ROW_LANES,
            lane=lane,
            operands=operands + warp * (self.tokens * self.plan.token_bytes),
            landed=barriers + self.plan.barriers * warp,
            tile=tile + warp * (self.plan.warp_rows * HEAD_DIM * self.size),
            arrived=barriers + self.plan.barriers * warp + 1,
        )

    def group_row(self, lane: Any) -> Any:
        """The first row of a lane's group, of a warp's."""
        group = lane // ROW_LANES
        return group if self.plan.spread else group * self.plan.rows

    def of_pass(self, item: Item, turn: int) -> Item:
        """What the thread does in a pass."""
        rows = turn * self.plan.tile_rows
        return replace(
            item,
            first_row=item.first_row + rows,
            row=item.row + rows,
            tile=item.tile + rows * self.row_bytes,
            arrived=item.arrived + turn,
        )

    def token(self, item: Item, number: int, gates: tuple[Any, Any], scale: Any) -> Token:
        """All of a token that does not take the state."""
        queries, keys = self.operands(item, number)
        alpha, beta = (self.of_token(gate, number) for gate in gates)
        return Token(queries, keys, self.factors((alpha, beta), keys, queries, scale))

    def step(
        self, token: Token, values: list[Any], rows: list[list[Any]], last: bool
    ) -> tuple[list[list[Any]], list[Any], list[Any]]:
        """(the rows of a pass after a token, its outputs, u of each row)."""
        found = token.factors
        after: list[list[Any]] = []
        outputs: list[Any] = []
        updates: list[Any] = []
        for first in range(0, self.plan.rows, AT_ONCE):
            some = slice(first, first + AT_ONCE)
            sums = [(dot(row, token.keys), dot(row, token.queries)) for row in map(self.floats, rows[some])]
            for row, value, (sk, sq) in zip(rows[some], values[some], sums, strict=True):
                sk, sq = ptx.summed(sk, ROW_LANES), ptx.summed(sq, ROW_LANES)
                u = ptx.multiply(found.beta, ptx.fma(ptx.negative(found.of_sk), sk, value))
                updates.append(u)
                outputs.append(ptx.fma(found.of_u, u, ptx.multiply(found.of_sq, sq)))
                uk = ptx.multiply(u, found.of_k) if self.raw_qk else u
                moved = [
                    ptx.fma(uk, key, ptx.multiply(found.alpha, x))
                    for key, x in zip(token.keys, self.floats(row), strict=True)
                ]
                # What no token follows is only stored: a row of bf16 is half as many registers.
                after.append(self.words(moved) if last else moved)
        return after, outputs, updates

    def seen(self, item: Item, gates: tuple[Any, Any]) -> tuple[Any, Any]:
        """The gates that are used; a build that shows its stages has more to do here."""
        return gates

    def see_updates(self, item: Item, number: int, updates: list[Any]) -> None:
        """The same for u of a token."""

    def factors(self, gate: tuple[Any, Any], keys: list[Any], queries: list[Any], scale: Any) -> Factors:
        alpha, beta = gate
        kq = ptx.summed(dot(keys, queries), ROW_LANES)
        if not self.raw_qk:
            return Factors(alpha, alpha, ptx.multiply(scale, alpha), ptx.multiply(scale, kq), F32(1.0), beta)
        of_k, of_q = (
            gate_math.inverse_norm(ptx.add(ptx.summed(dot(x, x), ROW_LANES), F32(NORM_EPS)))
            for x in (keys, queries)
        )
        scaled_q = ptx.multiply(scale, of_q)
        return Factors(
            alpha=alpha,
            of_sk=ptx.multiply(alpha, of_k),
            of_sq=ptx.multiply(alpha, scaled_q),
            of_u=ptx.multiply(ptx.multiply(kq, of_k), scaled_q),
            of_k=of_k,
            beta=beta,
        )

    def gates(self, given: Gates, beta_max: Any) -> tuple[Any, Any]:
        """(alpha, beta) of the token that this lane looks after."""
        if not self.raw_gate:
            return gate_math.exp(given.g), given.beta
        rate = gate_math.exp(given.A_log)
        log_decay = ptx.multiply(ptx.negative(rate), gate_math.softplus(ptx.add(given.g, given.dt_bias)))
        return gate_math.exp(log_decay), ptx.multiply(beta_max, gate_math.sigmoid(given.beta))

    def own_token(self, item: Item) -> Any:
        """Which token a lane looks after: its own number, or the last."""
        return I32(0) if self.tokens == 1 else cutlass.min(item.lane, I32(self.tokens - 1))

    def of_token(self, value: Any, number: int) -> Any:
        """What the lane that looks after a token has."""
        return value if self.tokens == 1 else cute.arch.shuffle_sync(value, number)

    def slots(
        self, item: Item, state_indices: cute.Tensor, num_accepted: cute.Tensor, read_indices: cute.Tensor
    ) -> tuple[Any, Any]:
        """(the slot of the token that this lane looks after, the slot that is read)."""
        own = ptx.load_index(address(state_indices, (item.sequence, self.own_token(item)), 4))
        if read_indices is not None:
            return own, ptx.load_index(address(read_indices, (item.sequence,), 4))
        if num_accepted is None:
            return own, self.of_token(own, 0)
        # A count beyond the tokens, which a sequence of padding may have, is taken for the nearest.
        last = ptx.load_index(address(num_accepted, (item.sequence,), 4)) - 1
        last = cutlass.max(cutlass.min(last, I32(self.tokens - 1)), I32(0))
        return own, self.of_token(own, last)

    @cute.jit
    def set_up(self, item: Item) -> None:
        """The warp's mbarriers."""
        if item.lane == 0:
            cute.arch.mbarrier_init(item.landed, WARP)
            if cutlass.const_expr(self.plan.transport != "registers"):
                for turn in cutlass.range_constexpr(self.plan.passes):
                    cute.arch.mbarrier_init(item.arrived + turn, 1)
                cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()

    @cute.jit
    def bring(self, item: Item, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor) -> None:
        """Ask for all tokens' operands: of each token half of the warp brings the row of q, the other half
        that of k, 16 bytes a lane, and a few lanes the warp's elements of v."""
        key_head = item.head // self.group
        half, place = item.lane // (WARP // 2), item.lane % (WARP // 2)
        chunks = self.plan.warp_rows * BF16 // CHUNK
        mine = I32(chunks * self.plan.passes - 1) - item.lane
        of_pass = item.lane // chunks * (self.plan.tile_rows * BF16) + item.lane % chunks * CHUNK
        for number in cutlass.range_constexpr(self.tokens):
            where = (item.sequence, number, key_head)
            row = ptx.pick(half == 0, address(q, where, BF16), address(k, where, BF16))
            here = item.operands + number * self.plan.token_bytes + item.lane * CHUNK
            ptx.copy_ahead(here, row + I64(place * CHUNK))
            values = address(v, (item.sequence, number, item.head), BF16) + I64(item.first_row * BF16)
            ptx.copy_ahead_if(mine, here + 2 * HEAD_DIM * BF16, values + I64(of_pass))
        ptx.tell_ahead(item.landed.toint())

    def bring_gates(
        self, item: Item, g: cute.Tensor, beta: cute.Tensor, A_log: cute.Tensor, dt_bias: cute.Tensor
    ) -> Gates:
        where = (item.sequence, self.own_token(item), item.head)
        found = (self.scalar(g, where), self.scalar(beta, where))
        if not self.raw_gate:
            return Gates(*found, None, None)
        return Gates(*found, self.scalar(A_log, (item.head,)), self.scalar(dt_bias, (item.head,)))

    def operands(self, item: Item, number: int) -> tuple[list[Any], list[Any]]:
        """This lane's elements of a token's q and k."""
        first = item.operands + number * self.plan.token_bytes
        words = self.together * BF16 // 4
        lines = []
        for half in range(2):
            at = first + half * (HEAD_DIM * BF16) + item.part * (self.together * BF16)
            parts = [
                ptx.load_shared(at, chunk * ROW_LANES * self.together * BF16, words)
                for chunk in range(self.chunks)
            ]
            lines.append(unpacked([word for part in parts for word in part]))
        return lines[0], lines[1]

    def values(self, item: Item, number: int, turn: int) -> list[Any]:
        """A token's elements of v that are of this group's rows of a pass."""
        at = item.operands + (number * self.plan.token_bytes + 2 * HEAD_DIM * BF16)
        at = at + (turn * self.plan.warp_rows * BF16) + self.group_row(item.lane) * BF16
        if self.plan.spread:
            return [ptx.load_shared_bf16(at, row * GROUPS * BF16) for row in range(self.plan.rows)]
        return unpacked(ptx.load_shared(at, 0, self.plan.rows * BF16 // 4))

    def scalar(self, x: cute.Tensor, where: tuple[Any, ...]) -> Any:
        """An element as a float."""
        return ptx.load_float(address(x, where, x.element_type.width // 8), x.element_type)

    def place(self, item: Item, slot: Any, row: Any, state: cute.Tensor) -> Any:
        """Where a row of this head lies in a slot."""
        slot_at = state.iterator.toint() + I64(slot) * (I64(state.stride[0]) * self.size)
        return slot_at + I64(item.head * HEAD_DIM + row) * self.row_bytes

    def chunk_places(self) -> list[tuple[int, int]]:
        """(row, bytes from this thread's first chunk) of its chunks, in the order that they are moved."""
        return [
            (row, row * self.plan.row_step * self.row_bytes + chunk * ROW_LANES * CHUNK)
            for row in range(self.plan.rows)
            for chunk in range(self.chunks)
        ]

    def by_row(self, chunks: list[list[Any]]) -> list[list[Any]]:
        """Words of each row."""
        rows: list[list[Any]] = [[] for _ in range(self.plan.rows)]
        for (row, _), words in zip(self.chunk_places(), chunks, strict=True):
            rows[row] += words
        return rows

    def chunks_of(self, rows: list[list[Any]]) -> list[tuple[int, list[Any]]]:
        """(bytes from this thread's first chunk, words) of its chunks, rounded as they are stored."""
        words = [self.words(row) for row in rows]
        found = []
        for place, (row, offset) in enumerate(self.chunk_places()):
            first = 4 * (place % self.chunks)
            found.append((offset, words[row][first : first + 4]))
        return found

    def ahead(self, read: Any, given: Gates) -> Any:
        """The slot that is read, once what the gates are made of is there. An assembler has six counters of
        loads: where these and the state's share one, gates would wait for all of the state."""
        return ptx.after(
            read, [x for x in (given.g, given.beta, given.A_log, given.dt_bias) if x is not None]
        )

    def ask(self, item: Item, read: Any, state: cute.Tensor) -> Any:
        """Ask for this thread's rows of a pass, all of them before any is looked at; zeros of padding."""
        at = self.place(item, read, item.row, state) + I64(item.part * CHUNK)
        return [ptx.load_if(read, at, offset, self.plan.load, self.kind) for _, offset in self.chunk_places()]

    def take(self, item: Item, asked: Any) -> list[list[Any]]:
        """Of each of this thread's rows its words."""
        return self.by_row(asked)

    def put(
        self, item: Item, slot: Any, state: cute.Tensor, rows: list[list[Any]], before: list[Any]
    ) -> None:
        """This thread's rows after a token, to its slot; the tokens before it had the slots `before`."""
        at = self.place(item, slot, item.row, state) + I64(item.part * CHUNK)
        for offset, words in self.chunks_of(rows):
            ptx.store(at, offset, words, self.plan.store)

    def finish(self, item: Item) -> None:
        """What is left to wait for before the CTA ends: nothing."""

    def floats(self, row: list[Any]) -> list[Any]:
        """A row's elements of this lane: as they are, or of the words that were loaded."""
        return row if isinstance(row[0], F32) else unpacked(row)

    def words(self, row: list[Any]) -> list[Any]:
        """A row's elements as they are stored, which they may be already."""
        return packed(row) if self.size == BF16 and isinstance(row[0], F32) else row

    def store_outputs(self, item: Item, number: int, outputs: list[Any], o: cute.Tensor) -> None:
        """One lane of the eight that have them all, or, of rows that are apart, a lane a row."""
        at = address(o, (item.sequence, number, item.head), BF16) + I64(item.row * BF16)
        if not self.plan.spread:
            ptx.store_if(-item.part, at, packed(outputs))
            return
        own = outputs[-1]
        for row, output in enumerate(outputs[:-1]):
            own = ptx.pick(item.part == row, output, own)
        ptx.store_bf16_if(self.plan.rows - 1 - item.part, at + I64(item.part * (GROUPS * BF16)), own)


def address(x: cute.Tensor, where: tuple[Any, ...], size: int) -> Any:
    """Of an element, the last axes left out being 0; `size` bytes each."""
    elements = sum((I64(place) * I64(x.stride[axis]) for axis, place in enumerate(where)), I64(0))
    return x.iterator.toint() + elements * size


def dot(x: list[Any], y: list[Any]) -> Any:
    """The sum of this lane's products, one after another."""
    found = ptx.multiply(x[0], y[0])
    for one, other in zip(x[1:], y[1:], strict=True):
        found = ptx.fma(one, other, found)
    return found


def unpacked(words: list[Any]) -> list[Any]:
    """Two floats of each word of two bf16."""
    return [value for word in words for value in ptx.widened(word)]


def packed(values: list[Any]) -> list[Any]:
    """Words of two bf16."""
    return [ptx.bfloats(low, high) for low, high in zip(values[::2], values[1::2], strict=True)]
