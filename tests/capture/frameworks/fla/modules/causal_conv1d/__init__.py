# SPDX-License-Identifier: Apache-2.0
from fla.modules.causal_conv1d.ops import ShortConvolution, causal_conv1d, causal_conv1d_update

__all__ = ["ShortConvolution", "causal_conv1d", "causal_conv1d_update"]
