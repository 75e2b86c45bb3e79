"""Stands in for FlashInfer: its functions' signatures, computed by the definition."""

from .gdn_prefill import chunk_gated_delta_rule as chunk_gated_delta_rule
