"""The minimal cost of a call of gdn_prefill or kda_prefill: memory traffic and FLOP.

Bytes: the inputs but chunk tables, which follow from cu_seqlens, are read once, o and the final states
written once; q and k are read once for all value heads of a key head.

FLOP: those of the fused chunked form, which forms no W, since U - W S^T = Ai beta (V - exp(g_cu) K S^T). Per
value head and chunk of L tokens (L < C in the last chunk of a sequence), where a product of M x N over K is
2 M N K, masked parts included:

    K K^T, Q K^T                       L x L over K each
    Ai beta (V - ...), P V_new         L x V over L each
    K S^T, Q S^T                       L x V over K each
    V_new^T K                          V x K over L
    inverse of a unit lower triangle   L^3 / 3

With K = V = 128, two value heads per key head, fp32 gates, bf16 elsewhere and full chunks this is per token
and value head 165.2 kFLOP and 776 bytes in gdn_prefill, whose chunks have 64 tokens, and 114.8 kFLOP and 1284
bytes in kda_prefill, whose chunks have 16. These figures do not have exponentials, scalings and additions of
elements. In gdn_prefill they are below 1 %. In kda_prefill they are about 2.3 %: 1,024 products per token for
the decay of the state, K V every 16 tokens, 9 K for the factors of K and Q and their exponentials, and 4 K
others.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from collections.abc import Mapping

from gdnbench_kernels.chunks import plan_chunks
from gdnbench_kernels.contract import Call, ScalarSpec, Shaped, Work
from gdnbench_kernels.validate import resolved_scalars

_READ = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state", "A_log", "dt_bias")


def work_of(call: Call, scalars: tuple[ScalarSpec, ...], outputs: Mapping[str, Shaped]) -> Work:
    """The cost of a valid call, with the contract's `scalars` and outputs of these shapes and dtypes."""
    k, v = call.tensors["k"], call.tensors["v"]
    chunk_size = resolved_scalars(scalars, call)["chunk_size"]
    assert isinstance(chunk_size, int)
    lengths = plan_chunks(call.tensors["cu_seqlens"], chunk_size).length.tolist()
    flop = sum(_chunk_flop(int(length), k.shape[2], v.shape[2]) for length in lengths)
    there = (call.tensors.get(name) for name in _READ)
    read = sum(tensor.numel() * tensor.element_size() for tensor in there if tensor is not None)
    written = sum(math.prod(shape) * dtype.itemsize for shape, dtype in outputs.values())
    return Work(read=read, written=written, flop=round(v.shape[1] * flop))


def _chunk_flop(tokens: int, key_dim: int, value_dim: int) -> float:
    """FLOP of one chunk and value head."""
    within = 2 * 2 * tokens * tokens * (key_dim + value_dim)
    with_state = 3 * 2 * tokens * key_dim * value_dim
    return within + with_state + tokens**3 / 3
