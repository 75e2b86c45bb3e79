# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs of the convolution's operations. All values depend only on the seed of a CPU generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from gdnbench_kernels.contract import ContractError
from gdnbench_kernels.conv import PADDING


def check_share(name: str, share: float) -> None:
    """Raises ContractError unless the share is in [0, 1]."""
    if not 0 <= share <= 1:
        raise ContractError(f"{name} is {share:g}; it is a share, in [0, 1]")


def made_inputs(
    op: str,
    tokens: int,
    sizes: tuple[int, int],
    bias: bool,
    x_scale: float,
    dtypes: tuple[torch.dtype, torch.dtype],
    nan_at: Sequence[int],
    generator: Generator,
) -> dict[str, Tensor]:
    """x [T, D], weight [D, W] and, if asked for, bias [D]; `sizes` are D and W, `dtypes` those of x and of
    the others. Taps have the scale of a layer's initialisation, W ** -0.5. Raises ContractError for a token
    that does not exist."""
    channels, width = sizes
    if width < 2 or channels < 1:
        raise ContractError(f"{op}: width is {width} and channels {channels}; they are at least 2 and 1")
    x = torch.randn(tokens, channels, generator=generator) * x_scale
    for token in nan_at:
        if not 0 <= token < tokens:
            raise ContractError(f"{op}: nan_at names token {token}; there are {tokens}")
        x[token] = torch.nan
    tensors = {"x": x.to(dtypes[0])}
    tensors["weight"] = (torch.randn(channels, width, generator=generator) * width**-0.5).to(dtypes[1])
    if bias:
        tensors["bias"] = torch.randn(channels, generator=generator).to(dtypes[1])
    return tensors


def dealt_slots(sequences: int, each: int, slots: int, padded: int, generator: Generator) -> Tensor:
    """[sequences, each] distinct slots, with `padded` sequences of -1 at random positions. Raises
    ContractError for a pool that is too small."""
    active = sequences - padded
    if slots < active * each:
        raise ContractError(f"a pool of {slots} slots is too small: {active} sequences need {active * each}")
    indices = torch.full((sequences, each), PADDING)
    running = torch.randperm(sequences, generator=generator)[padded:]
    indices[running] = torch.randperm(slots, generator=generator)[: active * each].view(-1, each)
    return indices


def spaced_pool(pool: Tensor, gap: int) -> Tensor:
    """`pool` with `gap` elements of NaN after each slot, or itself without one. Raises ContractError for a
    negative gap."""
    if gap < 0:
        raise ContractError(f"slot_gap is {gap}; slots lie 0 or more elements apart")
    if not gap or not len(pool):
        return pool
    length = pool[0].numel()
    whole = torch.full((len(pool), length + gap), torch.nan, dtype=pool.dtype)
    whole[:, :length] = pool.flatten(1)
    return whole[:, :length].view(pool.shape)
