# SPDX-License-Identifier: Apache-2.0
"""Examples of the arguments of a decode kernel, which have only types: what CuTe DSL compiles for."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from gdnbench_kernels.gdn_decode.sizes import ALIGN, HEAD_DIM

_TYPES = {"float32": cutlass.Float32, "bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}
_make: Any = make_fake_tensor


class ExampleTensors:
    """Of a call with S = `tokens`. B, H, Hv, the number of slots and the strides are run-time values."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._batch, self._heads, self._value_heads = cute.sym_int(), cute.sym_int(), cute.sym_int()

    def operands(self) -> tuple[Any, Any, Any]:
        """q, k [B, S, H, 128] and v [B, S, Hv, 128], bfloat16."""
        return self._rows(self._heads), self._rows(self._heads), self.values("bfloat16")

    def values(self, dtype: str, align: int = ALIGN) -> Any:
        """[B, S, Hv, 128], rows contiguous and aligned to `align` bytes."""
        return self._rows(self._value_heads, dtype, align)

    def by_head(self, dtype: str) -> Any:
        """[B, S, Hv], any strides."""
        strides = tuple(cute.sym_int64() for _ in range(3))
        shape = (self._batch, self._tokens, self._value_heads)
        return _make(_TYPES[dtype], shape, strides, assumed_align=_bytes(dtype))

    def per_head(self, dtype: str, *more: int, align: int = 0) -> Any:
        """[Hv, *more], contiguous and aligned to `align` bytes, or to an element."""
        strides, step = [1], 1
        for size in reversed(more):
            step *= size
            strides.insert(0, step)
        align = align or _bytes(dtype)
        return _make(_TYPES[dtype], (self._value_heads, *more), tuple(strides), assumed_align=align)

    def pool(self, state_dtype: str, reads: str) -> tuple[Any, Any, Any, Any]:
        """state, state_indices, num_accepted, read_indices; at most one of the last two is not None."""
        slot_stride = cute.sym_int64(divisibility=ALIGN // _bytes(state_dtype))
        state = _make(
            _TYPES[state_dtype],
            (cute.sym_int(), self._value_heads, HEAD_DIM, HEAD_DIM),
            (slot_stride, HEAD_DIM**2, HEAD_DIM, 1),
            assumed_align=ALIGN,
        )
        strides = (cute.sym_int64(), cute.sym_int64())
        indices = _make(cutlass.Int32, (self._batch, self._tokens), strides, assumed_align=4)
        accepted, given = (
            _make(cutlass.Int32, (self._batch,), (1,), assumed_align=4) if reads == one else None
            for one in ("accepted", "given")
        )
        return state, indices, accepted, given

    def _rows(self, heads: Any, dtype: str = "bfloat16", align: int = ALIGN) -> Any:
        strides = tuple(cute.sym_int64(divisibility=align // _bytes(dtype)) for _ in range(3))
        shape = (self._batch, self._tokens, heads, HEAD_DIM)
        return _make(_TYPES[dtype], shape, (*strides, 1), assumed_align=align)


def number() -> Any:
    """A float32."""
    return cutlass.Float32(1.0)


def stream() -> Any:
    return make_fake_stream()


def _bytes(dtype: str) -> int:
    return int(_TYPES[dtype].width) // 8
