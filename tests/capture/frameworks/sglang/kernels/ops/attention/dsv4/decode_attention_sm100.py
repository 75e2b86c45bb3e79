# SPDX-License-Identifier: Apache-2.0
"""Small batches of DeepSeek-V4.1, over pages of rows of 584 bytes."""

from tests.capture.swa_engine import flash_mla


def swapab_attention(
    q,
    kv,
    indices,
    lengths,
    sink,
    extra_kv=None,
    extra_indices=None,
    extra_lengths=None,
    inv_rope=None,
    partial_gluon=None,
):
    sink, extra = sink[: q.shape[-2]], (extra_kv, extra_indices, extra_lengths)
    o, _ = flash_mla(q, kv, indices, lengths, sink, 512**-0.5, *extra)
    return o.squeeze(1)
