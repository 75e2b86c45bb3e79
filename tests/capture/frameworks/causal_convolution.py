# SPDX-License-Identifier: Apache-2.0
"""The causal convolution by torch's conv1d, which the packages of this folder call."""

import torch


def convolve(x, window, weight, bias, activation):
    """y [n, D] of x [n, D] after `window` [D, W-1], in fp32, and both in a row, [D, W-1 + n]."""
    inputs = torch.cat([window.to(x.dtype), x.T], dim=1)
    if not len(x):
        return x, inputs
    wide = None if bias is None else bias.float()
    y = torch.nn.functional.conv1d(
        inputs[None].float(), weight.float().unsqueeze(1), wide, groups=len(weight)
    )[0].T
    if activation in ("silu", "swish", True):
        y = torch.nn.functional.silu(y)
    return y.to(x.dtype), inputs


def prefill(x, weight, bias, pool, bounds, slots, initial, activation, null):
    """y [T, D] of packed x [T, D]; the first W-1 columns of the slots are updated."""
    y, columns = torch.zeros_like(x), weight.shape[1] - 1
    for n in range(len(bounds) - 1):
        rows, slot = slice(int(bounds[n]), int(bounds[n + 1])), int(slots[n])
        if slot == null or rows.start == rows.stop:
            continue
        window = (
            pool[slot, :, :columns]
            if initial is not None and bool(initial[n])
            else pool.new_zeros(pool.shape[1], columns)
        )
        y[rows], inputs = convolve(x[rows], window, weight, bias, activation)
        pool[slot, :, :columns] = inputs[:, -columns:]
    return y


def update(x, weight, bias, pool, bounds, slots, accepted, activation, null):
    """y [T, D] of packed x [T, D]; with `accepted` a slot keeps the windows after all tokens."""
    y, columns = torch.zeros_like(x), weight.shape[1] - 1
    for n in range(len(bounds) - 1):
        rows, slot = slice(int(bounds[n]), int(bounds[n + 1])), int(slots[n])
        if slot == null or rows.start == rows.stop:
            continue
        first = 0 if accepted is None else int(accepted[n]) - 1
        y[rows], inputs = convolve(
            x[rows], pool[slot, :, first : first + columns].clone(), weight, bias, activation
        )
        if accepted is None:
            pool[slot, :, :columns] = inputs[:, -columns:]
        else:
            pool[slot, :, : inputs.shape[1] - 1] = inputs[:, 1:]
    return y
