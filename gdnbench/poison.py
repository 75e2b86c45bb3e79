# SPDX-License-Identifier: Apache-2.0
"""Bit patterns that memory is filled with so that what was never written, or wrongly read, shows."""

from __future__ import annotations

import torch
from torch import Tensor

from gdnbench.bits import as_integers

# Quiet NaNs with a payload that no arithmetic makes, where the format has room for one.
_NANS = {
    torch.bfloat16: 0x7FD5,
    torch.float16: 0x7ED5,
    torch.float32: 0x7FC0D05E,
    torch.float64: 0x7FF8D05E_D05ED05E,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7F,
    torch.float8_e8m0fnu: 0xFF,
    torch.float8_e4m3fnuz: 0x80,
    torch.float8_e5m2fnuz: 0x80,
    # Bytes are what paged caches hold their codes in: a NaN in e4m3, e5m2 and ue8m0, in pairs in bfloat16.
    torch.uint8: 0xFF,
}
_INTEGER_BYTE = 0xA5


def poison_bits(dtype: torch.dtype) -> int:
    """The pattern of a dtype, as a value of the integer dtype of its size: a NaN, or 0xA5 in every byte."""
    if dtype in _NANS:
        return _NANS[dtype]
    if dtype == torch.bool:
        return 1
    return int.from_bytes(bytes([_INTEGER_BYTE]) * dtype.itemsize, "little", signed=dtype != torch.uint8)


def poison(tensor: Tensor) -> Tensor:
    """Fill `tensor` in place and return it."""
    as_integers(tensor).fill_(poison_bits(tensor.dtype))
    return tensor


def poisoned(tensor: Tensor) -> Tensor:
    """Which elements still hold the pattern; bool, of `tensor`'s shape."""
    return as_integers(tensor) == poison_bits(tensor.dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and dtype agree in every bit."""
    return torch.equal(as_integers(a), as_integers(b))
