"""A workbench for Gated DeltaNet and DeepSeek-V4 attention kernels: capture, replay, diff, bisect.

PYTEST_DONT_REWRITE: it rewrites the assertions of packages that come with a plugin, and would warn of one
that `GDNBENCH_CAPTURE` imports ahead of it. There are none here.
"""

from gdnbench.version import __version__

__all__ = ["__version__"]
