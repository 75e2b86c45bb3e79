# SPDX-License-Identifier: Apache-2.0
from .mla import trtllm_batch_decode_sparse_mla_dsv4 as trtllm_batch_decode_sparse_mla_dsv4
