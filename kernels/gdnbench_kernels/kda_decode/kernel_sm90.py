"""Decode of Kimi Delta Attention: gdn_decode's `StateUpdate` with a gate per key channel. CuTe DSL, sm_90a
and sm_100a.

gdn_decode/kernel_sm90.py has the division of a call among CTAs, warps and lanes, the other tensors, the waits
and the limits, which hold here too. alpha [128] multiplies the columns of S before the sums, so that an
element still costs four operations:

    alpha = exp(g)                     gate log
            exp(-exp(A_log) softplus(g + dt_bias))                   raw
            exp(lower_bound sigmoid(exp(A_log) (g + dt_bias)))       bounded
    beta                               or beta_max sigmoid(beta)     beta_form logit
    S'    = S diag(alpha)
    u     = beta (v - n(k) (S' k))
    o     = scale n(q) (S' q) + scale n(k) n(q) (k . q) u
    S     = S' + n(k) u k^T

    tensor     shape            dtype              layout
    g          B, S, Hv, 128    f32, bf16 or f16   rows of 128 contiguous; each row aligned to 4 elements
    beta       B, S, Hv         f32, bf16 or f16   any strides
    A_log      Hv               f32                contiguous; not with log; dt_bias and, with bounded, A_log
    dt_bias    Hv, 128          f32 or bf16        may be absent

    who          does                                                      waits for
    lane l       copies channels 4 l to 4 l + 3 of each token's g by       nothing; arrives at `qkv_barrier`
                 `cp.async`
    lane l       computes alpha of these channels, all tokens, and stores  `qkv_barrier`, A_log, dt_bias
                 it where g was: 16 bytes that no other lane writes
    every lane   loads alpha of its 16 channels for two rows at a time     the warp barrier after that

alpha is computed once per warp, whatever the number of rows, passes and tokens. A gate of 0, from g = -inf or
far below, clears its column. The taps of kernel_sm90_taps.py are options of this class: alpha_t is
[B, S, Hv, 128].
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from gdnbench_kernels.gdn_decode import gate_math, ptx
from gdnbench_kernels.gdn_decode.decode_plan import ROW_LANES
from gdnbench_kernels.gdn_decode.kernel_sm90 import CHUNK, F32, I32, I64, StateUpdate, address
from gdnbench_kernels.gdn_decode.kernel_sm90_bulk import BulkLoads, BulkUpdate
from gdnbench_kernels.gdn_decode.kernel_sm90_taps import FLOAT, store_updates
from gdnbench_kernels.gdn_decode.kernel_values import Factors, Gates, KernelParams, Taps, Token, WorkTile
from gdnbench_kernels.kda_decode.decode_plan import GATE_BYTES, GATE_ELEMENTS, ChannelPlan


class ChannelUpdate(StateUpdate):
    """The kernel with a gate per channel. `tap`: dump or inject, or None for the build without taps."""

    def __init__(
        self,
        tokens: int,
        group: int,
        state_dtype: str,
        gate: str,
        beta_form: str,
        qk: str,
        plan: ChannelPlan,
        tap: str | None,
    ) -> None:
        super().__init__(tokens, group, state_dtype, gate, qk, plan)
        self.gate = gate
        self.logit = beta_form == "logit"
        self.tap = tap

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
        alpha_t: cute.Tensor,
        beta_t: cute.Tensor,
        delta_t: cute.Tensor,
        scale: cutlass.Float32,
        beta_max: cutlass.Float32,
        lower_bound: cutlass.Float32,
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
            None if self.tap is None else Taps(alpha_t, beta_t, delta_t),
            scale,
            beta_max,
            lower_bound,
        )
        self.kernel(params).launch(**self.launch(v, stream))

    def load_channel_gates_async(self, work: WorkTile, number: int, params: KernelParams) -> None:
        """Start cp.async of this lane's channels of g."""
        size = params.g.element_type.width // 8 * GATE_ELEMENTS
        source = address(params.g, (work.sequence, number, work.head), size // GATE_ELEMENTS)
        ptx.cp_async(self.gates_at(work, number), source + I64(work.lane * size), size)

    def load_gates(self, work: WorkTile, params: KernelParams) -> Gates:
        """Beta of this lane's token, A_log, and dt_bias of this lane's channels."""
        beta = self.scalar(params.beta, (work.sequence, self.own_token(work), work.head))
        A_log, dt_bias = params.A_log, params.dt_bias
        rate = None if A_log is None else self.scalar(A_log, (work.head,))
        if dt_bias is None:
            return Gates(None, beta, rate, None)
        kind = dt_bias.element_type
        size = kind.width // 8
        at = address(dt_bias, (work.head,), size) + I64(work.lane * (GATE_ELEMENTS * size))
        return Gates(None, beta, rate, ptx.floats_of(ptx.load_words(at, GATE_ELEMENTS * size // FLOAT), kind))

    def gates(self, given: Gates, beta_max: Any) -> tuple[Any, ...]:
        """(beta,) of this lane's token."""
        return (ptx.multiply(beta_max, gate_math.sigmoid(given.beta)) if self.logit else given.beta,)

    @cute.jit
    def make_channel_gates(self, work: WorkTile, given: Gates, params: KernelParams) -> None:
        """Replace g in shared memory by alpha. After the last token a warp barrier."""
        kind = params.g.element_type
        rate = None if given.A_log is None else gate_math.exp(given.A_log)
        for number in cutlass.range(self.tokens, unroll=1):
            at = self.gates_at(work, number)
            words = ptx.load_shared(at, 0, GATE_ELEMENTS * kind.width // (8 * FLOAT))
            alphas = self.alphas(ptx.floats_of(words, kind), rate, given.dt_bias, params.lower_bound)
            ptx.store_shared(at, 0, self.tap_alphas(work, number, alphas, params.taps))
        cute.arch.sync_warp()

    def alphas(self, given: list[Any], rate: Any, bias: list[Any] | None, lower_bound: Any) -> list[Any]:
        """The gates of this lane's channels, from their elements of g and dt_bias, and exp(A_log)."""
        if self.gate != "log" and bias is not None:
            given = [ptx.add(x, one) for x, one in zip(given, bias, strict=True)]
        if self.gate == "raw":
            given = [ptx.multiply(ptx.negative(rate), gate_math.softplus(x)) for x in given]
        if self.gate == "bounded":
            given = [x if rate is None else ptx.multiply(rate, x) for x in given]
            given = [ptx.multiply(lower_bound, gate_math.sigmoid(x)) for x in given]
        return [gate_math.exp(x) for x in given]

    def gates_at(self, work: WorkTile, number: Any) -> Any:
        """Shared-memory address of the channels of a token's gates that this lane computes."""
        return work.operands + (number + 1) * self.plan.token_bytes - GATE_BYTES + work.lane * CHUNK

    def token(self, work: WorkTile, number: int, gates: tuple[Any, ...], scale: Any) -> Token:
        queries, keys = self.operands(work, number)
        factors = self.factors((None, self.broadcast(gates[0], number)), keys, queries, scale)
        own = self.gates_at(work, number) - work.lane * CHUNK + work.part * (self.chunk_elements * FLOAT)
        return Token(queries, keys, factors, own)

    def factors(self, gate: tuple[Any, Any], keys: list[Any], queries: list[Any], scale: Any) -> Factors:
        """The factors without alpha, which the rows have before they are summed."""
        _, beta = gate
        kq, k_factor, q_norm = self.norms(keys, queries)
        if not self.raw_qk:
            return Factors(None, k_factor, scale, ptx.multiply(scale, kq), k_factor, beta)
        sq_factor = ptx.multiply(scale, q_norm)
        u_factor = ptx.multiply(ptx.multiply(kq, k_factor), sq_factor)
        return Factors(None, k_factor, sq_factor, u_factor, k_factor, beta)

    def before_sums(self, token: Token, rows: list[list[Any]]) -> list[list[Any]]:
        """The rows, decayed: alpha of this lane's channels is loaded for two rows at a time, and not held in
        registers."""
        step = 4 * FLOAT
        decays: list[Any] = []
        for chunk in range(self.chunks):
            first = chunk * ROW_LANES * self.chunk_elements * FLOAT
            for part in range(0, self.chunk_elements * FLOAT, step):
                decays += ptx.load_shared(token.decays, first + part, 4, F32)
        return [
            [ptx.multiply(decay, x) for decay, x in zip(decays, self.to_floats(row), strict=True)]
            for row in rows
        ]

    def after_sums(self, token: Token, x: Any) -> Any:
        return x

    def tap_gates(self, work: WorkTile, gates: tuple[Any, ...], taps: Any) -> tuple[Any, ...]:
        """Store beta, or load another in its place."""
        if self.tap is None:
            return gates
        where = (work.sequence, self.own_token(work), work.head)
        if self.tap == "inject":
            return (self.scalar(taps.beta, where),)
        # Lanes past the last token repeat it: they store nothing.
        mine = ptx.select_value(work.first_row == 0, I32(self.tokens - 1) - work.lane, I32(-1))
        ptx.store_if(mine, address(taps.beta, where, FLOAT), [gates[0]])
        return gates

    def tap_alphas(self, work: WorkTile, number: Any, alphas: list[Any], taps: Any) -> list[Any]:
        """Store alpha of this lane's channels, or load others in their place."""
        if self.tap is None:
            return alphas
        at = address(taps.alpha, (work.sequence, number, work.head), FLOAT) + I64(work.lane * CHUNK)
        if self.tap == "inject":
            return ptx.load_words(at, GATE_ELEMENTS, F32)
        ptx.store_if(-work.first_row, at, alphas)
        return alphas

    def tap_updates(self, work: WorkTile, number: int, updates: list[Any], taps: Any) -> None:
        if self.tap is not None:
            store_updates(work, number, updates, taps, self.plan)


class ChannelBulkLoads(ChannelUpdate, BulkLoads):
    """Loads the state by cp.async.bulk."""


class ChannelBulkUpdate(ChannelUpdate, BulkUpdate):
    """Loads and stores the state by cp.async.bulk."""
