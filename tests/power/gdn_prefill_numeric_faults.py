# SPDX-License-Identifier: Apache-2.0
"""Wrong kernels of gdn_prefill: norms, inverses, exponentials, rounding, and errors of a given size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.power import spoiled_values as spoil
from tests.power.gdn_prefill_kernel import SERVED, Chunks, Prefill, substitute
from tests.power.library import Shelf
from tests.power.number_formats import FORMATS, exp_by_polynomial, exp_in, truncated
from tests.power.products import parts
from tests.power.repetition import OffEverySecondCall, RandomOrders, product_in_order

shelf = Shelf("gdn_prefill", right=False)


# Norms


class WrongNorm(Prefill):
    """q, k or both normalised by another rule."""

    def __init__(self, rule: Any, names: str = "qk") -> None:
        super().__init__(norm_inside=True)
        self.rule, self.names = rule, names

    def normalise(self, x: Tensor, name: str) -> Tensor:
        return self.rule(x.float()) if name in self.names else super().normalise(x, name)


def l2(x: Tensor, eps: float = 1e-6, dim: int = -1) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim, keepdim=True) + eps)


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def norm_in_bf16(x: Tensor) -> Tensor:
    squares = x.bfloat16().square().sum(-1, keepdim=True).bfloat16()
    return (x.bfloat16() * torch.rsqrt(squares + 1e-6)).float()


def half_norm(x: Tensor) -> Tensor:
    """The norm of the first half of K: a reduction that lacks its last step."""
    return x * torch.rsqrt(x[..., : x.shape[-1] // 2].square().sum(-1, keepdim=True) + 1e-6)


BELOW_BF16 = "raw q and k have sums of squares near 1 and above; it moves them by less than bf16 rounds"
shelf.add("norms", "q and k are not normalised", WrongNorm(lambda x: x))
shelf.add("norms", "q is not normalised", WrongNorm(lambda x: x, "q"))
shelf.add("norms", "k is not normalised", WrongNorm(lambda x: x, "k"))
shelf.add("norms", "eps 1e-3", WrongNorm(lambda x: l2(x, 1e-3)), excuse=BELOW_BF16)
shelf.add("norms", "eps 1", WrongNorm(lambda x: l2(x, 1.0)))
shelf.add("norms", "over heads", WrongNorm(lambda x: l2(x, dim=1)))
shelf.add("norms", "RMS norm", WrongNorm(rms_norm))
shelf.add("norms", "of the first half of K", WrongNorm(half_norm))
shelf.add("norms", "in bf16", WrongNorm(norm_in_bf16))


# Inverses


class WrongInverse(Prefill):
    """The inverse of A [c, Hv, C, C] by another function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def invert(self, a: Tensor) -> Tensor:
        found: Tensor = self.function(a)
        return found


def one_term(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1]) - a


def two_terms(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1]) - a + a @ a


def diagonal_blocks(a: Tensor) -> Tensor:
    """Blocks of 16 are inverted and never merged."""
    found = torch.zeros_like(a)
    for i in range(0, a.shape[-1], 16):
        found[..., i : i + 16, i : i + 16] = substitute(a[..., i : i + 16, i : i + 16])
    return found


def below_blocks(a: Tensor) -> Tensor:
    """A without its blocks of 16 on the diagonal."""
    block = torch.arange(a.shape[-1]) // 16
    return torch.where(block.unsqueeze(1) > block, a, torch.zeros_like(a))


def without_corner(a: Tensor) -> Tensor:
    """The block furthest below the diagonal is missing."""
    found = substitute(a)
    found[..., -16:, :16] = 0
    return found


def merged_once(a: Tensor) -> Tensor:
    """Blocks below the diagonal as if only the two of their own row and column counted: -Ai_mm A_mn Ai_nn."""
    diagonal = diagonal_blocks(a)
    off = below_blocks(a)
    return diagonal - diagonal @ off @ diagonal


def wrong_sign(a: Tensor) -> Tensor:
    return substitute(-a)


