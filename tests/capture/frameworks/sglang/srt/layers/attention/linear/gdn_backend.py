# SPDX-License-Identifier: Apache-2.0
"""The names of the convolution that SGLang's backend binds."""

from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn, causal_conv1d_update

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
