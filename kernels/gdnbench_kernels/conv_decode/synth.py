# SPDX-License-Identifier: Apache-2.0
"""Synthetic inputs for conv_decode."""

from __future__ import annotations

import torch

from gdnbench_kernels.contract import Call, ContractError
from gdnbench_kernels.conv import ACTIVATIONS, OFFSETS, PADDING
from gdnbench_kernels.conv_inputs import check_share, dealt_slots, made_inputs, spaced_pool
from gdnbench_kernels.gdn_inputs import named_dtype

WINDOWS = ("last", "each", "rolling")


def synth(
    *,
    batch: int = 4,
    steps: int = 1,
    ragged: bool = False,
    windows: str = "last",
    speculative: bool = False,
    read_indices: bool = False,
    slots: int = 0,
    channels: int = 96,
    width: int = 4,
    bias: bool = False,
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

    `batch`: N sequences; `steps`: tokens of each, or, with `ragged`, at most, drawn from 0. `windows`: a
    sequence's slot keeps the `last` window; or it has a slot for the window after `each` token; or its slot
    keeps all of them, `rolling`, which gives num_accepted. `speculative`: so do `each`, random in 1 .. S.
    `read_indices`: each sequence reads a slot that no one writes. `slots`: size of the pool, as many as are
    needed and one if 0, dealt at random. `channels`: D; `width`: W. `bias`: it is given. `padding`: share of
    the sequences that are padding, rounded down. `slot_gap`: elements between one slot and the next.
    `x_scale`: factor of inputs and windows, which are near 1. `weight_dtype`: of weight and bias; `dtype` if
    empty. `nan_at`: tokens, counted over the whole batch, whose inputs are NaN.
    """
    check_share("padding", padding)
    if windows not in WINDOWS:
        raise ContractError(f"windows is {windows!r}; it must be {' or '.join(WINDOWS)}")
    if read_indices and (speculative or windows == "rolling"):
        raise ContractError("read_indices and num_accepted each say which window is read; ask for one")
    if speculative and windows == "last":
        raise ContractError("speculative needs a window of every token: windows each or rolling")
    generator = torch.Generator().manual_seed(seed)
    of_x, of_offsets = (
        named_dtype("dtype", dtype, ACTIVATIONS),
        named_dtype("offsets_dtype", offsets_dtype, OFFSETS),
    )
    of_weight = named_dtype("weight_dtype", weight_dtype or dtype, ACTIVATIONS)
    lengths = torch.full((batch,), steps)
    if ragged:
        lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    tensors = made_inputs(
        "conv_decode",
        int(lengths.sum()),
        (channels, width),
        bias,
        x_scale,
        (of_x, of_weight),
        nan_at,
        generator,
    )
    tensors["cu_seqlens"] = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(of_offsets)
    each = steps if windows == "each" else 1
    dealt = each + read_indices
    size = slots or batch * dealt + 1
    indices = dealt_slots(batch, dealt, size, int(padding * batch), generator)
    if read_indices:
        tensors["read_indices"] = indices[:, -1].to(torch.int32)
    tensors["state_indices"] = indices[:, :each].to(of_offsets)
    if windows == "rolling" or speculative:
        accepted = torch.randint(1, max(steps, 1) + 1, (batch,), generator=generator)
        tensors["num_accepted"] = accepted.masked_fill(indices[:, 0] == PADDING, 0).to(torch.int32)
    columns = width - 1 + (steps - 1 if windows == "rolling" else 0)
    state = torch.randn(size, channels, columns, generator=generator) * x_scale
    tensors["conv_state"] = spaced_pool(state.to(of_x), slot_gap)
    return Call(tensors, {"activation": activation}, {})