def newton_schulz(rounds: int, number_format: str) -> Any:
    """X <- X (2 I - (I + A) X) from I in blocks of 16, operands rounded, then exact merges (vLLM #53864)."""

    def function(a: Tensor) -> Tensor:
        rounded = FORMATS[number_format]
        found, eye = substitute(a), torch.eye(16)
        blocks = range(0, a.shape[-1], 16)
        approximate = torch.zeros_like(a)
        for i in blocks:
            block = a[..., i : i + 16, i : i + 16]
            x = eye
            for _ in range(rounds):
                rest = 2 * eye - rounded(eye + block) @ rounded(x)
                x = rounded(x) @ rounded(rest)
            approximate[..., i : i + 16, i : i + 16] = x
        off = below_blocks(a)
        # Block forward substitution with the approximate blocks on the diagonal.
        for i in blocks:
            rows = torch.eye(a.shape[-1])[i : i + 16] - off[..., i : i + 16, :] @ found
            found[..., i : i + 16, :] = approximate[..., i : i + 16, i : i + 16] @ rows
        return found

    return function


def doubling(rounds: int) -> Any:
    """(I - A)(I + A^2)(I + A^4) ... of whole chunks, a factor short or more."""

    def function(a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1])
        found, power = eye - a, a
        for _ in range(rounds):
            power = power @ power
            found = found @ (eye + power)
        return found

    return function


class KeepsDiagonal(Prefill):
    """The mask keeps the diagonal of A, which is beta where keys have norm 1."""

    def form_a(self, k: Tensor, g_cu: Tensor, beta: Tensor, chunks: Chunks) -> Tensor:
        a = beta.unsqueeze(-1) * self.product(k, k.mT) * self.decay(g_cu, chunks)
        return self.store("A", a.tril(), chunks)

    def invert(self, a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1])
        found: Tensor = torch.linalg.solve_triangular(a + eye, eye.expand(a.shape), upper=False)
        return found


class BetaOfColumns(Prefill):
    """A_ij with beta_j."""

    def form_a(self, k: Tensor, g_cu: Tensor, beta: Tensor, chunks: Chunks) -> Tensor:
        scores = self.product(k, k.mT) * self.decay(g_cu, chunks)
        return self.store("A", (beta.unsqueeze(-2) * scores).tril(-1), chunks)


shelf.add("inverses", "I - A", WrongInverse(one_term))
shelf.add("inverses", "I - A + A^2", WrongInverse(two_terms))
shelf.add("inverses", "powers below 8", WrongInverse(doubling(2)))
shelf.add("inverses", "powers below 16", WrongInverse(doubling(3)))
shelf.add("inverses", "blocks of 16 are not merged", WrongInverse(diagonal_blocks))
shelf.add("inverses", "blocks of 16 merged once", WrongInverse(merged_once))
shelf.add("inverses", "the corner block is missing", WrongInverse(without_corner))
shelf.add("inverses", "A keeps its diagonal", KeepsDiagonal())
shelf.add("inverses", "I - A is inverted", WrongInverse(wrong_sign))
shelf.add("inverses", "transposed", Prefill(Ai=lambda x, _: x.mT.contiguous()))
shelf.add("inverses", "2 Newton-Schulz rounds in bf16", WrongInverse(newton_schulz(2, "bfloat16")))
shelf.add("inverses", "3 Newton-Schulz rounds in bf16", WrongInverse(newton_schulz(3, "bfloat16")))
shelf.add("inverses", "the identity", Prefill(Ai=lambda x, _: torch.eye(x.shape[-1]).expand(x.shape).clone()))
shelf.add("inverses", "beta on A's columns", BetaOfColumns())


# Exponentials


class Factored(Prefill):
    """Gamma as exp(g_i) exp(-g_j), which overflows where the sums of gates are large."""

    def __init__(self, number_format: str, limit: float | None = None) -> None:
        super().__init__()
        self.rounded, self.limit = FORMATS[number_format], limit

    def decay(self, g_cu: Tensor, chunks: Chunks) -> Tensor:
        grown = (-g_cu).exp()
        if self.limit is not None:
            grown = grown.clamp(max=self.limit)
        return (self.rounded(g_cu.exp()).unsqueeze(-1) * self.rounded(grown).unsqueeze(-2)).tril()


shelf.add("exponentials", "exp(g_i) exp(-g_j) in fp32", Factored("float32"))
shelf.add("exponentials", "exp(g_i) exp(-g_j) in fp16", Factored("float16"))
shelf.add("exponentials", "exp(g_i) exp(-g_j), the second at most 1e4", Factored("float32", 1e4))
BELOW_STORED = "what it multiplies is rounded to bf16, by torch too: an error of 2^-9"
for bits in (8, 10, 12, 14):
    shelf.add(
        "exponentials",
        f"a polynomial with an error of 2^-{bits}",
        Prefill(exp=exp_by_polynomial(2.0**-bits)),
        excuse=BELOW_STORED if bits > 10 else None,
    )
