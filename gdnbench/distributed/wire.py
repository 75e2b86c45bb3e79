"""Between coordinator and workers: bytes, so that the engine in between copies and never looks inside."""

from __future__ import annotations

import io
import pickle
from typing import Any

from torch import Tensor

from gdnbench.bits import Bits, dtype_name, from_bits, to_bits


class _Pickler(pickle.Pickler):
    """Tensors travel as their bits: every dtype and NaN as it is, and of a view no more than it shows."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _tensor, (to_bits(value), dtype_name(value.dtype))
        return NotImplemented


def _tensor(bits: Bits, dtype: str) -> Tensor:
    return from_bits(bits, dtype)


def dumps(value: object) -> bytes:
    sink = io.BytesIO()
    _Pickler(sink, pickle.HIGHEST_PROTOCOL).dump(value)
    return sink.getvalue()


def loads(data: bytes) -> Any:
    """What `dumps` was given. As with any pickle, whoever made `data` runs code here: whose cluster it is
    does so already."""
    return pickle.loads(data)
