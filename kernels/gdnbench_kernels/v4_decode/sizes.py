# SPDX-License-Identifier: Apache-2.0
"""Sizes of v4_decode beside those of swa_decode."""

MAX_QUERIES = 8
"""Query tokens of a request: the next token and drafts."""
MAX_TOPK = 2048
"""Entries of the extra segment where they are slots. A table of pages may be longer."""
EXTRA_BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Compressed rows of a page: 256 tokens are 64 rows of ratio 4 and 2 rows of ratio 128."""
TILE = 128
"""Positions up to whose multiple a kernel that gathers before it masks reads a table of pages."""
GATHERED_ENTRIES = 1 << 16
"""Entries that the torch kernel gathers at once: 128 MiB in fp32."""
