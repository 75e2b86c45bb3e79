# SPDX-License-Identifier: Apache-2.0
"""Ranges of a call of conv_decode: inputs, taps and windows."""

from __future__ import annotations

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.conv_decode.windows import plan_of, windows_before
from gdnbench_kernels.ranges import present_ranges, sizes


def ranges(call: Call) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU."""
    plan, x, weight = plan_of(call.tensors), call.tensors["x"], call.tensors["weight"]
    before = windows_before(plan, x, weight, call.tensors["conv_state"])
    return present_ranges(
        (
            sizes("x", "inputs", (x[tokens] for _, tokens, *_ in plan.sequences())),
            sizes("weight", "taps", [weight]),
            sizes("conv_state", "windows that are read", (window for _, window in before)),
        )
    )
