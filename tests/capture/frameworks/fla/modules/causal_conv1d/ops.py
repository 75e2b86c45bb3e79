# SPDX-License-Identifier: Apache-2.0
"""The short convolution; a state is [N, D, W], whose first column is never read."""

import torch
from causal_convolution import convolve
from torch import nn


def causal_conv1d(
    x,
    weight=None,
    bias=None,
    residual=None,
    initial_state=None,
    output_final_state=False,
    activation=None,
    backend="triton",
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    cp_context=None,
    **kwargs,
):
    rows, columns = x.flatten(0, 1), weight.shape[1] - 1
    bounds = range(0, len(rows) + 1, x.shape[1]) if cu_seqlens is None else cu_seqlens.tolist()
    y, final = torch.zeros_like(rows), rows.new_zeros(len(bounds) - 1, x.shape[2], weight.shape[1])
    for n in range(len(bounds) - 1):
        part = slice(bounds[n], bounds[n + 1])
        window = rows.new_zeros(x.shape[2], columns) if initial_state is None else initial_state[n, :, 1:]
        y[part], inputs = convolve(rows[part], window, weight, bias, activation)
        kept = inputs[:, -weight.shape[1] :]
        final[n, :, weight.shape[1] - kept.shape[1] :] = kept
    return y.view(x.shape), final if output_final_state else None


def causal_conv1d_update(x, cache, residual=None, weight=None, bias=None, activation=None):
    rows = x.reshape(-1, x.shape[-1])
    y = torch.zeros_like(rows)
    for n in range(len(rows)):
        y[n : n + 1], inputs = convolve(rows[n : n + 1], cache[n, :, 1:], weight, bias, activation)
        cache[n] = inputs
    return y.view(x.shape), cache


class ShortConvolution(nn.Module):
    def __init__(self, weight, activation="silu"):
        super().__init__()
        self.weight, self.activation = weight, activation

    def forward(self, x, cache=None, output_final_state=False, cu_seqlens=None):
        if x.shape[1] == 1 and cache is not None:
            return causal_conv1d_update(x, cache, None, self.weight, None, self.activation)
        return causal_conv1d(
            x=x,
            weight=self.weight,
            initial_state=cache,
            output_final_state=output_final_state,
            activation=self.activation,
            cu_seqlens=cu_seqlens,
        )
