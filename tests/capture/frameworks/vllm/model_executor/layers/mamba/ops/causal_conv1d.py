# SPDX-License-Identifier: Apache-2.0
"""The convolution on a pool of windows; slot 0 is null."""

import causal_convolution
import torch

PAD_SLOT_ID, NULL_BLOCK_ID = -1, 0


def causal_conv1d_fn(
    x,
    weight,
    bias,
    conv_states,
    query_start_loc,
    cache_indices=None,
    has_initial_state=None,
    activation="silu",
    pad_slot_id=PAD_SLOT_ID,
    null_block_id=NULL_BLOCK_ID,
    metadata=None,
    validate_data=False,
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
        null_block_id,
    )
    return y.T


def causal_conv1d_update(
    x,
    conv_state,
    weight,
    bias=None,
    activation=None,
    conv_state_indices=None,
    num_accepted_tokens=None,
    query_start_loc=None,
    max_query_len=-1,
    null_block_id=NULL_BLOCK_ID,
    validate_data=False,
    out=None,
):
    """Overwrites x unless `out` is given, as vLLM does."""
    left = x if out is None else out
    tokens = x.shape[2] if x.ndim == 3 else 1
    rows = x.transpose(1, 2).flatten(0, 1) if x.ndim == 3 else x
    bounds = torch.arange(len(x) + 1) * tokens if query_start_loc is None else query_start_loc
    y = causal_convolution.update(
        rows,
        weight,
        bias,
        conv_state,
        bounds[: len(conv_state_indices) + 1],
        conv_state_indices,
        num_accepted_tokens,
        activation,
        null_block_id,
    )
    return left.copy_(y.view(len(x), tokens, -1).transpose(1, 2) if x.ndim == 3 else y)
