"""Stands in for flash-linear-attention: its functions' signatures, computed by the definition."""
