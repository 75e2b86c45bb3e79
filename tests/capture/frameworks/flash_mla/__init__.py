# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's own package."""

from flash_mla.flash_mla_interface import flash_mla_with_kvcache

__all__ = ["flash_mla_with_kvcache"]
