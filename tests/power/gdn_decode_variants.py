# SPDX-License-Identifier: Apache-2.0
"""Right kernels of gdn_decode: the arithmetic and the orders of served kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.power.gdn_decode_kernel import At, Decode, dot
from tests.power.library import Shelf
from tests.power.number_formats import approximate_exp, exp2_of_scaled, flushed, signs


def reversed_dot(state: Tensor, x: Tensor) -> Tensor:
    return dot(state.flip(-1), x.flip(-1))


def split_dot(parts: int) -> Callable[[Tensor, Tensor], Tensor]:
    """`parts` partial sums, as that many lanes have them, added one after another."""

    def product(state: Tensor, x: Tensor) -> Tensor:
        pairs = zip(state.chunk(parts, -1), x.chunk(parts, -1), strict=True)
        return torch.stack([dot(left, right) for left, right in pairs]).sum(0)

    return product


def warp_dot(state: Tensor, x: Tensor) -> Tensor:
    """32 lanes sum every 32nd term; a butterfly adds the lanes."""
    terms = state * x.unsqueeze(-2)
    lanes = terms.reshape(*terms.shape[:-1], -1, min(32, x.shape[-1])).sum(-2)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def one_by_one(state: Tensor, x: Tensor) -> Tensor:
    """One FMA after another."""
    total = state[..., 0] * x[..., None, 0]
    for i in range(1, x.shape[-1]):
        total = torch.addcmul(total, state[..., i], x[..., None, i].expand(total.shape))
    return total


def split_rows(state: Tensor, x: Tensor) -> Tensor:
    """V in two halves, as two CTAs have it."""
    return torch.cat([dot(half, x) for half in state.tensor_split(2, -2)], -1)


class DecayedLater(Decode):
    """alpha multiplies S k and the stored state, not the state that is read."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        alpha = self.exp(now["g"]).unsqueeze(-1)
        delta = now["beta"].unsqueeze(-1) * (now["v"] - alpha * self.dot(state, now["k"]))
        return state * alpha.unsqueeze(-1) + delta.unsqueeze(-1) * now["k"].unsqueeze(-2), delta


class FusedOutput(Decode):
    """o = scale (alpha S q + delta (k . q)): the new state is not read again."""

    def advance(self, state: Tensor, now: dict[str, Tensor], at: At) -> tuple[Tensor, Tensor]:
        after, delta = super().advance(state, now, at)
        alpha = self.exp(now["g"]).unsqueeze(-1)
        crossed = (now["k"] * now["q"]).sum(-1, keepdim=True)
        self.out = (alpha * self.dot(state, now["q"]) + delta * crossed) * at.scale
        return after, delta

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return self.out if name == "o" else super().edit(name, x, at)


class FastNorm(Decode):
    """rsqrt.approx, with its largest error."""

    def normalise(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        root = torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)
        return wide * (root * (1 + 2.0**-22 * signs(root)))


class DividedNorm(Decode):
    """x / sqrt(sum + eps)."""

    def normalise(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        return wide / torch.sqrt(wide.square().sum(-1, keepdim=True) + 1e-6)


class NormOfLanes(Decode):
    """The squares summed by lanes."""

    def normalise(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        squares = wide.square().reshape(*wide.shape[:-1], -1, 16).sum(-1).flip(-1).sum(-1, keepdim=True)
        return wide * torch.rsqrt(squares + 1e-6)


class LinearSoftplus(Decode):
    """softplus(x) is x above 20, as torch and Triton's kernels have it."""

    def softplus(self, x: Tensor) -> Tensor:
        return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))


class ServedSoftplus(Decode):
    """log(1 + exp(x)), and x above 20: vLLM's and SGLang's decode kernels. It has no values below 2^-24."""

    def softplus(self, x: Tensor) -> Tensor:
        return torch.where(x > 20, x, torch.log(1 + self.exp(x.clamp(max=20))))


class LastSequenceFirst(Decode):
    """Sequences in descending order."""

    def active_sequences(self, read: Tensor) -> Tensor:
        return super().active_sequences(read).flip(0)


