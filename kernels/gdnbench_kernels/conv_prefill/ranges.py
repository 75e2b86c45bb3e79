# SPDX-License-Identifier: Apache-2.0
"""Ranges of a call of conv_prefill: inputs and taps."""

from __future__ import annotations

from gdnbench_kernels.contract import Call, Ranges
from gdnbench_kernels.conv_prefill.windows import plan_of, windows_before
from gdnbench_kernels.ranges import present_ranges, sizes


def ranges(call: Call) -> tuple[Ranges, ...]:
    """The ranges of a valid call on the CPU."""
    plan, x, weight = plan_of(call.tensors), call.tensors["x"], call.tensors["weight"]
    before = windows_before(plan, x, weight, call.tensors.get("conv_state"))
    read = [window for (_, window), reads in zip(before, plan.reads, strict=True) if reads]
    return present_ranges(
        (
            sizes("x", "inputs", (x[slice(*plan.bounds[n])] for n in plan.active)),
            sizes("weight", "taps", [weight]),
            sizes("conv_state", "windows that are read", read),
        )
    )