shelf.add("exponentials", "in fp16", Prefill(exp=exp_in("float16")), excuse=BELOW_STORED)
shelf.add("exponentials", "in bf16", Prefill(exp=exp_in("bfloat16")))
shelf.add(
    "exponentials",
    "0 below 2^-14",
    Prefill(exp=lambda x: torch.where(x.exp() < 2.0**-14, 0.0, x.exp())),
    excuse=BELOW_STORED,
)


# Sizes


def of_sequence(n: int, edit: spoil.Edit) -> spoil.Edit:
    """`edit` on the chunks of one sequence alone."""

    def edited(x: Tensor, chunks: Chunks) -> Tensor:
        return torch.where((chunks.sequence == n)[:, None, None, None], edit(x, chunks), x)

    return edited


def every(step: int, edit: spoil.Edit) -> spoil.Edit:
    """`edit` on one row in `step`, the last."""

    def edited(x: Tensor, chunks: Chunks) -> Tensor:
        chosen = torch.arange(x.shape[2]) % step == step - 1
        return torch.where(chosen[:, None], edit(x, chunks), x)

    return edited


def state_of_sequence(n: int, edit: spoil.Edit) -> spoil.Edit:
    def edited(x: Tensor, chunks: Chunks) -> Tensor:
        chosen = torch.arange(len(x)) == n
        return torch.where(chosen[:, None, None, None], edit(x, chunks), x)

    return edited


for size in spoil.SIZES:
    text = f"{size:.1%}".replace(".0%", "%")
    shelf.add(
        "gain",
        f"o {text} too large",
        Prefill(o=spoil.gain(size)),
        excuse=spoil.excuse(size, spoil.SMALL_GAIN),
    )
    shelf.add(
        "gain",
        f"o of the last head {text} too large",
        Prefill(o=spoil.gain(size, -1)),
        excuse=spoil.excuse(size, spoil.SMALL_GAIN),
    )
    shelf.add("gain", f"final state {text} too large", Prefill(final=spoil.gain(size)))
    shelf.add(
        "noise",
        f"noise of {text} on o",
        Prefill(o=spoil.noise(size)),
        excuse=spoil.excuse(size, spoil.SMALL_NOISE),
    )
    shelf.add(
        "noise",
        f"noise of {text} on the last head of o",
        Prefill(o=spoil.noise(size, -1)),
        excuse=spoil.excuse(size, spoil.SMALL_NOISE),
    )
    shelf.add("noise", f"noise of {text} on the final state", Prefill(final=spoil.noise(size)))
for size in spoil.SIZES[2:]:
    text = f"{size:.0%}"
    gain = spoil.gain(size)
    shelf.add("gain", f"o of sequence 0 {text} too large", Prefill(o=of_sequence(0, gain)))
    shelf.add(
        "gain", f"final state of sequence 0 {text} too large", Prefill(final=state_of_sequence(0, gain))
    )
    shelf.add("gain", f"every 64th row of o {text} too large", Prefill(o=every(64, gain)))
    shelf.add("gain", f"every 16th row of o {text} too large", Prefill(o=every(16, gain)))
    shelf.add("gain", f"o off by {text} of its RMS", Prefill(o=spoil.offset(size)))
shelf.add("gain", "the state's share of o 1% too large", Prefill(exp_Q=lambda x, _: x * 1.01))
shelf.add("gain", "P 1% too large", Prefill(P=lambda x, _: x * 1.01))
shelf.add("gain", "beta 0.5% too large", Prefill(beta=lambda x, _: x * 1.005))
shelf.add("gain", "scale of 0.088", Prefill(o=lambda x, chunks: x / chunks.scale * 0.088))
shelf.add("gain", "scale of K = 64", Prefill(o=lambda x, _: x * 2**0.5))


# Rounding


