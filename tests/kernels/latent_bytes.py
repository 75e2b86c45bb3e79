# SPDX-License-Identifier: Apache-2.0
"""Latent rows read from the bytes of their pages, in numpy: what the oracles of swa_decode and v4_decode are
compared with."""

from __future__ import annotations

import math

import numpy as np
import torch

from gdnbench_kernels.contract import Call


def e4m3(code: int) -> float:
    if code & 0x7F == 0x7F:
        return math.nan
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 0x80 else magnitude


E4M3 = np.array([e4m3(code) for code in range(256)])


def bf16(two: np.ndarray) -> np.ndarray:
    """fp64 values of bytes [..., 2n]."""
    words = np.ascontiguousarray(two).view(np.uint16).astype(np.uint32) << 16
    return words.view(np.float32).astype(np.float64)


def latent(call: Call, slot: int, pool: str = "") -> np.ndarray:
    """The row of a slot, fp64 [512], from the bytes of its page; of the window's cache, or of that whose
    tensors have the prefix `pool`."""
    cache = call.tensors[f"{pool}cache"]
    layout = call.conventions["extra_layout" if pool else "cache_layout"]
    block_size = cache.shape[1]
    block, offset = divmod(slot, block_size)
    if layout == "bfloat16":
        return bf16(cache[block, offset].view(torch.uint8).numpy())
    page = cache[block].view(torch.uint8).numpy().reshape(-1)
    if layout == "per_token_scale":
        scale = float(call.tensors[f"{pool}inv_scale"][slot])
        return np.asarray(E4M3[page[offset * 512 : offset * 512 + 512]] * scale)
    data = page[offset * 576 : offset * 576 + 576]
    scales = page[block_size * 576 + offset * 8 :][:7].astype(int)
    powers = [math.nan if scale == 255 else 2.0 ** (scale - 127) for scale in scales]
    return np.concatenate([E4M3[data[:448]] * np.repeat(powers, 64), bf16(data[448:])])
