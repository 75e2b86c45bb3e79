# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's function on SM120, over pages of rows of 584 bytes."""

from tests.capture.swa_engine import flash_mla


def flash_mla_with_kvcache_sm120(**kwargs):
    return flash_mla(
        kwargs["q"],
        kwargs["k_cache"],
        kwargs["indices"],
        kwargs["topk_length"],
        kwargs["attn_sink"],
        kwargs["softmax_scale"],
        kwargs["extra_k_cache"],
        kwargs["extra_indices_in_kvcache"],
        kwargs["extra_topk_length"],
    )
