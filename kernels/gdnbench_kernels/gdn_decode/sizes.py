"""Sizes that the compiled kernel of gdn_decode is written for."""

HEAD_DIM = 128
"""K and V."""
MAX_TOKENS = 8
"""S."""
MAX_BATCH = 65_535
"""B: what a grid may have in y."""
