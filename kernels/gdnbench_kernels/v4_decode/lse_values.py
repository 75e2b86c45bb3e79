# SPDX-License-Identifier: Apache-2.0
"""lse in the form that a call asks for, computed by one lane. CuTe DSL, sm_90 and later."""

from __future__ import annotations

from math import e, inf, log, log2
from typing import Any

import cutlass

from gdnbench_kernels.swa_decode import warp_ops as ops
from gdnbench_kernels.v4_decode.lse_forms import PLUS, WITH, LseForm

F32 = cutlass.Float32

FINITE = 3.0e38
"""Replaces an infinite reference before it is subtracted."""
LOG2_E = log2(e)


def sink_log2(sink: Any) -> Any:
    """A sink, a natural logarithm, in base 2; a product that no compiler fuses with a later sum."""
    return ops.product(sink, F32(LOG2_E))


def lse_in_form(form: LseForm, top: Any, total: Any, sink: Any) -> Any:
    """log(2^top total), to which `form` may add 2^sink.

    top: a float above -FINITE. total: 0 if nothing is attended to. sink: in base 2, or None without sinks.
    Adds up relative to the larger of top and sink, so neither overflows.
    """
    value = top + ops.log2(total)
    if form.sink == WITH and sink is not None:
        above = ops.lesser(ops.greater(top, sink), F32(FINITE))
        both = ops.product(total, ops.exp2(top - above)) + ops.exp2(sink - above)
        value = above + ops.log2(both)
    if form.base == "e":
        value = value * F32(log(2))
    if form.empty == PLUS:
        value = ops.select_value(value == F32(-inf), F32(inf), value)
    return value
