# SPDX-License-Identifier: Apache-2.0
"""Right kernels of gdn_prefill: the arithmetic and the orders of served kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.power import products
from tests.power.gdn_prefill_kernel import CLOSED, SERVED, Chunks, Prefill, substitute
from tests.power.library import Shelf
from tests.power.number_formats import LOG2_E, approximate_exp, exp2_of_scaled, flushed, signs

PUBLISHED = {"A": "bfloat16", "Ai_beta": "bfloat16", "Ai_beta_exp": "bfloat16"}


def all_in(name: str) -> dict[str, str]:
    """Every stored intermediate in one format; q and k stay what they are."""
    return {one: name for one in SERVED if one not in ("q", "k")}


class Published(Prefill):
    """The three-kernel SM100 design: beta and the gate scale the inverse's columns, not v's and k's rows."""

    def form_uw(
        self, k: Tensor, v: Tensor, g_cu: Tensor, beta: Tensor, ai: Tensor, chunks: Chunks
    ) -> tuple[Tensor, Tensor]:
        scaled = ai * beta.unsqueeze(-2)
        u = self.product(self.store("Ai_beta", scaled, chunks), v)
        gated = scaled * self.exp(g_cu).unsqueeze(-2)
        w = self.product(self.store("Ai_beta_exp", gated, chunks), k)
        return self.store("U", u, chunks), self.store("W", w, chunks)


class Substitution(Prefill):
    """The whole inverse row after row."""

    def invert(self, a: Tensor) -> Tensor:
        return substitute(a)


class Doubling(Prefill):
    """16 x 16 blocks by (I - A)(I + A^2)(I + A^4)(I + A^8), which is exact: A^16 = 0."""

    def invert_block(self, a: Tensor) -> Tensor:
        identity = torch.eye(a.shape[-1], dtype=a.dtype)
        inverse, power = identity - a, a
        for _ in range(3):
            power = power @ power
            inverse = inverse @ (identity + power)
        return inverse


class TriangularSolve(Prefill):
    """The inverse by LAPACK's triangular solver."""

    def invert(self, a: Tensor) -> Tensor:
        identity = torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)
        found: Tensor = torch.linalg.solve_triangular(a, identity, upper=False, unitriangular=True)
        return found


class Merged32(Prefill):
    """The inverse by recursive halves: 16, 32, 64."""

    def invert(self, a: Tensor) -> Tensor:
        n = a.shape[-1]
        if n <= 16:
            return substitute(a)
        m = n // 2
        first, second = self.invert(a[..., :m, :m]), self.invert(a[..., m:, m:])
        below = -self.product(self.product(second, a[..., m:, :m]), first)
        top = torch.cat([first, torch.zeros_like(below.mT)], -1)
        return torch.cat([top, torch.cat([below, second], -1)], -2)


class SplitValues(Prefill):
    """The state's value dim in two halves, as two CTAs scan it."""

    def scan(
        self, state: Tensor, k: Tensor, u: Tensor, w: Tensor, g_cu: Tensor, chunks: Chunks
    ) -> tuple[Tensor, Tensor, Tensor]:
        half = u.shape[-1] // 2
        parts = [
            super(SplitValues, self).scan(state[:, :, rows].contiguous(), k, u[..., rows], w, g_cu, chunks)
            for rows in (slice(0, half), slice(half, None))
        ]
        h, v_new, last = zip(*parts, strict=True)
        return torch.cat(h, 2), torch.cat(v_new, 3), torch.cat(last, 2)


class TransposedState(Prefill):
    """The state kept as [K, V]."""

    def advance(self, state: Tensor, v_new: Tensor, k: Tensor, g_cu: Tensor, chunks: Chunks) -> Tensor:
        g_last = g_cu[..., -1:]
        scaled = self.store("V_scaled", v_new * self.exp(g_last - g_cu).unsqueeze(-1), chunks)
        by_key = state.mT.contiguous()
        by_key = by_key * self.exp(g_last).unsqueeze(-1) + self.product(k.mT.contiguous(), scaled)
        return by_key.mT.contiguous()


