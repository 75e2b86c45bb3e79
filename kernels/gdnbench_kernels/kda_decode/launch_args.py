"""Checks the arguments of a call of kda_decode's compiled kernel, and makes those of its launch.

`delta_decode.launch` has the checks that it shares with gdn_decode. g is copied unless its rows are
contiguous and aligned to 4 elements; beta may have any strides.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from gdnbench_kernels.arguments import contiguous_aligned
from gdnbench_kernels.compiling import Program
from gdnbench_kernels.delta_decode.launch import (
    GATES,
    LaunchArguments,
    call_options,
    call_output,
    call_scalars,
    call_tensors,
    check_call,
    check_tensor,
    contiguous_rows,
)
from gdnbench_kernels.delta_decode.launch import arch_of as arch_of
from gdnbench_kernels.gdn_decode.sizes import HEAD_DIM
from gdnbench_kernels.gdn_decode.sources import BIAS_DTYPES, Tap
from gdnbench_kernels.kda_decode.decode_plan import ChannelPlan, default_plan
from gdnbench_kernels.kda_decode.params import KdaDecodeParams
from gdnbench_kernels.kda_decode.sources import BetaForm, Gate, gate_align, source
from gdnbench_kernels.launch_checks import dtypes_of, finite_number
from gdnbench_kernels.programs import compiled

BIASES = dtypes_of(BIAS_DTYPES)


def arguments(params: KdaDecodeParams, o: Tensor | None = None) -> LaunchArguments:
    """The arguments of a call, checked. Raises NotImplementedError for a call that the kernel does not
    support, ValueError for an invalid one."""
    lower_bound = _check_gate(params)
    check_call(params, o)
    v, A_log, dt_bias = params.v, params.A_log, params.dt_bias
    value_heads, device = v.shape[2], v.device
    check_tensor("g", params.g, v.shape, GATES, device)
    if A_log is not None:
        check_tensor("A_log", A_log, (value_heads,), (torch.float32,), device)
    if dt_bias is not None:
        check_tensor("dt_bias", dt_bias, (value_heads, HEAD_DIM), BIASES, device)
    options = call_options(params) | {"beta_form": params.beta_form, "rate": A_log is not None}
    own = {"g": contiguous_rows(params.g, gate_align(options["g_dtype"]))}
    if dt_bias is not None:
        own["dt_bias"] = contiguous_aligned(dt_bias, gate_align(options["bias_dtype"]))
    return LaunchArguments(
        tensors=call_tensors(params, **own),
        scalars=(*call_scalars(params), lower_bound),
        without_taps=(None, None, None),
        alpha_shape=tuple(v.shape),
        compiled=partial(_compiled, tuple(options.items())),
        default_plan=partial(default_plan, len(v), value_heads, options["state_dtype"], options["tokens"]),
        output=call_output(params, o),
    )


def _check_gate(params: KdaDecodeParams) -> float:
    """Returns lower_bound, 0 if the gate has none."""
    gate, lower_bound = params.gate, params.lower_bound
    for name, value, taken in (("gate", gate, Gate), ("beta_form", params.beta_form, BetaForm)):
        if value not in get_args(taken):
            raise ValueError(f"{name} is {value!r}; it is {' or '.join(get_args(taken))}")
    if gate == "raw" and params.A_log is None:
        raise ValueError("A_log is missing with gate raw")
    for name in ("A_log", "dt_bias"):
        if gate == "log" and getattr(params, name) is not None:
            raise ValueError(f"{name} is given with gate log; it belongs to raw and bounded")
    if gate != "bounded":
        if lower_bound is not None:
            raise ValueError(f"lower_bound is given with gate {gate}; it belongs to bounded alone")
        return 0.0
    if lower_bound is None:
        raise ValueError("lower_bound is missing with gate bounded")
    if finite_number("lower_bound", lower_bound) >= 0:
        raise ValueError(f"lower_bound is {lower_bound}; it must be negative")
    return float(lower_bound)


def _compiled(options: tuple[tuple[str, Any], ...], plan: ChannelPlan, arch: str, *tap: Tap) -> Program:
    return compiled(arch, _source, options, plan, *tap)


def _source(options: tuple[tuple[str, Any], ...], plan: ChannelPlan, tap: Tap | None = None) -> Any:
    return source(**dict(options), plan=plan, tap=tap)
