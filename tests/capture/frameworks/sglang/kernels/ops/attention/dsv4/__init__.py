# SPDX-License-Identifier: Apache-2.0
"""Kernels of DeepSeek-V4."""

from .compress import compress_forward as compress_forward
from .topk import topk_transform_paged as topk_transform_paged
from .topk import topk_transform_paged_v2 as topk_transform_paged_v2
