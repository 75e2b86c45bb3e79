"""A few tokens of a sequence on one state, S [V, K] of fp32 or bf16, in place. CuTe DSL, sm_90a and sm_100a.

Of token t with n = 1 where q, k come normalised, else n(x) = (sum x^2 + 1e-6) ** -0.5:

    k^ = n(k) k,  q^ = n(q) q
    u  = beta (v - alpha S k^)
    o  = scale (alpha S q^ + u (k^ . q^))            = scale S' q^
    S' = alpha S + u k^^T                            rounded as it is stored, not from token to token
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import gate_math, ptx
from gdnbench_kernels.gdn_decode.decode_plan import LANE_ELEMENTS, ROW_LANES, STATE_BYTES, DecodePlan
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM

I32, I64, F32 = cutlass.Int32, cutlass.Int64, cutlass.Float32

CHUNK = 16
"""Bytes that a lane moves at once."""
NORM_EPS = 1e-6
BF16 = 2
"""Bytes of an element of q, k, v and o."""


@dataclass(frozen=True)
class Item:
    """What a thread does: rows `row` .. of value head `head` of a sequence; `part` of 8 of each row."""

    sequence: cutlass.Int32
    head: cutlass.Int32
    row: cutlass.Int32
    part: cutlass.Int32


@dataclass(frozen=True)
class Token:
    """What a token brings, as it was loaded: this lane's elements of q and k, its group's of v, in words of
    two bf16; what its gates are made of, floats."""

    q: list[Any]
    k: list[Any]
    v: list[Any]
    g: Any
    beta: Any


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
class HeadGate:
    """Of a value head, where gates are raw: A_log and dt_bias, floats; else None."""

    A_log: Any
    dt_bias: Any


class StateUpdate:
    """The kernel for S = `tokens`, a dtype of the state, forms of the gate and of q and k, and a plan."""

    def __init__(
        self, tokens: int, group: int, state_dtype: str, gate: str, qk: str, plan: DecodePlan
    ) -> None:
        self.tokens = tokens
        self.group = group
        self.size = STATE_BYTES[state_dtype]
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
        ).launch(
            grid=(cute.size(v, mode=[2]) * self.plan.tiles, cute.size(v, mode=[0]), 1),
            block=(self.plan.threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.plan.ctas_per_sm,
            use_pdl=self.plan.pdl,
        )

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
        block, sequence, _ = cute.arch.block_idx()
        thread = cute.arch.thread_idx()[0]
        row = block % self.plan.tiles * self.plan.tile_rows + thread // ROW_LANES * self.plan.rows
        item = Item(sequence, block // self.plan.tiles, row, thread % ROW_LANES)
        if cutlass.const_expr(self.plan.pdl):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        # The state waits for the slot alone, and all else is asked for before the slot is looked at.
        slots = self.slots(item, state_indices)
        chosen = self.choice(item, num_accepted, read_indices)
        token = self.bring(item, 0, q, k, v, g, beta)
        gate = self.head_gate(item, A_log, dt_bias)
        read = self.slot_read(slots, chosen, num_accepted, read_indices)
        if read >= 0:
            self.advance(item, read, slots, token, gate, q, k, v, g, beta, state, o, scale, beta_max)

    @cute.jit
    def advance(
        self,
        item: Item,
        read: cutlass.Int32,
        slots: list[Any],
        token: Token,
        gate: HeadGate,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
        state: cute.Tensor,
        o: cute.Tensor,
        scale: cutlass.Float32,
        beta_max: cutlass.Float32,
    ) -> None:
        rows = self.load_state(self.tile(item, read, state))
        for number in cutlass.range_constexpr(self.tokens):
            following = token
            if cutlass.const_expr(number + 1 < self.tokens):
                following = self.bring(item, number + 1, q, k, v, g, beta)
            rows = self.step(item, number, token, gate, rows, o, scale, beta_max)
            slot = slots[number]
            if slot >= 0:
                self.store_state(self.tile(item, slot, state), rows)
            token = following

    def step(
        self,
        item: Item,
        number: int,
        token: Token,
        gate: HeadGate,
        rows: list[list[Any]],
        o: cute.Tensor,
        scale: Any,
        beta_max: Any,
    ) -> list[list[Any]]:
        """The rows after a token; stores its outputs."""
        keys, queries = unpacked(token.k), unpacked(token.q)
        found = self.factors(token, gate, keys, queries, scale, beta_max)
        values = unpacked(token.v)
        after, outputs = [], []
        sums = []
        for row in rows:
            elements = self.floats(row)
            sums.append((dot(elements, keys), dot(elements, queries)))
        for row, value, (sk, sq) in zip(rows, values, sums, strict=True):
            sk, sq = ptx.summed(sk, ROW_LANES), ptx.summed(sq, ROW_LANES)
            u = ptx.multiply(found.beta, ptx.fma(ptx.negative(found.of_sk), sk, value))
            outputs.append(ptx.fma(found.of_u, u, ptx.multiply(found.of_sq, sq)))
            uk = ptx.multiply(u, found.of_k) if self.raw_qk else u
            after.append(
                [
                    ptx.fma(uk, key, ptx.multiply(found.alpha, x))
                    for key, x in zip(keys, self.floats(row), strict=True)
                ]
            )
        self.store_outputs(item, number, outputs, o)
        return after

    def factors(
        self, token: Token, gate: HeadGate, keys: list[Any], queries: list[Any], scale: Any, beta_max: Any
    ) -> Factors:
        alpha, beta = self.gates(token, gate, beta_max)
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

    def gates(self, token: Token, gate: HeadGate, beta_max: Any) -> tuple[Any, Any]:
        """(alpha, beta)."""
        if not self.raw_gate:
            return gate_math.exp(token.g), token.beta
        rate = gate_math.exp(gate.A_log)
        log_decay = ptx.multiply(ptx.negative(rate), gate_math.softplus(ptx.add(token.g, gate.dt_bias)))
        return gate_math.exp(log_decay), ptx.multiply(beta_max, gate_math.sigmoid(token.beta))

    def bring(
        self,
        item: Item,
        number: int,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        g: cute.Tensor,
        beta: cute.Tensor,
    ) -> Token:
        """Ask for a token's operands."""
        key_head = item.head // self.group
        words = self.together * BF16 // 4
        first = item.part * (self.together * BF16)
        lines = []
        for x in (q, k):
            at = address(x, (item.sequence, number, key_head), BF16) + I64(first)
            parts = [
                ptx.load_constant(at, chunk * ROW_LANES * self.together * BF16, words)
                for chunk in range(self.chunks)
            ]
            lines.append([word for part in parts for word in part])
        at = address(v, (item.sequence, number, item.head), BF16) + I64(item.row * BF16)
        values = ptx.load_constant(at, 0, self.plan.rows // 2)
        where = (item.sequence, number, item.head)
        return Token(lines[0], lines[1], values, scalar(g, where), scalar(beta, where))

    def head_gate(self, item: Item, A_log: cute.Tensor, dt_bias: cute.Tensor) -> HeadGate:
        if not self.raw_gate:
            return HeadGate(None, None)
        return HeadGate(scalar(A_log, (item.head,)), scalar(dt_bias, (item.head,)))

    def slots(self, item: Item, state_indices: cute.Tensor) -> list[Any]:
        """Those that tokens are written to."""
        row = address(state_indices, (item.sequence, 0), 4)
        if self.tokens == 1:
            return ptx.load_constant(row, 0, 1)
        step = I64(state_indices.stride[1]) * 4
        return [ptx.load_constant(row + step * number, 0, 1)[0] for number in range(self.tokens)]

    def choice(self, item: Item, num_accepted: cute.Tensor, read_indices: cute.Tensor) -> Any:
        """What says which slot is read; None where the first is."""
        given = num_accepted if read_indices is None else read_indices
        if given is None:
            return None
        return ptx.load_constant(address(given, (item.sequence,), 4), 0, 1)[0]

    def slot_read(
        self, slots: list[Any], chosen: Any, num_accepted: cute.Tensor, read_indices: cute.Tensor
    ) -> Any:
        """A count beyond the tokens, which a sequence of padding may have, is taken for the nearest."""
        if read_indices is not None:
            return chosen
        found = slots[0]
        if num_accepted is not None:
            for number in range(1, self.tokens):
                found = ptx.pick(chosen > number, slots[number], found)
        return found

    def tile(self, item: Item, slot: Any, state: cute.Tensor) -> Any:
        """Where this thread's first chunk lies in a slot."""
        row_bytes = HEAD_DIM * self.size
        slot_at = state.iterator.toint() + I64(slot) * (I64(state.stride[0]) * self.size)
        return slot_at + I64((item.head * HEAD_DIM + item.row) * row_bytes + item.part * CHUNK)

    def load_state(self, tile: Any) -> list[list[Any]]:
        """Of each of this thread's rows its words, all asked for before any is looked at."""
        row_bytes = HEAD_DIM * self.size
        found = []
        for row in range(self.plan.rows):
            chunks = [
                ptx.load(tile, row * row_bytes + chunk * ROW_LANES * CHUNK, self.plan.load, self.kind)
                for chunk in range(self.chunks)
            ]
            found.append([word for chunk in chunks for word in chunk])
        return found

    def store_state(self, tile: Any, rows: list[list[Any]]) -> None:
        row_bytes = HEAD_DIM * self.size
        for number, row in enumerate(rows):
            words = row if self.size == 4 else packed(row)
            for chunk in range(self.chunks):
                ptx.store(
                    tile,
                    number * row_bytes + chunk * ROW_LANES * CHUNK,
                    words[4 * chunk : 4 * chunk + 4],
                    self.plan.store,
                )

    def floats(self, row: list[Any]) -> list[Any]:
        """A row's elements of this lane: as they are, or of the words that were loaded."""
        return row if isinstance(row[0], F32) else unpacked(row)

    @cute.jit
    def store_outputs(self, item: Item, number: int, outputs: list[Any], o: cute.Tensor) -> None:
        if item.part == 0:
            at = address(o, (item.sequence, number, item.head), BF16) + I64(item.row * BF16)
            ptx.store(at, 0, packed(outputs), "none")


def address(x: cute.Tensor, where: tuple[Any, ...], size: int) -> Any:
    """Of an element, the last axes left out being 0; `size` bytes each."""
    elements = sum((I64(place) * I64(x.stride[axis]) for axis, place in enumerate(where)), I64(0))
    return x.iterator.toint() + elements * size


def scalar(x: cute.Tensor, where: tuple[Any, ...]) -> Any:
    """An element as a float."""
    return ptx.load_float(address(x, where, x.element_type.width // 8), x.element_type)


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
