# SPDX-License-Identifier: Apache-2.0
"""The default size of a chunk of kda_prefill."""

CHUNK = 16
"""C: tokens of a chunk. A gate of -5 a token sums to -80 over 16 of them, and exp(80) is finite in float32:
published kernels take the exponentials relative to a row of the chunk."""
