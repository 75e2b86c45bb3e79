# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs that the decode operations of the delta rule share: tokens, states and slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import ContractError
from gdnbench_kernels.gdn_inputs import Span, named_dtypes, queries_and_keys, random_betas, span_bounds
from gdnbench_kernels.state_slots import PADDING

READS = ("none", "own", "first", "last", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `synth` that both operations have."""

    batch: int
    steps: int
    slots: int
    heads: tuple[int, int]
    head_dim: tuple[int, int]
    key_correlation: float
    query_correlation: float
    beta: Span
    speculative: bool
    read_indices: str
    padding: float
    holes: float
    slot_gap: int
    state_scale: float
    state_dtype: str
    dtype: str
    offsets_dtype: str
    qk: str
    seed: int

    @property
    def beta_max(self) -> float:
        return 2.0 if span_bounds(self.beta)[1] > 1 else 1.0


GatesOf = Callable[[tuple[int, int], Generator], Tensor]
"""Draws the log-space gates of (tokens, value heads), fp32."""
FormOf = Callable[[dict[str, Tensor], Generator], dict[str, Tensor]]
"""Replaces g and beta [T, ...] by the inputs that give them, in their dtype, and returns further tensors."""


def drawn_tensors(options: Options, gates: GatesOf, form: FormOf) -> dict[str, Tensor]:
    """The tensors of a call with a state of layout VK, raw q and k if `options.qk` is raw, deterministic in
    the seed. Raises ContractError for options that are not possible."""
    _check_slots(options.padding, options.holes, options.slot_gap)
    (key_heads, value_heads), (key_dim, value_dim) = options.heads, options.head_dim
    batch, steps, reads = options.batch, options.steps, options.read_indices
    generator = torch.Generator().manual_seed(options.seed)
    dtypes = named_dtypes(options.dtype, options.state_dtype, options.offsets_dtype)
    tokens, per_head = batch * steps, (batch * steps, value_heads)
    q, k = queries_and_keys(
        (tokens, key_heads, key_dim),
        options.key_correlation,
        dtypes.activations,
        options.qk == "raw",
        generator,
        options.query_correlation,
    )
    by_token = {
        "q": q,
        "k": k,
        "v": torch.randn(tokens, value_heads, value_dim, generator=generator).to(dtypes.activations),
        "g": gates(per_head, generator),
        "beta": random_betas(per_head, options.beta, generator),
    }
    padded = int(options.padding * batch)
    added = {"own": batch - padded, "shared": 1}.get(reads, 0)
    pool = torch.randn(
        options.slots or tokens + 1 + added, value_heads, value_dim, key_dim, generator=generator
    )
    indices, read = _deal(batch, steps, len(pool), padded, reads, generator)
    more = {} if read is None else {"read_indices": read.to(torch.int32)}
    if options.speculative:
        more["num_accepted"] = torch.randint(1, steps + 1, (batch,), generator=generator, dtype=torch.int32)
    more |= form(by_token, generator)
    if options.holes:
        indices = _with_holes(indices, options.holes, read is None, more.get("num_accepted"), generator)
    tensors = {name: x.view(batch, steps, *x.shape[1:]) for name, x in by_token.items()}
    tensors |= {"state_indices": indices.to(dtypes.offsets), **more}
    tensors["state"] = (pool * (options.state_scale * key_dim**-0.5)).to(dtypes.states)
    return tensors


def _check_slots(padding: float, holes: float, slot_gap: int) -> None:
    """Raises ContractError unless shares are in [0, 1] and the gap is 0 or more."""
    for name, share in (("padding", padding), ("holes", holes)):
        if not 0 <= share <= 1:
            raise ContractError(f"{name} is {share:g}; it is a share, in [0, 1]")
    if slot_gap < 0:
        raise ContractError(f"slot_gap is {slot_gap}; slots lie 0 or more elements apart")


def _deal(
    batch: int, steps: int, slots: int, padded: int, reads: str, generator: Generator
) -> tuple[Tensor, Tensor | None]:
    """[B, S] distinct slots, with `padded` sequences of -1 at random positions, and with `reads` also [B]
    slots to read."""
    if reads not in READS:
        raise ContractError(f"read_indices is {reads!r}; it must be {' or '.join(READS)}")
    active = batch - padded
    extra = {"own": active, "shared": min(1, active)}.get(reads, 0)
    needed = active * steps + extra
    if slots < needed:
        raise ContractError(f"a pool of {slots} slots is too small: {active} sequences need {needed}")
    indices, read = torch.full((batch, steps), PADDING), torch.full((batch,), PADDING)
    running = torch.randperm(batch, generator=generator)[padded:]
    drawn = torch.randperm(slots, generator=generator)[:needed]
    indices[running] = drawn[: active * steps].view(-1, steps)
    if reads == "none":
        return indices, None
    read[running] = drawn[active * steps :] if extra else indices[running, 0 if reads == "first" else -1]
    return indices, read


def _with_holes(
    indices: Tensor, share: float, reads_own: bool, num_accepted: Tensor | None, generator: Generator
) -> Tensor:
    """Slots [B, S], of which a `share` is -1. Sequences that read their own slots keep those: without them
    they would be padding."""
    dropped = torch.rand(indices.shape, generator=generator) < share
    if reads_own:
        rows = torch.arange(len(indices))
        dropped[rows, 0 if num_accepted is None else num_accepted.long() - 1] = False
    return indices.masked_fill(dropped, PADDING)


def apart(pool: Tensor, gap: int) -> Tensor:
    """`pool` with `gap` elements of NaN after each slot, or itself without one."""
    if not gap:
        return pool
    length = pool[0].numel() if len(pool) else 0
    whole = torch.full((len(pool), length + gap), torch.nan, dtype=pool.dtype)
    whole[:, :length] = pool.flatten(1)
    return whole[:, :length].view(pool.shape)