class Truncating(Prefill):
    """o is cut off instead of rounded."""

    def round_output(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(x, dtype)


class RoundedTwice(Prefill):
    """Sums of products kept in bf16 from one block of 16 to the next."""

    def __init__(self) -> None:
        super().__init__(product=self.sum_in_bf16)

    @staticmethod
    def sum_in_bf16(a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(())
        for left, right in zip(parts(a, 16, -1), parts(b, 16, -2), strict=True):
            total = (total + left @ right).bfloat16().float()
        return total


AS_TORCH = "torch rounds the same intermediates to bf16; truncation has twice its error, which k = 2 allows"
shelf.add("rounding", "o is truncated", Truncating())
shelf.add("rounding", "sums in bf16", RoundedTwice())
shelf.add(
    "rounding",
    "intermediates are truncated",
    Prefill(stored={name: "bfloat16 truncated" for name in SERVED if name not in ("q", "k")}),
)
for name in ("U", "h", "V_new", "P", "Ai"):
    shelf.add(
        "rounding", f"{name} is truncated", Prefill(stored={name: "bfloat16 truncated"}), excuse=AS_TORCH
    )
shelf.add(
    "rounding", "o in fp16, then bf16", Prefill(o=lambda x, _: x.half().float()), excuse="11 bits, then 8"
)
shelf.add("rounding", "o in e5m2", Prefill(o=lambda x, _: x.to(torch.float8_e5m2).float()))
shelf.add("rounding", "P in e4m3", Prefill(P=lambda x, _: x.to(torch.float8_e4m3fn).float()))
shelf.add(
    "zeros",
    "values of o below 1e-3 of the row's largest",
    Prefill(o=spoil.without_small_values(1e-3)),
    excuse="less than bf16 rounds the row's largest",
)
shelf.add("zeros", "values of o below 1e-2 of the row's largest", Prefill(o=spoil.without_small_values(1e-2)))
shelf.add("zeros", "rows of o with small norms", Prefill(o=spoil.without_small_rows(1e-2)))
shelf.add("zeros", "rows of o with norms below a tenth", Prefill(o=spoil.without_small_rows(0.1)))
shelf.add("zeros", "scores below 1e-3", Prefill(P=lambda x, _: torch.where(x.abs() < 1e-3, 0.0, x)))
shelf.add(
    "zeros",
    "values of the state below 1e-3 of the row's largest",
    Prefill(final=spoil.without_small_values(1e-3)),
)


# Repetition and NaN


class DependsOnCalls(OffEverySecondCall, Prefill):
    """Its results depend on how often it was called."""


class Uninitialised(Prefill):
    """Rows past the end hold what was there in V_new: other values in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def edit(self, name: str, x: Tensor, chunks: Chunks) -> Tensor:
        if name != "V_new":
            return super().edit(name, x, chunks)
        self.calls += 1
        generator = torch.Generator().manual_seed(self.calls)
        left = torch.randn(x.shape, generator=generator).to(x.dtype) * 0.01
        return x + left * (torch.arange(x.shape[2]) == 0)[:, None]


class Unwritten(Prefill):
    """Some rows of o are never written."""

    def __init__(self, row: Any) -> None:
        super().__init__()
        self.row = row

    def written(self, chunks: Chunks) -> Tensor:
        left: Tensor = self.row(chunks)
        return chunks.inside & ~left


def last_row(chunks: Chunks) -> Tensor:
    last = torch.arange(chunks.size) == chunks.length.unsqueeze(1) - 1
    return last & chunks.is_last.unsqueeze(1)


def short_sequences(chunks: Chunks) -> Tensor:
    """A sequence of one token has no CTA."""
    return (
        (chunks.is_last & (chunks.index == 0) & (chunks.length == 1)).unsqueeze(1).expand(chunks.inside.shape)
    )


def one_row(value: float) -> spoil.Edit:
    def edit(x: Tensor, _: Chunks) -> Tensor:
        x = x.clone()
        x[-1:, -1:, 0] = value
        return x

    return edit


shelf.add("repeat", "every second call is off", DependsOnCalls(), repeats=True)
shelf.add(
    "repeat", "partial sums in a random order", Prefill(product=RandomOrders(product_in_order)), repeats=True
)
shelf.add("repeat", "V_new has what memory held", Uninitialised(), repeats=True)
shelf.add("unwritten", "the last row of o", Unwritten(last_row))
shelf.add("unwritten", "o of sequences of one token", Unwritten(short_sequences))
shelf.add("nan", "one row of o is NaN", Prefill(o=one_row(torch.nan)))
shelf.add("nan", "one row of o is infinite", Prefill(o=one_row(torch.inf)))
shelf.add("nan", "sequence 0 is NaN", Prefill(o=of_sequence(0, lambda x, _: x * torch.nan)))
shelf.add("nan", "the final state is NaN", Prefill(final=lambda x, _: x * torch.nan))
FAULTS = shelf.done()
