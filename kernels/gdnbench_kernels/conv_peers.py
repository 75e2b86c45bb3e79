"""Shared by the wrappers of vLLM's and SGLang's causal convolution, which are Triton kernels of one origin.

A launch is a call of the package's function on the pool in place. vLLM takes slot 0 for no slot: where a call
has a window in slot 0, the slots that it names are gathered before the launch into a pool whose slot 0 is
empty, and scattered back after it.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnbench_kernels.conv import PADDING

MOST_TAPS = 4
TOKENS_A_PROGRAM = 8
"""BLOCK_M of the prefill kernels: vLLM's table of programs enumerates chunks of it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool and the slots [N] int32 of a launch, with `null` for padding. `scatter` writes gathered slots
    back."""

    states: Tensor
    indices: Tensor
    scatter: Callable[[], None]


def pool_of_launch(
    pool: Tensor, slots: Tensor, active: Sequence[int], touched: Sequence[int], null: int
) -> Pool:
    """`pool` [slots, D, L] with the `slots` [N] of its `active` sequences; the `touched` slots alone, behind
    an empty one, if `null` is one of them."""
    idle = torch.ones(len(slots), dtype=torch.bool)
    idle[list(active)] = False
    here = slots.cpu().long().masked_fill(idle, PADDING)
    states = pool
    gathered = null in touched
    rows = torch.tensor(list(touched), dtype=torch.long)
    if gathered:
        empty = torch.zeros_like(pool[:1], memory_format=torch.contiguous_format)
        states = torch.cat([empty, pool[rows.to(pool.device)]])
        here = torch.where(here == PADDING, PADDING, torch.searchsorted(rows, here) + 1)
    indices = here.masked_fill(here == PADDING, null).int().to(pool.device)

    def scatter() -> None:
        if gathered:
            pool[rows.to(pool.device)] = states[1:]

    return Pool(states, indices, scatter)


def check_taps(peer: str, weight: Tensor) -> None:
    """Raises NotImplementedError for more taps than the kernels have branches for."""
    if weight.shape[1] > MOST_TAPS:
        raise NotImplementedError(f"{peer} takes 2 to {MOST_TAPS} taps, not {weight.shape[1]}")


def activation_of(activation: str) -> str | None:
    """The argument `activation` of the packages' functions."""
    return None if activation == "none" else activation


def owed(values: Tensor, bounds: Sequence[tuple[int, int]], active: Sequence[int]) -> Tensor:
    """A copy of y [T, D] with NaN in rows of no active sequence."""
    y = torch.full_like(values, torch.nan, memory_format=torch.contiguous_format)
    for n in active:
        y[slice(*bounds[n])] = values[slice(*bounds[n])]
    return y


def even_tokens(peer: str, bounds: Sequence[tuple[int, int]], tokens: int) -> int:
    """The number of tokens that every sequence of `tokens` has. Raises NotImplementedError if they differ."""
    lengths = {stop - start for start, stop in bounds}
    if len(lengths) != 1 or sum(stop - start for start, stop in bounds) != tokens:
        raise NotImplementedError(f"{peer} takes sequences of one number of tokens, without accepted drafts")
    return lengths.pop()


@dataclass(frozen=True, slots=True)
class ProgramTable:
    """What vLLM's prefill function takes as `metadata`: the sequence and the chunk of each program."""

    nums_dict: dict[int, dict[str, Any]]
    batch_ptr: Tensor
    token_chunk_offset_ptr: Tensor


def program_table(bounds: Sequence[tuple[int, int]], device: torch.device) -> ProgramTable:
    """The table for sequences of these tokens."""
    chunks = [-(-(stop - start) // TOKENS_A_PROGRAM) for start, stop in bounds]
    sequence = [n for n, count in enumerate(chunks) for _ in range(count)]
    chunk = [place for count in chunks for place in range(count)]
    tables = [torch.tensor(one, dtype=torch.int32) for one in (sequence, chunk)]
    batch, offset = (table.to(device) for table in tables)
    found = {
        "tot": len(sequence),
        "mlist": tables[0],
        "mlist_len": len(sequence),
        "offsetlist": tables[1],
        "batch_ptr": batch,
        "token_chunk_offset_ptr": offset,
    }
    return ProgramTable({TOKENS_A_PROGRAM: found}, batch, offset)
