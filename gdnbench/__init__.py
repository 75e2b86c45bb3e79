"""A workbench for Gated DeltaNet and DeepSeek-V4 attention kernels: capture, replay, diff, bisect."""

from gdnbench.version import __version__

__all__ = ["__version__"]
