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
    o, _ = flash_mla(q, kv, indices, lengths, sink[: q.shape[-2]], 512**-0.5)
    return o.squeeze(1)
