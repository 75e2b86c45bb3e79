# SPDX-License-Identifier: Apache-2.0
"""The formats of `gdnbench export`, for a command that explains its options without what writes them."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    SAFETENSORS = "safetensors"
    NPZ = "npz"
    PT = "pt"
