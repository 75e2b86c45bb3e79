"""The chunked form of the gated delta rule in a given arithmetic: a step for each published kernel.

    g_cu      = cumsum(g) inside the chunk
    Gamma[i,j]= exp(g_cu[i] - g_cu[j])                  i >= j only: the exponent is never positive
    A         = strict_lower(beta_i (K K^T)[i,j] Gamma[i,j])
    Ai        = (I + A)^-1
    U         = (Ai beta_j) V
    W         = (Ai beta_j exp(g_cu_j)) K               1. form_a, invert, form_uw
    V_new     = U - W S^T                               S = state before the chunk, h its rounding
    S_next    = exp(g_last) S + (V_new exp(g_last - g_cu))^T K        2. advance_state
    P         = lower(Q K^T Gamma)
    O         = scale (exp(g_cu) Q S^T + P V_new)       3. form_p, read_out

Stored, hence rounded: A, Ai, Ai beta, Ai beta exp(g), U, W, h, V_new, V_new exp(g_last - g_cu), P, O. V_new
and its scaled form are both rounded from the same unrounded difference. The state itself is carried
unrounded. The inverse is exact: a triangular solve in fp64 of A as it is stored, then rounded, so that a
kernel's own method of inversion is judged against the error of storage alone.

Shapes: c chunks of C tokens; q, k [c, H, C, K], v [c, Hv, C, V], gates [c, Hv, C], states [.., Hv, V, K].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.gdn import log_decay, normalised, per_value_head
from gdnbench_kernels.gdn_prefill.chunks import ChunkPlan, gather_chunks, scatter_chunks
from gdnbench_kernels.rounding import Arithmetic

# Chunks worked on at once where chunks are independent: 64 of them with 32 heads keep an fp32 [C, C]
# intermediate at 32 MiB.
CHUNKS_AT_ONCE = 64

# exp(-128) is 0 in fp32, as exp(-inf) is, and lost beside any other term in fp64; but -128 - -128 is 0 where
# -inf - -inf is NaN.
CLOSED_GATE = -128.0

# What a lower finite gate counts as: exp of either is 0, and the sum of a chunk of these is finite in fp32.
LEAST_GATE = -(2.0**100)


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """A prefill call as the contract has it, its conventions still the caller's."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    initial_state: Tensor | None  # [N, Hv, V, K]: a view where the caller's layout is the other one
    plan: ChunkPlan
    scale: float
    gate: str = "log"
    qk: str = "normalised"


def causal_decay(g_cu: Tensor) -> Tensor:
    """Gamma [c, Hv, C, C]: exp(g_cu[i] - g_cu[j]) for i >= j, 0 above; never exp of a positive number."""
    size = g_cu.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=g_cu.device).triu(1)
    return (g_cu.unsqueeze(-1) - g_cu.unsqueeze(-2)).masked_fill(above, -torch.inf).exp()


def chunk_cumsum(g: Tensor) -> Tensor:
    """g_cu [c, Hv, C] of log-space gates. A gate of -inf (alpha = 0) counts as `CLOSED_GATE`, a finite one
    below `LEAST_GATE` as that, and one of +inf, which is no decay, as NaN."""
    counted = g.clamp(min=LEAST_GATE).masked_fill(g.isneginf(), CLOSED_GATE)
    return counted.masked_fill(g.isposinf(), torch.nan).cumsum(-1)


def form_a(k: Tensor, g_cu: Tensor, beta: Tensor, arithmetic: Arithmetic) -> Tensor:
    """A [c, Hv, C, C], stored."""
    k = arithmetic.load(k)
    products = per_value_head(k @ k.mT, g_cu.shape[1], axis=1)
    # tril after the product: the decay above the diagonal is 0, and 0 * NaN would be NaN there.
    return arithmetic.store((beta.unsqueeze(-1) * products * causal_decay(g_cu)).tril(-1))


