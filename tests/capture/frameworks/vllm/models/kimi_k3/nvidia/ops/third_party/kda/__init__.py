# SPDX-License-Identifier: Apache-2.0
from .chunk import chunk_kda as chunk_kda
from .chunk import chunk_kda_with_fused_gate as chunk_kda_with_fused_gate
from .fused_recurrent import fused_recurrent_kda as fused_recurrent_kda
from .fused_recurrent import fused_recurrent_kda_packed_decode as fused_recurrent_kda_packed_decode
