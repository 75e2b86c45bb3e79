# SPDX-License-Identifier: Apache-2.0
"""The convolution on a pool of windows; a slot below 0 is null."""

import causal_convolution
import torch

PAD_SLOT_ID = -1


def causal_conv1d_fn(
    x,
    weight,
    bias,
    conv_states,
    query_start_loc,
    seq_lens_cpu,
    cache_indices=None,
    has_initial_state=None,
    activation="silu",
    pad_slot_id=PAD_SLOT_ID,
    validate_data=False,
    block_table=None,
    **kwargs,
):
    y = causal_convolution.prefill(
        x.T,
        weight,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        has_initial_state,
        activation,
        pad_slot_id,
    )
    return y.T


def causal_conv1d_update(
    x,
    conv_state,
    weight,
    bias=None,
    activation=None,
    cache_seqlens=None,
    conv_state_indices=None,
    num_accept_tokens=None,
    intermediate_conv_window=None,
    intermediate_state_indices=None,
    retrieve_next_token=None,
    retrieve_next_sibling=None,
    retrieve_parent_token=None,
    pad_slot_id=PAD_SLOT_ID,
    metadata=None,
    validate_data=False,
):
    tokens = x.shape[2] if x.ndim == 3 else 1
    rows = x.transpose(1, 2).flatten(0, 1) if x.ndim == 3 else x
    if intermediate_conv_window is not None:
        columns = weight.shape[1] - 1
        for n, slot in enumerate(conv_state_indices.tolist()):
            if slot != pad_slot_id:
                inputs = torch.cat([conv_state[slot, :, :columns], x[n]], dim=1)
                for t in range(tokens):
                    kept = intermediate_conv_window[intermediate_state_indices[n], t]
                    kept.copy_(inputs[:, t + 1 : t + 1 + columns])
    y = causal_convolution.update(
        rows,
        weight,
        bias,
        conv_state,
        torch.arange(len(x) + 1) * tokens,
        conv_state_indices,
        num_accept_tokens,
        activation,
        pad_slot_id,
    )
    return y.view(len(x), tokens, -1).transpose(1, 2) if x.ndim == 3 else y
