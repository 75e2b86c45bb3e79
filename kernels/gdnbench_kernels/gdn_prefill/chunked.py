"""The chunked form of the gated delta rule in a given arithmetic, with one step per published kernel.

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

These are stored and therefore rounded: A, Ai, Ai beta, Ai beta exp(g), U, W, h, V_new, V_new exp(g_last -
g_cu), P, O. V_new and its scaled form are both rounded from the same unrounded difference. The state itself
is not rounded between chunks. The inverse is a triangular solve in fp64 of the stored A, then rounded. So the
error of a kernel's inversion is compared with the error of storage alone.

Shapes: c chunks of C tokens; q, k [c, H, C, K], v [c, Hv, C, V], gates [c, Hv, C], states [.., Hv, V, K].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench_kernels.gdn import default_scale, in_vk, log_decay, normalised, per_value_head
from gdnbench_kernels.gdn_prefill.chunks import ChunkPlan, gather_chunks, plan_chunks, scatter_chunks
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.rounding import Arithmetic

# Independent chunks processed at once: with 64 chunks and 32 heads an fp32 [C, C] intermediate takes 32 MiB.
CHUNKS_AT_ONCE = 64

# exp(-128) is 0 in fp32, like exp(-inf), and negligible beside any other term in fp64; but -128 - -128 is 0,
# while -inf - -inf is NaN.
CLOSED_GATE = -128.0

# Lower finite gates are replaced by this: exp of either is 0, and the sum of a chunk of these is finite in
# fp32.
LEAST_GATE = -(2.0**100)


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """The tensors of a prefill call in the caller's conventions."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    initial_state: Tensor | None  # [N, Hv, V, K]: a view if the caller's layout is KV
    plan: ChunkPlan
    scale: float
    gate: str = "log"
    qk: str = "normalised"

    @classmethod
    def from_params(cls, params: PrefillParams) -> PrefillInputs:
        """The tensors of that call. Waits for the device, to read cu_seqlens."""
        first = params.initial_state
        return cls(
            params.q,
            params.k,
            params.v,
            params.g,
            params.beta,
            None if first is None else in_vk(first, params.state_layout),
            plan_chunks(params.cu_seqlens, params.chunk_size),
            default_scale(params.scale, params.k.shape[2]),
            params.gate,
            params.qk,
        )


def causal_decay(g_cu: Tensor) -> Tensor:
    """Gamma [c, Hv, C, C]: exp(g_cu[i] - g_cu[j]) for i >= j, 0 above; no exponent is positive."""
    size = g_cu.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=g_cu.device).triu(1)
    return (g_cu.unsqueeze(-1) - g_cu.unsqueeze(-2)).masked_fill(above, -torch.inf).exp()


def chunk_cumsum(g: Tensor) -> Tensor:
    """g_cu [c, Hv, C] of log-space gates. A gate of -inf (alpha = 0) is replaced by `CLOSED_GATE`, a finite
    one below `LEAST_GATE` by that, and +inf, which is no decay, by NaN."""
    counted = g.clamp(min=LEAST_GATE).masked_fill(g.isneginf(), CLOSED_GATE)
    return counted.masked_fill(g.isposinf(), torch.nan).cumsum(-1)


def form_a(k: Tensor, g_cu: Tensor, beta: Tensor, arithmetic: Arithmetic) -> Tensor:
    """A [c, Hv, C, C], rounded to the stored dtype."""
    k = arithmetic.load(k)
    products = per_value_head(k @ k.mT, g_cu.shape[1], axis=1)
    # tril after the product: above the diagonal the decay is 0, and 0 * NaN is NaN.
    return arithmetic.store((beta.unsqueeze(-1) * products * causal_decay(g_cu)).tril(-1))


