# SPDX-License-Identifier: Apache-2.0
from .kernels import chunk_kda_with_fused_gate as chunk_kda_with_fused_gate
from .kernels import fused_recurrent_kda as fused_recurrent_kda
