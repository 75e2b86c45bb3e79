# SPDX-License-Identifier: Apache-2.0
"""Pickles of values that hold tensors, for workers of Dask, which copies the bytes and does not read them."""

from __future__ import annotations

import io
import pickle
from typing import Any

from torch import Tensor

from gdnbench.bits import Bits, dtype_name, from_bits, to_bits


class _Pickler(pickle.Pickler):
    """Pickles a tensor as its bits: every dtype and NaN survives, and a view brings its own elements only."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _tensor_of_bits, (to_bits(value), dtype_name(value.dtype))
        return NotImplemented


def _tensor_of_bits(bits: Bits, dtype: str) -> Tensor:
    return from_bits(bits, dtype)


def dumps(value: object) -> bytes:
    """`value` as bytes for `loads`."""
    sink = io.BytesIO()
    _Pickler(sink, pickle.HIGHEST_PROTOCOL).dump(value)
    return sink.getvalue()


def loads(data: bytes) -> Any:
    """The value that `dumps` was given. As with any pickle, whoever made `data` can run code in this process;
    whoever owns the Dask cluster can do so already."""
    return pickle.loads(data)