def invert(a: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Ai = (I + A)^-1 [c, Hv, C, C], rounded to the stored dtype; otherwise exact."""
    a = a.double()
    identity = torch.eye(a.shape[-1], dtype=torch.float64, device=a.device).expand(a.shape)
    inverse = torch.linalg.solve_triangular(a, identity, upper=False, unitriangular=True)
    spoilt = ~a.isfinite().flatten(-2).all(-1)
    if bool(spoilt.any()):
        inverse[spoilt] = _substitute(a[spoilt])
    return arithmetic.store(inverse.tril(-1) + identity)


def _substitute(a: Tensor) -> Tensor:
    """(I + A)^-1 [n, C, C] of matrices that are not all finite. Element (i, j) uses only rows j .. i and
    columns j .. i of A; a solver would add 0 * NaN of the columns before j."""
    size = a.shape[-1]
    inverse = torch.eye(size, dtype=a.dtype, device=a.device).repeat(len(a), 1, 1)
    for i in range(1, size):
        terms = (a[:, i, :i, None] * inverse[:, :i, :i]).tril()  # [n, m, j]: zero for m < j
        inverse[:, i, :i] = -terms.sum(1)
    return inverse


def form_uw(
    k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """U [c, Hv, C, V] and W [c, Hv, C, K], rounded to the stored dtype."""
    load, store = arithmetic.load, arithmetic.store
    ai_beta = load(ai) * beta.unsqueeze(-2)
    u = load(store(ai_beta)) @ load(v)
    w = load(store(ai_beta * g_cu.exp().unsqueeze(-2))) @ per_value_head(load(k), v.shape[1], axis=1)
    return store(u), store(w)


def form_p(q: Tensor, k: Tensor, g_cu: Tensor, arithmetic: Arithmetic) -> Tensor:
    """P [c, Hv, C, C], rounded to the stored dtype."""
    products = per_value_head(arithmetic.load(q) @ arithmetic.load(k).mT, g_cu.shape[1], axis=1)
    return arithmetic.store((products * causal_decay(g_cu)).tril())


def advance_state(
    state: Tensor, k: Tensor, u: Tensor, w: Tensor, g_cu: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor, Tensor]:
    """(h, V_new, next state) of one chunk of each sequence; the first two are rounded, the state is not.

    state is [n, Hv, V, K] in the arithmetic's `compute`. Rows past a sequence's end have U = W = 0 and the
    last token's g_cu, so they add nothing.
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
    """O [c, Hv, C, V], rounded to the stored dtype."""
    load = arithmetic.load
    from_state = per_value_head(load(q), h.shape[1], axis=1) @ load(h).mT
    return arithmetic.store(scale * (g_cu.exp().unsqueeze(-1) * from_state + load(p) @ load(v_new)))


class ChunkedPrefill:
    """The steps over a whole call. Each step reads `stages`, to which the earlier steps have added theirs;
    every stage is stored by chunk, [C, Hv, ...]."""

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

    def run_steps(self) -> Tensor:
        """Run all steps and return o [T, Hv, V]; afterwards `stages` and `state` (the final state, unrounded)
        are set."""
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
        """q or k of a block of chunks, rounded to the stored dtype."""
        rows = gather_chunks(x, *self.plan.part(block.start, block.stop))
        return self.arithmetic.store(normalised(rows, self.inputs.qk, self.arithmetic.compute))

    def scan(self) -> None:
        """Process chunk after chunk; each step processes one chunk of every sequence that still has one."""
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
    """The stages, or those in `names`, in the contract's shapes; elements that belong to no token are NaN.

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
    """Set stage `name` from `published`, which has the contract's shape, in its own dtype: the inverse of
    `published_stages`."""
    plan, size = run.plan, run.plan.chunk_size
    if name == "g_cu":
        # Past the end of a sequence the sum is its last token's.
        last = plan.length[:, None] - 1
        tokens = plan.start[:, None] + torch.arange(size).minimum(last)
        run.stages[name] = published[tokens.to(published.device)].movedim(2, 1)
    elif name in _BY_ROW:
        by_row = published[: plan.total * size].reshape(plan.total, size, *published.shape[1:])
        run.stages[name] = by_row.movedim(2, 1)
    else:
        run.stages[name] = published[: plan.total]
