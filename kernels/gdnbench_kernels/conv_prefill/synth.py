# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for conv_prefill."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.conv import ACTIVATIONS, OFFSETS
from gdnbench_kernels.conv_inputs import check_share, dealt_slots, made_inputs, spaced_pool
from gdnbench_kernels.gdn_inputs import named_dtype


def synth(
    *,
    seqlens: tuple[int, ...] = (1, 2, 3, 64, 200),
    channels: int = 96,
    width: int = 4,
    bias: bool = False,
    pool: bool = True,
    initial_states: float = 0.5,
    slots: int = 0,
    padding: float = 0.0,
    slot_gap: int = 0,
    activation: str = "silu",
    x_scale: float = 1.0,
    dtype: str = "bfloat16",
    weight_dtype: str = "",
    offsets_dtype: str = "int32",
    nan_at: tuple[int, ...] = (),
    seed: int = 0,
) -> Call:
    """A valid call, deterministic in `seed`.

    `seqlens`: tokens of each sequence, zero allowed. `channels`: D; `width`: W. `bias`: it is given. `pool`:
    the call has conv_state, of `slots` slots (as many as are needed and one if 0), dealt at random.
    `initial_states`: share of the sequences, rounded down, whose slot holds the window before them, drawn.
    `padding`: share of the sequences that have no slot, rounded down. `slot_gap`: elements between one slot
    and the next. `x_scale`: factor of the inputs, which are near 1. `weight_dtype`: of weight and bias;
    `dtype` if empty. `nan_at`: tokens, counted over the whole batch, whose inputs are NaN.
    """
    if min(seqlens, default=0) < 0:
        raise ContractError(f"seqlens has {min(seqlens)}; a sequence has 0 or more tokens")
    for name, share in (("padding", padding), ("initial_states", initial_states)):
        check_share(name, share)
    generator = torch.Generator().manual_seed(seed)
    of_x, of_offsets = (
        named_dtype("dtype", dtype, ACTIVATIONS),
        named_dtype("offsets_dtype", offsets_dtype, OFFSETS),
    )
    of_weight = named_dtype("weight_dtype", weight_dtype or dtype, ACTIVATIONS)
    sequences = len(seqlens)
    tensors = made_inputs(
        "conv_prefill", sum(seqlens), (channels, width), bias, x_scale, (of_x, of_weight), nan_at, generator
    )
    tensors["cu_seqlens"] = torch.tensor([0, *seqlens]).cumsum(0).to(of_offsets)
    if pool:
        padded = int(padding * sequences)
        size = slots or sequences + 1
        indices = dealt_slots(sequences, 1, size, padded, generator)[:, 0]
        initial = torch.zeros(sequences, dtype=torch.bool)
        initial[torch.randperm(sequences, generator=generator)[: int(initial_states * sequences)]] = True
        state = torch.randn(size, channels, width - 1, generator=generator) * x_scale
        tensors["conv_state"] = spaced_pool(state.to(of_x), slot_gap)
        tensors |= {"state_indices": indices.to(of_offsets), "has_initial_state": initial}
    return Call(tensors, {"activation": activation}, {})
