# SPDX-License-Identifier: Apache-2.0
"""Operations of one lane on a value, shared by kernels. CuTe DSL, sm_90 and later."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

I32, F32 = cutlass.Int32, cutlass.Float32


def float_of(bits: Any) -> Any:
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[bits])


def widened(word: Any) -> tuple[Any, Any]:
    """Two bf16 as floats: low half, high half."""
    return float_of(word << 16), float_of(word & -65536)


def bfloats(low: Any, high: Any) -> Any:
    """Two floats, each rounded to bf16."""
    return cute.arch.inline_ptx(
        "cvt.rn.bf16x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[I32], read_only_args=[low, high]
    )


def reciprocal(x: Any) -> Any:
    """1 / x to within an ulp."""
    return cute.arch.inline_ptx(
        "rcp.approx.ftz.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x]
    )


def select_value(condition: Any, one: Any, other: Any) -> Any:
    """`one` if the condition holds, else `other`; the result has the type of `one`."""
    return type(one)(cutlass.select_(condition, one, other))
