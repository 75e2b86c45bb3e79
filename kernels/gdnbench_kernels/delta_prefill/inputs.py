# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs that gdn_prefill and kda_prefill share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gdnbench_kernels.chunks import UNREAD, plan_chunks
from gdnbench_kernels.contract import ContractError, Scalar
from gdnbench_kernels.gdn import STATES
from gdnbench_kernels.gdn_inputs import (
    Span,
    add_gate_spikes,
    made_nan,
    named_dtype,
    named_dtypes,
    queries_and_keys,
    random_betas,
    span_bounds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `synth` that both operations have."""

    seqlens: tuple[int, ...]
    heads: tuple[int, int]
    head_dim: tuple[int, int]
    key_correlation: float
    query_correlation: float
    gate_spike: float
    beta: Span
    initial_state: bool
    state_dtype: str
    dtype: str
    offsets_dtype: str
    qk: str
    nan_at: tuple[int, ...]
    chunk_tables: bool
    final_state_dtype: str
    scale: float | None
    seed: int

    @property
    def beta_max(self) -> float:
        """The scalar of the call: 2 if beta goes beyond 1."""
        return 2.0 if span_bounds(self.beta)[1] > 1 else 1.0

    def scalars(self) -> dict[str, Scalar]:
        """The scalars of the call. Raises ContractError for a dtype that a state cannot have."""
        found: dict[str, Scalar] = {"beta_max": self.beta_max}
        if self.final_state_dtype:
            named_dtype("final_state_dtype", self.final_state_dtype, STATES)
            found["final_state_dtype"] = self.final_state_dtype
        if self.scale is not None:
            found["scale"] = self.scale
        return found


def drawn_tensors(
    op: str,
    options: Options,
    chunk_size: int,
    gates: Callable[[tuple[int, int], Generator], Tensor],
    form: Callable[[dict[str, Tensor], Generator], dict[str, Tensor]] = lambda tensors, generator: {},
) -> dict[str, Tensor]:
    """The tensors of a call of `op` with states VK, deterministic in the seed.

    `gates` draws the log decay of [T, Hv] tokens and heads. `form` may replace g and beta by the inputs that
    give them, and returns the tensors that this adds. Raises ContractError for options that make no valid
    call.
    """
    if min(options.seqlens, default=0) < 0:
        raise ContractError(f"seqlens has {min(options.seqlens)}; a sequence has 0 or more tokens")
    (key_heads, value_heads), (key_dim, value_dim) = options.heads, options.head_dim
    generator = torch.Generator().manual_seed(options.seed)
    dtypes = named_dtypes(options.dtype, options.state_dtype, options.offsets_dtype)
    tokens, per_head = sum(options.seqlens), (sum(options.seqlens), value_heads)
    q, k = queries_and_keys(
        (tokens, key_heads, key_dim),
        options.key_correlation,
        dtypes.activations,
        options.qk == "raw",
        generator,
        options.query_correlation,
    )
    tensors = {
        "q": q,
        "k": k,
        "v": torch.randn(tokens, value_heads, value_dim, generator=generator).to(dtypes.activations),
        "g": gates(per_head, generator),
        "beta": random_betas(per_head, options.beta, generator),
        "cu_seqlens": torch.tensor([0, *options.seqlens]).cumsum(0).to(dtypes.offsets),
    }
    add_gate_spikes(tensors["g"], options.gate_spike, generator)
    if options.initial_state:
        shape = len(options.seqlens), value_heads, value_dim, key_dim
        state = torch.randn(shape, generator=generator)
        tensors["initial_state"] = (state * key_dim**-0.5).to(dtypes.states)
    tensors |= form(tensors, generator)
    made_nan(op, tensors, options.nan_at, "token")
    if options.chunk_tables:
        tensors |= made_chunk_tables(tensors["cu_seqlens"], chunk_size)
    return tensors


def made_chunk_tables(cu_seqlens: Tensor, chunk_size: int) -> dict[str, Tensor]:
    """chunk_indices, with two rows past the last chunk that name no sequence, and chunk_offsets, of the dtype
    of `cu_seqlens`."""
    plan = plan_chunks(cu_seqlens, chunk_size)
    indices = torch.full((plan.total + 2, 2), UNREAD)
    indices[: plan.total] = torch.stack([plan.sequence, plan.index], dim=1)
    return {
        "chunk_indices": indices.to(cu_seqlens.dtype),
        "chunk_offsets": plan.offsets.to(cu_seqlens.dtype),
    }
