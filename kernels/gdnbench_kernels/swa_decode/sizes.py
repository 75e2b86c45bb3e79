# SPDX-License-Identifier: Apache-2.0
"""Sizes shared by all files of swa_decode."""

HEAD_DIM = 512
"""Features of a query and of a latent row, which is key and value at once."""
ROPE_DIM = 64
"""The last features of a row encode the position; `fp8_ds_mla` stores them in bfloat16."""
NOPE_DIM = HEAD_DIM - ROPE_DIM
GROUP = 64
"""Features that share a scale in `fp8_ds_mla`."""
GROUPS = NOPE_DIM // GROUP
MAX_WINDOW = 128
BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Allowed numbers of tokens per page."""
MAX_HEADS = 128
TILE_HEADS = 64
"""Heads per item of the sm100 kernel."""
