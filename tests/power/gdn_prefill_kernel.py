# SPDX-License-Identifier: Apache-2.0
"""gdn_prefill in torch, chunk by chunk, every step of which a variant or a fault replaces.

    g_cu      = cumsum(g) inside the chunk
    Gamma     = exp(g_cu_i - g_cu_j), i >= j
    A         = strict_lower(beta_i (K K^T) Gamma)
    Ai        = (I + A)^-1
    U         = Ai (beta V)
    W         = Ai (beta exp(g_cu) K)
    V_new     = U - W S^T
    S_next    = exp(g_last) S + (V_new exp(g_last - g_cu))^T K
    P         = lower(Q K^T Gamma)
    O         = scale (exp(g_cu) Q S^T + P V_new)

Written from these equations alone. Rounding is flash-linear-attention's: Ai, beta V, beta exp(g_cu) K, U, W,
h, V_new (scaled and not) and P in bf16, sums in fp32. `Prefill(A=function)` passes that intermediate through
`function(A, chunks)`.

Shapes: c chunks of C tokens; q, k [c, Hv, C, K], v, U, V_new, O [c, Hv, C, V], gates [c, Hv, C], squares
[c, Hv, C, C], states [., Hv, V, K].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.power.number_formats import Exp, in_format
from tests.power.products import Product, plain

CLOSED = -120.0
"""exp of this is 0 in float32, so a gate that is lower, or -inf, may be replaced by it."""

SERVED = dict.fromkeys(
    ("q", "k", "Ai", "beta_v", "beta_k", "U", "W", "h", "V_new", "V_scaled", "P"), "bfloat16"
)
"""What flash-linear-attention stores in the inputs' dtype."""


@dataclass(frozen=True)
class Chunks:
    """The chunks that a step works on, and what it must know of the call."""

    size: int
    sequence: Tensor  # [c]
    index: Tensor  # [c] position of the chunk in its sequence
    start: Tensor  # [c] first token
    length: Tensor  # [c] tokens, at most `size`
    offsets: Tensor  # [N+1] chunks before each sequence
    tokens: int
    io: torch.dtype
    scale: float

    @classmethod
    def cut(cls, cu_seqlens: Tensor, size: int, io: torch.dtype, scale: float) -> Chunks:
        bounds = cu_seqlens.long()
        counts = (bounds.diff() + size - 1) // size
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        sequence = torch.arange(len(counts)).repeat_interleave(counts)
        index = torch.arange(int(offsets[-1])) - offsets[sequence]
        start = bounds[sequence] + index * size
        length = (bounds[sequence + 1] - start).clamp(max=size)
        return cls(size, sequence, index, start, length, offsets, int(bounds[-1]), io, scale)

    def pick(self, chunks: Tensor) -> Chunks:
        """Some of the chunks."""
        rows = {name: getattr(self, name)[chunks] for name in ("sequence", "index", "start", "length")}
        return replace(self, **rows)

    @property
    def rows(self) -> Tensor:
        """[c, C]: the token of each row, also past the chunk's end."""
        return self.start.unsqueeze(1) + torch.arange(self.size)

    @property
    def inside(self) -> Tensor:
        """[c, C]: whether a row is a token of the chunk."""
        return torch.arange(self.size) < self.length.unsqueeze(1)

    @property
    def is_last(self) -> Tensor:
        """[c]: whether a chunk is its sequence's last."""
        return self.index == self.offsets.diff()[self.sequence] - 1


Edit = Callable[[Tensor, Chunks], Tensor]