class ScaledFirst(Decode):
    """The scale multiplies q before the product with the state; o is not scaled again."""

    def __call__(self, *, q: Tensor, scale: float | None = None, **given: Any) -> dict[str, Tensor]:
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        self.factor = factor
        return super().__call__(q=q, scale=1.0, **given)

    def edit(self, name: str, x: Tensor, at: At) -> Tensor:
        return x * self.factor if name == "q" else super().edit(name, x, at)


class FlushedDecode(Decode):
    """Subnormal numbers are 0."""

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return flushed(flushed(x).to(dtype))

    def round_state(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return flushed(flushed(x).to(dtype)) if dtype != torch.float16 else flushed(x).to(dtype)


class StoredAtEnd(Decode):
    """The slots of all tokens are written after the last one."""

    def __call__(self, **given: Any) -> dict[str, Tensor]:
        self.later: list[tuple[Tensor, Tensor]] = []
        return super().__call__(**given)

    def write_slots(self, pool: Tensor, write: Tensor, token: int, state: Tensor, read: Tensor) -> None:
        there = write[:, token] >= 0
        self.later.append((write[there, token], self.round_state(state[there], pool.dtype)))

    def finish(self, found: dict[str, Tensor], at: At) -> dict[str, Tensor]:
        for slots, states in self.later:
            found["state"][slots] = states
        return found


class ByKey(Decode):
    """The pool in [K, V] order."""

    def __call__(self, *, state: Tensor, **given: Any) -> dict[str, Tensor]:
        return super().__call__(state=state.mT, **given) | {"state": state}


class RepeatedHeads(Decode):
    """Keys repeated for their value heads."""

    def key_heads(self, heads: int, value_heads: int) -> Tensor:
        return torch.arange(heads).repeat_interleave(value_heads // heads)


LOG = {"gate": ("log",)}
NORMALISED = {"qk": ("normalised",)}

shelf = Shelf("gdn_decode", right=True)
shelf.add("state", "fp32 state", Decode())
shelf.add("state", "fp64 throughout", Decode(compute=torch.float64))
shelf.add("state", "denormals flushed", FlushedDecode())
shelf.add("state", "slots stored after the last token", StoredAtEnd())
shelf.add("state", "pool in [K, V] order", ByKey(conventions={"state_layout": ("KV",)}))
shelf.add("state", "alpha multiplies S k", DecayedLater())
shelf.add("sums", "descending order", Decode(dot=reversed_dot))
shelf.add("sums", "two halves of K", Decode(dot=split_dot(2)))
shelf.add("sums", "eight lanes", Decode(dot=split_dot(8)))
shelf.add("sums", "a warp's butterfly", Decode(dot=warp_dot))
shelf.add("sums", "one FMA after another", Decode(dot=one_by_one))
shelf.add("sums", "two halves of V", Decode(dot=split_rows))
shelf.add("sums", "o from the old state", FusedOutput())
shelf.add("gates", "taken as log", Decode(conventions=LOG))
shelf.add("gates", "taken as alpha", Decode(exp=lambda alpha: alpha, conventions={"gate": ("linear",)}))
shelf.add("gates", "2^(x log2 e)", Decode(exp=exp2_of_scaled))
shelf.add("gates", "ex2.approx", Decode(exp=approximate_exp))
shelf.add("gates", "softplus linear above 20", LinearSoftplus())
shelf.add("gates", "softplus as log(1 + exp x)", ServedSoftplus())
shelf.add("gates", "softplus as log(1 + exp x), ex2.approx", ServedSoftplus(exp=approximate_exp))
shelf.add("norms", "taken as normalised", Decode(conventions=NORMALISED))
shelf.add("norms", "normalised and log", Decode(conventions={**LOG, **NORMALISED}))
shelf.add("norms", "rsqrt.approx", FastNorm())
shelf.add("norms", "a division by the root", DividedNorm())
shelf.add("norms", "squares summed by lanes", NormOfLanes())
shelf.add("order", "last sequence first", LastSequenceFirst())
shelf.add("order", "scale applied to q", ScaledFirst())
shelf.add("order", "keys repeated for value heads", RepeatedHeads())
shelf.add("order", "ex2.approx and rsqrt.approx", FastNorm(exp=approximate_exp, dot=warp_dot))
VARIANTS = shelf.done()
