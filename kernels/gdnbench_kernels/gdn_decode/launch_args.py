"""Checks the arguments of a call of gdn_decode's compiled kernel, and makes those of its launch.

`delta_decode.launch` has the checks that it shares with kda_decode. g and beta may have any strides.
"""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

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
)
from gdnbench_kernels.delta_decode.launch import arch_of as arch_of
from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan, default_plan
from gdnbench_kernels.gdn_decode.params import DecodeParams
from gdnbench_kernels.gdn_decode.sources import BIAS_DTYPES, Tap, source
from gdnbench_kernels.launch_checks import dtypes_of
from gdnbench_kernels.programs import compiled

BIASES = dtypes_of(BIAS_DTYPES)


def arguments(params: DecodeParams, o: Tensor | None = None) -> LaunchArguments:
    """The arguments of a call, checked. Raises NotImplementedError for a call that the kernel does not
    support, ValueError for an invalid one."""
    gate, A_log, dt_bias, v = params.gate, params.A_log, params.dt_bias, params.v
    if gate not in ("log", "raw"):
        raise NotImplementedError(f"gate is {gate!r}; the compiled kernel takes log or raw")
    raw = gate == "raw"
    for name, tensor in (("A_log", A_log), ("dt_bias", dt_bias)):
        if (tensor is not None) != raw:
            what = "missing" if tensor is None else "given"
            raise ValueError(f"{name} is {what} with gate {gate}; it belongs to raw alone")
    check_call(params, o)
    value_heads, device = v.shape[2], v.device
    check_tensor("g", params.g, v.shape[:3], GATES, device)
    if A_log is not None and dt_bias is not None:
        check_tensor("A_log", A_log, (value_heads,), (torch.float32,), device)
        check_tensor("dt_bias", dt_bias, (value_heads,), BIASES, device)
    options = call_options(params)
    return LaunchArguments(
        tensors=call_tensors(params),
        scalars=call_scalars(params),
        without_taps=(),
        alpha_shape=tuple(v.shape[:3]),
        compiled=partial(_compiled, tuple(options.values())),
        default_plan=partial(default_plan, len(v), value_heads, options["state_dtype"], options["tokens"]),
        output=call_output(params, o),
    )


def _compiled(options: tuple[Any, ...], plan: DecodePlan, arch: str, *tap: Tap) -> Program:
    return compiled(arch, source, *options, plan, *tap)
