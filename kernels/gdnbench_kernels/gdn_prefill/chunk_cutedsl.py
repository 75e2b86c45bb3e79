"""Shared by the wrappers of vLLM's CuTe DSL prefill and of SGLang's copy of it: the calls that the kernels
take, and their inputs."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench_kernels.delta_prefill.chunked import final_dtype
from gdnbench_kernels.gdn import default_scale
from gdnbench_kernels.gdn_prefill.params import PrefillParams
from gdnbench_kernels.peers import contiguous_aligned, require_dims, require_dtypes

HEAD_DIM = 128
CHUNK = 64
HEADS = 4  # of fp32 gates in 16 bytes: the kernels are compiled for rows that are multiples of it


def gated_inputs(params: PrefillParams) -> dict[str, Tensor]:
    """q, k, v [1, T, heads, dim], and g and beta [1, T, Hv] in fp32, as the engines make them."""
    inputs = {"q": params.q, "k": params.k, "v": params.v, "g": params.g.float(), "beta": params.beta.float()}
    return {name: contiguous_aligned(x).unsqueeze(0) for name, x in inputs.items()}


def refuse(params: PrefillParams, peer: str) -> None:
    """Raises NotImplementedError for a call that the CuTe DSL kernels of `peer` do not take."""
    require_dims(peer, params.k, params.v, HEAD_DIM)
    require_dtypes(peer, "q, k and v", params.q, torch.bfloat16)
    require_dtypes(peer, "initial_state", params.initial_state, torch.float32, torch.bfloat16)
    if params.chunk_size != CHUNK:
        raise NotImplementedError(f"{peer} takes chunks of {CHUNK} tokens, not of {params.chunk_size}")
    if not len(params.q):
        raise NotImplementedError(f"{peer} launches nothing for no tokens")
    if params.v.shape[1] % HEADS:
        raise NotImplementedError(f"{peer} takes a multiple of {HEADS} value heads, not {params.v.shape[1]}")
    scale = default_scale(None, HEAD_DIM)
    if default_scale(params.scale, HEAD_DIM) != scale:
        raise NotImplementedError(f"{peer} scales by K ** -0.5 = {scale:.4g}, not by {params.scale}")
    if params.initial_state is None and final_dtype(None, params.final_state_dtype) is torch.float16:
        raise NotImplementedError(f"{peer} takes states as float32 or bfloat16, not as float16")
