"""Synthetic inputs of the Gated DeltaNet operations: keys of a given correlation, gates of a given span, beta
of a given range.

Random keys hide most regressions of a chunked kernel: near-parallel keys make the triangular inverse ill-
conditioned, and wide gates make its exponents large. All values depend only on the seed of a CPU generator.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import ContractError, Convention
from gdnbench_kernels.gdn import ACTIVATIONS, CONVENTIONS, OFFSETS, STATES, l2_normalise
from gdnbench_kernels.validate import check_conventions

Span = float | tuple[float, float]
"""One value, or the two bounds of a range."""

SPAN_TOKENS = 64  # the tokens over which a gate span is summed


@dataclass(frozen=True, slots=True)
class Dtypes:
    """The dtypes of a synthetic call."""

    activations: torch.dtype
    states: torch.dtype
    offsets: torch.dtype


def named_dtypes(dtype: str, state_dtype: str, offsets_dtype: str) -> Dtypes:
    """The dtypes of those names. Raises ContractError for a dtype that the contract does not allow there."""
    return Dtypes(
        activations=named_dtype("dtype", dtype, ACTIVATIONS),
        states=named_dtype("state_dtype", state_dtype, STATES),
        offsets=named_dtype("offsets_dtype", offsets_dtype, OFFSETS),
    )


def named_dtype(option: str, name: str, allowed: Sequence[str]) -> torch.dtype:
    """The dtype of that name. Raises ContractError unless it is in `allowed`."""
    if name not in allowed:
        raise ContractError(f"{option} is {name!r}; it must be {' or '.join(allowed)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def made_conventions(
    op: str, gate: str, state_layout: str, qk: str, known: Sequence[Convention] = CONVENTIONS
) -> dict[str, str]:
    """The conventions of those values. Raises ContractError for one that is not in `known`."""
    conventions = {"gate": gate, "state_layout": state_layout, "qk": qk}
    check_conventions(op, known, conventions)
    return conventions


def made_nan(op: str, tensors: Mapping[str, Tensor], rows: Sequence[int], what: str) -> None:
    """Set rows of q, k, v, g and beta to NaN in place. Raises ContractError for a row that does not exist."""
    for row in rows:
        if not 0 <= row < len(tensors["q"]):
            raise ContractError(f"{op}: nan_at names {what} {row}; there are {len(tensors['q'])}")
        for name in ("q", "k", "v", "g", "beta"):
            tensors[name][row] = torch.nan


def span_bounds(span: Span) -> tuple[float, float]:
    """The two bounds of a span. Raises ContractError unless 0 <= low <= high < inf."""
    low, high = span if isinstance(span, tuple) else (span, span)
    if not (math.isfinite(low) and math.isfinite(high) and 0 <= low <= high):
        raise ContractError(f"range {low:g},{high:g} is not one; give LOW,HIGH with 0 <= LOW <= HIGH")
    return low, high


def _correlated(common: Tensor, own: Tensor, correlation: float) -> Tensor:
    """fp32 vectors [T, H, D] whose expected cosine within a head is `correlation`; not normalised, norm near
    sqrt(D).

    A vector is sqrt(c) m + sqrt(1 - c) e: m is `common`, one standard normal vector per head, e is `own`, one
    per token. At 1 all vectors of a head are bit-identical; at 0 they are independent.
    """
    return math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own


def check_correlation(what: str, correlation: float) -> None:
    """Raises ContractError unless the correlation is in [0, 1]."""
    if not 0 <= correlation <= 1:
        raise ContractError(f"{what} correlation is {correlation:g}; it must lie in [0, 1]")


def queries_and_keys(
    shape: tuple[int, ...],
    correlation: float,
    dtype: torch.dtype,
    raw: bool,
    generator: Generator,
    query_correlation: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """q and k [T, H, K] in `dtype`; L2-normalised in fp32 first unless `raw`.

    A head's keys are correlated through one vector. The queries are correlated through the same vector, so
    that the expected cosine of a query and a key is sqrt(correlation * query_correlation): outputs are then
    large. At 0 the queries are independent.
    """
    check_correlation("key", correlation)
    check_correlation("query", query_correlation)
    q, common = torch.randn(shape, generator=generator), torch.randn(shape[1:], generator=generator)
    k = _correlated(common, torch.randn(shape, generator=generator), correlation)
    if query_correlation:
        q = _correlated(common, q, query_correlation)
    if not raw:
        q, k = l2_normalise(q, torch.float32), l2_normalise(k, torch.float32)
    return q.to(dtype), k.to(dtype)


def random_gates(shape: tuple[int, ...], span: Span, generator: Generator) -> Tensor:
    """Log-space gates [T, Hv], fp32, <= 0. The expected sum of |g| over 64 tokens is `span`.

    A range gives every head its own span, log-uniform if the range excludes 0, uniform otherwise. Within a
    head |g| is uniform in [0, 2 span / 64).
    """
    low, high = span_bounds(span)
    drawn = torch.rand(shape[-1], generator=generator)
    if low > 0:
        spans = torch.exp(math.log(low) + drawn * (math.log(high) - math.log(low)))
    else:
        spans = low + drawn * (high - low)
    return -2 * spans / SPAN_TOKENS * torch.rand(shape, generator=generator)


def add_gate_spikes(g: Tensor, size: float, generator: Generator) -> None:
    """Add `size` to |g| of one random token in every 64, separately for each head, in place."""
    if not (math.isfinite(size) and size >= 0):
        raise ContractError(f"the gate spike is {size:g}; it must be 0 or more")
    for start in range(0, len(g) if size else 0, SPAN_TOKENS):
        block = g[start : start + SPAN_TOKENS]
        token = torch.randint(len(block), g.shape[1:], generator=generator)
        block.scatter_add_(0, token.unsqueeze(0), torch.full_like(block[:1], -size))


def random_betas(shape: tuple[int, ...], beta: Span, generator: Generator) -> Tensor:
    """beta [T, Hv], fp32: constant, or uniform in a range within [0, 2]."""
    low, high = span_bounds(beta)
    if high > 2:
        raise ContractError(f"beta reaches {high:g}; it must lie in [0, 2]")
    drawn = low + torch.rand(shape, generator=generator) * (high - low)
    return drawn.clamp(low, high)


def inverse_softplus(y: Tensor) -> Tensor:
    """x such that log(1 + exp(x)) = y, for y >= 0."""
    return y + torch.log(-torch.expm1(-y))
