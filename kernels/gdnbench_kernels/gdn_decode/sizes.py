# SPDX-License-Identifier: Apache-2.0
"""Sizes that the compiled kernel of gdn_decode supports."""

HEAD_DIM = 128
"""K and V."""
MAX_TOKENS = 8
"""S."""
MAX_BATCH = 65_535
"""B: the largest grid extent in y."""
ALIGN = 16
"""Alignment of q, k, v, o, their rows and every slot in bytes: a lane copies that many at once."""
