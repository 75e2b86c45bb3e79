"""The sizes that the SM100 kernels are written for. Nothing here imports CuTe DSL."""

CHUNK = 64
"""C: tokens of a chunk."""
HEAD_DIM = 128
"""K and V."""