class ScaledKeys(Prefill):
    """The state's update from decayed keys instead of decayed updates, as flash-linear-attention had it."""

    def advance(self, state: Tensor, v_new: Tensor, k: Tensor, g_cu: Tensor, chunks: Chunks) -> Tensor:
        g_last = g_cu[..., -1:]
        decayed = self.store("V_scaled", k * self.exp(g_last - g_cu).unsqueeze(-1), chunks)
        rounded = self.store("V_new", v_new, chunks)
        return state * self.exp(g_last).unsqueeze(-1) + self.product(rounded.mT, decayed)


class ScaledQueries(Prefill):
    """The scale multiplies q, in fp32, before either product."""

    def read_out(
        self, q: Tensor, k: Tensor, g_cu: Tensor, h: Tensor, v_new: Tensor, chunks: Chunks
    ) -> Tensor:
        q = q * chunks.scale
        p = self.store("P", (self.product(q, k.mT) * self.decay(g_cu, chunks)).tril(), chunks)
        return self.product(q, h.mT) * self.exp(g_cu).unsqueeze(-1) + self.product(p, v_new)


class FactoredDecay(Prefill):
    """Gamma of two blocks of 16 as exp(g_i - r) exp(r - g_j), r the sum at the first row of the later block:
    neither exponent is positive. Within a block it is the exp of the difference."""

    def decay(self, g_cu: Tensor, chunks: Chunks) -> Tensor:
        full = super().decay(g_cu, chunks)
        for start in range(16, self.chunk, 16):
            first = g_cu[..., start : start + 1]
            later = self.exp(g_cu[..., start : start + 16] - first)
            earlier = self.exp(first - g_cu[..., :start])
            full[..., start : start + 16, :start] = later.unsqueeze(-1) * earlier.unsqueeze(-2)
        return full


class OneChunkAtATime(Prefill):
    """Sequence after sequence, the last one first."""

    def waves(self, chunks: Chunks) -> Iterator[Tensor]:
        for at in torch.argsort(-chunks.sequence * 2**20 + chunks.index):
            yield at.unsqueeze(0)


class DoublingScan(Prefill):
    """The sums of gates by a scan of a warp: distances 1, 2, 4, ..."""

    def sum_gates(self, g: Tensor) -> Tensor:
        distance = 1
        while distance < g.shape[-1]:
            g = torch.cat([g[..., :distance], g[..., distance:] + g[..., :-distance]], -1)
            distance *= 2
        return g


class PrescaledGates(Prefill):
    """Gates summed in units of log 2, as flash-linear-attention keeps them; all exponentials are 2^x."""

    def sum_gates(self, g: Tensor) -> Tensor:
        return (g * LOG2_E).cumsum(-1)


class LinearGates(Prefill):
    """Gates given as alpha, as FlashInfer takes them."""

    conventions: Mapping[str, Any] = {**Prefill.conventions, "gate": ("linear",)}

    def load_gates(self, g: Tensor, chunks: Chunks) -> Tensor:
        return super().load_gates(g.log(), chunks)


class FastNorm(Prefill):
    """q and k normalised by rsqrt.approx."""

    def normalise(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        root = torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)
        return wide * (root * (1 + 2.0**-22 * signs(root)))


