# SPDX-License-Identifier: Apache-2.0
"""Stands in for FlashInfer: its functions' signatures, computed by the definition."""

from .gdn_prefill import chunk_gated_delta_rule as chunk_gated_delta_rule
from .kda import recurrent_kda as recurrent_kda
from .kda_decode import fused_kda_decode as fused_kda_decode
from .kda_decode import packed_kda_decode as packed_kda_decode