def invert(a: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Ai = (I + A)^-1 [c, Hv, C, C], stored; exact but for its own rounding."""
    a = a.double()
    identity = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device).expand(a.shape)
    inverse = torch.linalg.solve_triangular(a, identity, upper=False, unitriangular=True)
    spoilt = ~a.isfinite().flatten(-2).all(-1)
    if bool(spoilt.any()):
        inverse[spoilt] = _substitute(a[spoilt])
    return arithmetic.store(inverse.tril(-1) + identity)


def _substitute(a: Tensor) -> Tensor:
    """(I + A)^-1 [n, C, C] of matrices that are not all finite: element (i, j) is made of rows j .. i and
    columns j .. i of A and of nothing else, where a solver adds 0 * NaN of the columns before j."""
    size = a.shape[-1]
    inverse = torch.eye(size, dtype=a.dtype, device=a.device).repeat(len(a), 1, 1)
    for i in range(1, size):
        terms = (a[:, i, :i, None] * inverse[:, :i, :i]).tril()  # [n, m, j]: none for m < j
        inverse[:, i, :i] = -terms.sum(1)
    return inverse


def form_uw(
    k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """U [c, Hv, C, V] and W [c, Hv, C, K], stored."""
    load, store = arithmetic.load, arithmetic.store
    ai_beta = load(ai) * beta.unsqueeze(-2)
    u = load(store(ai_beta)) @ load(v)
    w = load(store(ai_beta * g_cu.exp().unsqueeze(-2))) @ per_value_head(load(k), v.shape[1], axis=1)
    return store(u), store(w)


def form_p(q: Tensor, k: Tensor, g_cu: Tensor, arithmetic: Arithmetic) -> Tensor:
    """P [c, Hv, C, C], stored."""
    products = per_value_head(arithmetic.load(q) @ arithmetic.load(k).mT, g_cu.shape[1], axis=1)
    return arithmetic.store((products * causal_decay(g_cu)).tril())


def advance_state(
    state: Tensor, k: Tensor, u: Tensor, w: Tensor, g_cu: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """(h, V_new, next state) of one chunk of each sequence: the first two stored, the state carried
    unrounded.

    state is [n, Hv, V, K] in the arithmetic's `compute`; rows past a sequence's end have U = W = 0 and g_cu
    equal to that of the last token, hence add nothing.
    """
    load, store = arithmetic.load, arithmetic.store
    h = store(state)
    v_new = load(u) - load(w) @ load(h).mT
    g_last = g_cu[..., -1:]
    scaled = load(store(v_new * (g_last - g_cu).exp().unsqueeze(-1)))
    added = scaled.mT @ per_value_head(load(k), u.shape[1], axis=1)
    return h, store(v_new), state * g_last.exp().unsqueeze(-1) + added


def read_out(
    q: Tensor, g_cu: Tensor, p: Tensor, h: Tensor, v_new: Tensor, scale: float, arithmetic: Arithmetic
) -> Tensor:
    """O [c, Hv, C, V], stored."""
    load = arithmetic.load
    from_state = per_value_head(load(q), h.shape[1], axis=1) @ load(h).mT
    return arithmetic.store(scale * (g_cu.exp().unsqueeze(-1) * from_state + load(p) @ load(v_new)))


class ChunkedPrefill:
    """The steps over a whole call, each from what is in `stages`, where the ones before it have put theirs;
    every stage is kept chunk by chunk, [C, Hv, ...]."""

    def __init__(self, inputs: PrefillInputs, arithmetic: Arithmetic) -> None:
        self.inputs = inputs
        self.arithmetic = arithmetic
        self.plan = inputs.plan
        self.sequences = len(inputs.plan.offsets) - 1
        heads, key_dim = inputs.k.shape[1:]
        self.value_heads, self.value_dim = inputs.v.shape[1:]
        size, stored = inputs.plan.chunk_size, arithmetic.stored
        rows = (self.plan.total, self.value_heads)
        self.k = self._empty((self.plan.total, heads, size, key_dim), stored)
        for block in self._blocks():
            self.k[block] = self._rows(inputs.k, block)
        self.stages: dict[str, Tensor] = {
            "g_cu": self._empty((*rows, size), arithmetic.compute),
            "A": self._empty((*rows, size, size), stored),
            "Ai": self._empty((*rows, size, size), stored),
            "U": self._empty((*rows, size, self.value_dim), stored),
            "W": self._empty((*rows, size, key_dim), stored),
            "h": self._empty((*rows, self.value_dim, key_dim), stored),
            "V_new": self._empty((*rows, size, self.value_dim), stored),
            "P": self._empty((*rows, size, size), stored),
        }
        self.state = self._first_state(key_dim)

    def run(self) -> Tensor:
        """o [T, Hv, V]; afterwards `stages` and `state` (the final state, unrounded) are there to be read."""
        self.sum_gates()
        self.form_a()
        self.invert()
        self.form_uw()
        self.scan()
        self.form_p()
        return self.read_out()

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.inputs.v.device)

    def _first_state(self, key_dim: int) -> Tensor:
        given = self.inputs.initial_state
        if given is None:
            shape = (self.sequences, self.value_heads, self.value_dim, key_dim)
            return torch.zeros(shape, dtype=self.arithmetic.compute, device=self.inputs.v.device)
        return given.to(self.arithmetic.compute, copy=True).contiguous()

    def _blocks(self) -> list[slice]:
        return [
            slice(i, min(i + CHUNKS_AT_ONCE, self.plan.total))
            for i in range(0, self.plan.total, CHUNKS_AT_ONCE)
        ]

    def sum_gates(self) -> None:
        gates = log_decay(self.inputs.g, self.inputs.gate, self.arithmetic.compute)
        for block in self._blocks():
            rows = self.plan.part(block.start, block.stop)
            self.stages["g_cu"][block] = chunk_cumsum(gather_chunks(gates, *rows))

    def form_a(self) -> None:
        for block in self._blocks():
            g_cu = self.stages["g_cu"][block]
            self.stages["A"][block] = form_a(self.k[block], g_cu, self._beta(block), self.arithmetic)

    def invert(self) -> None:
        for block in self._blocks():
            self.stages["Ai"][block] = invert(self.stages["A"][block], self.arithmetic)

    def form_uw(self) -> None:
        stages = self.stages
        for block in self._blocks():
            v = gather_chunks(self.inputs.v, *self.plan.part(block.start, block.stop))
            given = (self.k[block], v, stages["g_cu"][block], self._beta(block), stages["Ai"][block])
            stages["U"][block], stages["W"][block] = form_uw(*given, self.arithmetic)

    def _beta(self, block: slice) -> Tensor:
        rows = self.plan.part(block.start, block.stop)
        return gather_chunks(self.inputs.beta.to(self.arithmetic.compute), *rows)

    def _rows(self, x: Tensor, block: slice) -> Tensor:
        """q or k of a block of chunks, stored."""
        rows = gather_chunks(x, *self.plan.part(block.start, block.stop))
        return self.arithmetic.store(normalised(rows, self.inputs.qk, self.arithmetic.compute))

    def scan(self) -> None:
        """Chunk after chunk; the step takes one chunk of every sequence that still has one."""
        stages = self.stages
        counts = self.plan.offsets.diff()
        for step in range(int(counts.max()) if len(counts) else 0):
            sequences = torch.nonzero(counts > step).flatten()
            chunks = (self.plan.offsets[sequences] + step).to(self.k.device)
            sequences = sequences.to(self.k.device)
            h, v_new, self.state[sequences] = advance_state(
                self.state[sequences],
                self.k[chunks],
                stages["U"][chunks],
                stages["W"][chunks],
                stages["g_cu"][chunks],
                self.arithmetic,
            )
            stages["h"][chunks], stages["V_new"][chunks] = h, v_new

    def form_p(self) -> None:
        for block in self._blocks():
            q, g_cu = self._rows(self.inputs.q, block), self.stages["g_cu"][block]
            self.stages["P"][block] = form_p(q, self.k[block], g_cu, self.arithmetic)

    def read_out(self) -> Tensor:
        """o [T, Hv, V]."""
        o = self._empty((self.plan.tokens, self.value_heads, self.value_dim), self.arithmetic.stored)
        for block in self._blocks():
            q = self._rows(self.inputs.q, block)
            g_cu, p, h, v_new = (self.stages[name][block] for name in ("g_cu", "P", "h", "V_new"))
            chunks = read_out(q, g_cu, p, h, v_new, self.inputs.scale, self.arithmetic)
            scatter_chunks(o, chunks, *self.plan.part(block.start, block.stop))
        return o


_BY_ROW = ("U", "W", "V_new")


def published_stages(run: ChunkedPrefill, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """The stages, or those of that name, in the shapes that the contract gives them; entries that no token
    owns are NaN.

    g_cu is [T, Hv]; U, W, V_new are [UB * C, Hv, *]; A, Ai, P, h are [UB, Hv, *, *].
    """
    plan = run.plan
    published = {}
    for name in run.stages if names is None else names:
        chunks = run.stages[name]
        if name == "g_cu":
            published[name] = chunks.new_full((plan.tokens, run.value_heads), torch.nan)
            scatter_chunks(published[name], chunks, *plan.part(0, plan.total))
            continue
        by_row = chunks.movedim(1, 2) if name in _BY_ROW else chunks
        padded = by_row.new_full((plan.bound, *by_row.shape[1:]), torch.nan)
        padded[: plan.total] = by_row
        published[name] = padded.flatten(0, 1) if name in _BY_ROW else padded
    return published


def put_stage(run: ChunkedPrefill, name: str, published: Tensor) -> None:
    """Makes stage `name` what `published` has in the contract's shape, in its own dtype: the inverse of
    `published_stages`."""
    plan, size = run.plan, run.plan.chunk_size
    if name == "g_cu":
        # Past the end of a sequence the sum stays that of its last token.
        last = plan.length[:, None] - 1
        tokens = plan.start[:, None] + torch.arange(size).minimum(last)
        run.stages[name] = published[tokens.to(published.device)].movedim(2, 1)
    elif name in _BY_ROW:
        by_row = published[: plan.total * size].reshape(plan.total, size, *published.shape[1:])
        run.stages[name] = by_row.movedim(2, 1)
    else:
        run.stages[name] = published[: plan.total]