class Prefill:
    """A kernel of gdn_prefill. `stored`: the formats that differ from `SERVED`."""

    conventions: Mapping[str, Any] = {"gate": ("log",), "state_layout": ("VK",), "qk": ("normalised",)}

    def __init__(
        self,
        *,
        chunk: int = 64,
        compute: torch.dtype = torch.float32,
        stored: Mapping[str, str] | None = None,
        product: Product = plain,
        exp: Exp = torch.exp,
        norm_inside: bool = False,
        **edits: Edit,
    ) -> None:
        self.chunk, self.compute, self.product, self.exp = chunk, compute, product, exp
        self.stored = {**SERVED, **(stored or {})}
        self.edits = edits
        if norm_inside:
            self.conventions = {**self.conventions, "qk": ("normalised", "raw")}

    def __call__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        cu_seqlens: Tensor,
        o: Tensor,
        initial_state: Tensor | None = None,
        final_state: Tensor | None = None,
        scale: float | None = None,
        qk: str = "normalised",
        **_: Any,
    ) -> dict[str, Tensor]:
        chunks = Chunks.cut(cu_seqlens, self.chunk, v.dtype, k.shape[2] ** -0.5 if scale is None else scale)
        chunks = self.planned(chunks)
        keys = self.key_heads(k.shape[1], v.shape[1])
        if qk == "raw":
            q, k = self.normalise(q, "q"), self.normalise(k, "k")
        q, k = (self.store(name, x.to(self.compute), chunks) for name, x in (("q", q), ("k", k)))
        q = self.edit("q", self.load(q[:, self.query_heads(keys)], chunks), chunks)
        k = self.edit("k", self.load(k[:, keys], chunks), chunks)
        v = self.edit("v", self.load(v.to(self.compute), chunks), chunks)
        g = self.edit("g", self.load_gates(g.to(self.compute), chunks), chunks)
        beta = self.edit("beta", self.load(beta.to(self.compute), chunks), chunks)
        g_cu = self.edit("g_cu", self.sum_gates(g), chunks)
        ai = self.inverse(self.form_a(k, g_cu, beta, chunks), chunks)
        u, w = self.form_uw(k, v, g_cu, beta, ai, chunks)
        state = self.first_state(initial_state, len(cu_seqlens) - 1, v.shape[1], v.shape[3], k.shape[3])
        state = self.edit("S0", state, chunks)
        h, v_new, last = self.scan(state, k, u, w, g_cu, chunks)
        out = self.read_out(q, k, g_cu, h, v_new, chunks)
        self.write(o, self.edit("o", out, chunks), chunks)
        found = {"o": o}
        if final_state is not None:
            found["final_state"] = self.edit("final", last, chunks).to(final_state.dtype)
        return self.finish(found, chunks)

    def edit(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        return self.edits[name](x, chunks) if name in self.edits else x

    def store(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        """`x` rounded to the format in which this kernel stores it."""
        if self.compute == torch.float64:
            return x
        return in_format(x, self.stored.get(name, "float32"), chunks.io)

    def planned(self, chunks: Chunks) -> Chunks:
        return chunks

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        """[Hv]: the key head of each value head."""
        return torch.arange(value_heads) // (value_heads // heads)

    def query_heads(self, keys: Tensor) -> Tensor:
        return keys

    def normalise(self, x: Tensor, name: str) -> Tensor:
        wide = x.to(self.compute)
        return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)

    def load(self, x: Tensor, chunks: Chunks) -> Tensor:
        """Rows [c, heads, C, ...] of x [T, heads, ...]; zeros past a chunk's end."""
        rows = (
            x[chunks.rows.clamp(max=len(x) - 1)] if len(x) else x.new_zeros(*chunks.rows.shape, *x.shape[1:])
        )
        keep = self.mask(chunks).view(*chunks.rows.shape, *(1,) * (x.ndim - 1))
        return torch.where(keep, rows, torch.zeros_like(rows)).movedim(2, 1)

    def mask(self, chunks: Chunks) -> Tensor:
        return chunks.inside

    def load_gates(self, g: Tensor, chunks: Chunks) -> Tensor:
        return self.load(g.clamp(min=CLOSED), chunks)

    def sum_gates(self, g: Tensor) -> Tensor:
        return g.cumsum(-1)

    def decay(self, g_cu: Tensor, chunks: Chunks) -> Tensor:
        """Gamma, lower triangular."""
        exponent = g_cu.unsqueeze(-1) - g_cu.unsqueeze(-2)
        above = torch.ones(self.chunk, self.chunk, dtype=torch.bool).triu(1)
        return self.edit("Gamma", self.exp(exponent.masked_fill(above, -torch.inf)), chunks)

    def form_a(self, k: Tensor, g_cu: Tensor, beta: Tensor, chunks: Chunks) -> Tensor:
        scores = self.product(k, k.mT)
        a = (beta.unsqueeze(-1) * scores * self.edit("Gamma_A", self.decay(g_cu, chunks), chunks)).tril(-1)
        return self.store("A", self.edit("A", a, chunks), chunks)

    def inverse(self, a: Tensor, chunks: Chunks) -> Tensor:
        return self.store("Ai", self.edit("Ai", self.invert(a), chunks), chunks)

    def invert(self, a: Tensor) -> Tensor:
        """(I + A)^-1: substitution in blocks of 16, then the blocks below the diagonal."""
        size = min(16, self.chunk)
        count = self.chunk // size
        blocks = a.reshape(*a.shape[:-2], count, size, count, size)  # [c, Hv, m, 16, n, 16]
        inverse = torch.zeros_like(blocks)
        for m in range(count):
            inverse[..., m, :, m, :] = self.invert_block(blocks[..., m, :, m, :])
        for distance in range(1, count):
            for m in range(distance, count):
                self.merge(blocks, inverse, m, m - distance)
        return inverse.flatten(-2).flatten(-3, -2)

    def invert_block(self, a: Tensor) -> Tensor:
        return substitute(a)

    def merge(self, a: Tensor, inverse: Tensor, m: int, n: int) -> None:
        """Block (m, n) of the inverse: -Ai_mm sum_j A_mj Ai_jn."""
        terms = [self.product(a[..., m, :, j, :], inverse[..., j, :, n, :]) for j in range(n, m)]
        below = self.product(inverse[..., m, :, m, :].contiguous(), torch.stack(terms).sum(0))
        inverse[..., m, :, n, :] = -below

    def form_uw(
        self, k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, chunks: Chunks
    ) -> tuple[Tensor, Tensor]:
        beta_v = self.store("beta_v", v * beta.unsqueeze(-1), chunks)
        factor = beta * self.edit("exp_W", self.exp(g_cu), chunks)
        beta_k = self.store("beta_k", k * factor.unsqueeze(-1), chunks)
        u = self.store("U", self.edit("U", self.product(ai, beta_v), chunks), chunks)
        return u, self.store("W", self.edit("W", self.product(ai, beta_k), chunks), chunks)

    def first_state(self, given: Tensor | None, n: int, value_heads: int, v: int, k: int) -> Tensor:
        if given is None:
            return torch.zeros(n, value_heads, v, k, dtype=self.compute)
        return given.to(self.compute, copy=True).contiguous()

    def scan(
        self, state: Tensor, k: Tensor, u: Tensor, w: Tensor, g_cu: Tensor, chunks: Chunks
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(h, V_new, final states)."""
        h = state.new_zeros(len(u), *state.shape[1:])
        v_new = torch.zeros_like(u)
        for at in self.waves(chunks):
            part = chunks.pick(at)
            before = self.edit("S", state[part.sequence], part)
            h[at] = self.store("h", before, part)
            new = self.edit("V_new", u[at] - self.product(w[at], h[at].mT), part)
            v_new[at] = self.store("V_new", new, part)
            after = self.advance(before, new, k[at], g_cu[at], part)
            state[part.sequence] = self.edit("S_next", after, part)
        return self.edit("h", h, chunks), self.edit("V_used", v_new, chunks), state

    def waves(self, chunks: Chunks) -> Iterator[Tensor]:
        """Chunks that are independent of each other, step by step: the i-th of every sequence."""
        for i in range(int(chunks.offsets.diff().max()) if len(chunks.offsets) > 1 else 0):
            yield torch.nonzero(chunks.index == i).flatten()

    def advance(self, state: Tensor, v_new: Tensor, k: Tensor, g_cu: Tensor, chunks: Chunks) -> Tensor:
        g_last = self.edit("g_last", g_cu[..., -1:], chunks)
        factor = self.edit("exp_V", self.exp(g_last - g_cu), chunks)
        scaled = self.store("V_scaled", v_new * factor.unsqueeze(-1), chunks)
        kept = self.edit("exp_last", self.exp(g_last), chunks)
        return state * kept.unsqueeze(-1) + self.product(scaled.mT, k)

    def read_out(
        self, q: Tensor, k: Tensor, g_cu: Tensor, h: Tensor, v_new: Tensor, chunks: Chunks
    ) -> Tensor:
        scores = self.product(q, k.mT)
        p = (scores * self.edit("Gamma_P", self.decay(g_cu, chunks), chunks)).tril()
        p = self.store("P", self.edit("P", p, chunks), chunks)
        inter = self.product(q, h.mT) * self.edit("exp_Q", self.exp(g_cu), chunks).unsqueeze(-1)
        return chunks.scale * (inter + self.product(p, v_new))

    def write(self, o: Tensor, out: Tensor, chunks: Chunks) -> None:
        inside = self.written(chunks)
        o[chunks.rows[inside]] = self.round_output(out.movedim(1, 2)[inside], o.dtype)

    def written(self, chunks: Chunks) -> Tensor:
        return chunks.inside

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def finish(self, found: dict[str, Tensor], chunks: Chunks) -> dict[str, Tensor]:
        return found


def substitute(a: Tensor) -> Tensor:
    """(I + A)^-1 of strictly lower A [..., n, n], row after row."""
    n = a.shape[-1]
    inverse = torch.eye(n, dtype=a.dtype).expand(a.shape).clone()
    for i in range(1, n):
        row = a[..., i, None, :i] @ inverse[..., :i, :]
        inverse[..., i, :] -= row.squeeze(-2)
    return inverse
