# SPDX-License-Identifier: Apache-2.0
"""The sizes that the SM100 kernels support. Does not import CuTe DSL."""

CHUNK = 64
"""C: tokens of a chunk."""
HEAD_DIM = 128
"""K and V."""