class FlushedPrefill(Prefill):
    """Subnormal operands and outputs are 0."""

    def store(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        return flushed(super().store(name, x, chunks))

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return flushed(flushed(x).to(dtype))


class RepeatedHeads(Prefill):
    """Keys repeated for their value heads, as callers without grouped value heads pass them."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.arange(heads).repeat_interleave(value_heads // heads)


class Recurrent:
    """Token after token in fp32, nothing rounded but the outputs."""

    conventions: Mapping[str, Any] = {
        "gate": ("log",),
        "state_layout": ("VK",),
        "qk": ("normalised", "raw"),
    }

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
        heads, (value_heads, value_dim), key_dim = q.shape[1], v.shape[1:], k.shape[2]
        factor = key_dim**-0.5 if scale is None else scale
        q, k = (x.float() for x in (q, k))
        if qk == "raw":
            q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        q, k = (x.repeat_interleave(value_heads // heads, 1) for x in (q, k))
        alpha = g.float().clamp(min=CLOSED).exp()
        bounds = cu_seqlens.long()
        state = torch.zeros(len(bounds) - 1, value_heads, value_dim, key_dim)
        if initial_state is not None:
            state += initial_state.float()
        lengths = bounds.diff()
        for step in range(int(lengths.max()) if len(lengths) else 0):
            running = torch.nonzero(lengths > step).flatten()
            token = bounds[running] + step
            s = state[running] * alpha[token, :, None, None]
            seen = (s @ k[token].unsqueeze(-1)).squeeze(-1)
            delta = beta[token].float().unsqueeze(-1) * (v[token].float() - seen)
            s = s + delta.unsqueeze(-1) * k[token].unsqueeze(-2)
            state[running] = s
            o[token] = ((s @ q[token].unsqueeze(-1)).squeeze(-1) * factor).to(o.dtype)
        if final_state is not None:
            final_state.copy_(state)
        return {}


shelf = Shelf("gdn_prefill", right=True)
for size in (16, 32, 64, 128):
    shelf.add("chunks", f"chunks of {size}", Prefill(chunk=size))
shelf.add("chunks", "token after token", Recurrent())
shelf.add("chunks", "one chunk at a time, last sequence first", OneChunkAtATime())
shelf.add("rounding", "the published three kernels", Published(stored=PUBLISHED))
shelf.add("rounding", "tf32 intermediates", Prefill(stored=all_in("tf32")))
shelf.add(
    "rounding", "tf32 intermediates, truncated by the tensor core", Prefill(stored=all_in("tf32 truncated"))
)
shelf.add("rounding", "fp16 intermediates", Prefill(stored=all_in("float16")))
shelf.add("rounding", "fp32 intermediates", Prefill(stored=all_in("float32")))
shelf.add("rounding", "fp64 throughout", Prefill(compute=torch.float64))
shelf.add("rounding", "P and the inverse in fp32", Prefill(stored={"P": "float32", "Ai": "float32"}))
shelf.add("rounding", "denormals flushed", FlushedPrefill())
shelf.add("inverse", "stored in fp16", Prefill(stored={"A": "float16", "Ai": "float16"}))
shelf.add("inverse", "stored in tf32", Prefill(stored={"A": "tf32", "Ai": "tf32"}))
shelf.add("inverse", "A and the inverse in bf16", Prefill(stored={"A": "bfloat16", "Ai": "bfloat16"}))
shelf.add("inverse", "split in two bf16", Prefill(stored={"A": "split bfloat16", "Ai": "split bfloat16"}))
shelf.add("inverse", "substitution of all rows", Substitution())
shelf.add("inverse", "doubling in blocks of 16", Doubling())
shelf.add("inverse", "triangular solver", TriangularSolve())
shelf.add("inverse", "merged by halves", Merged32())
shelf.add("inverse", "merged by halves in tf32", Merged32(product=products.tf32(truncate=False)))
shelf.add("sums", "tf32 products", Prefill(product=products.tf32(truncate=False)))
shelf.add("sums", "tf32 products, operands truncated", Prefill(product=products.tf32(truncate=True)))
shelf.add("sums", "K in two halves", Prefill(product=products.split_k(2)))
shelf.add("sums", "V in two halves", SplitValues())
shelf.add("sums", "terms in descending order", Prefill(product=products.reversed_sums))
shelf.add("sums", "pairwise", Prefill(product=products.pairwise))
shelf.add("sums", "gates by a scan of doubling distances", DoublingScan())
shelf.add("exponentials", "2^(x log2 e)", Prefill(exp=exp2_of_scaled))
shelf.add("exponentials", "gates summed in units of log 2", PrescaledGates(exp=torch.exp2))
shelf.add("exponentials", "ex2.approx", Prefill(exp=approximate_exp))
shelf.add("exponentials", "Gamma in two factors across blocks of 16", FactoredDecay())
shelf.add("exponentials", "gates taken as alpha", LinearGates())
shelf.add("order", "scale applied to q", ScaledQueries())
shelf.add("order", "state kept as [K, V]", TransposedState())
shelf.add("order", "keys decayed instead of updates", ScaledKeys())
shelf.add("order", "keys repeated for value heads", RepeatedHeads())
shelf.add("norms", "q and k normalised inside", Prefill(norm_inside=True))
shelf.add("norms", "normalised inside by rsqrt.approx", FastNorm(norm_inside=True))
shelf.add(
    "norms",
    "normalised inside, kept in fp32",
    Prefill(norm_inside=True, stored={"q": "float32", "k": "float32"}),
)
VARIANTS = shelf.done()
