"""What the contracts of kda_prefill and kda_decode share: tensors and scalars of the gates, their checks, and
conversions of a call."""  # SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gdnbench_kernels import gdn
from gdnbench_kernels.contract import Call, ContractError, Role, Scalar, ScalarSpec, TensorSpec
from gdnbench_kernels.gdn import STATES
from gdnbench_kernels.kda import BETA, CONVENTIONS, GATE, KdaGates
from gdnbench_kernels.validate import check_range

GATE_TENSORS = (
    TensorSpec(
        "A_log",
        ("Hv",),
        ("float32",),
        Role.INPUT,
        "log of a head's rate, not where log",
        optional=True,
    ),
    TensorSpec(
        "dt_bias",
        ("Hv", "K"),
        ("float32", "bfloat16"),
        Role.INPUT,
        "added to x, not where log",
        optional=True,
    ),
)

GATE_SCALARS = (
    ScalarSpec("beta_max", float, 1.0, "upper end of beta's range, 1 or 2"),
    ScalarSpec("lower_bound", float, None, "the least log-space decay, < 0, where bounded; None elsewhere"),
)

CONVERSIONS: Mapping[tuple[str, str, str], str] = {
    ("gate", "raw", "log"): "g computed from x, A_log and dt_bias, in fp32",
    ("gate", "bounded", "log"): "g computed from x, A_log, dt_bias and lower_bound, in fp32",
    ("beta_form", "logit", "value"): "beta_max sigmoid(b), in fp32",
    **{key: text for key, text in gdn.CONVERSIONS.items() if key[0] != "gate"},
}


def gate_tensors(leading: tuple[str, ...]) -> tuple[TensorSpec, TensorSpec]:
    """g [..., Hv, K] and beta [..., Hv] of the axes `leading`."""
    return (
        TensorSpec(
            "g",
            (*leading, "Hv", "K"),
            STATES,
            Role.INPUT,
            "log-space decay of each key channel; x where raw or bounded",
            minus_infinity=True,
        ),
        TensorSpec(
            "beta", (*leading, "Hv"), STATES, Role.INPUT, "step size, in [0, beta_max]; b where logit"
        ),
    )


def gates_of(call: Mapping[str, Any]) -> KdaGates:
    """The gates of a call, from its tensors, scalars and conventions by name."""
    return KdaGates(
        form=call.get("gate") or "log",
        beta_form=call.get("beta_form") or "value",
        beta_max=float(call.get("beta_max") or 1.0),
        A_log=call.get("A_log"),
        dt_bias=call.get("dt_bias"),
        lower_bound=call.get("lower_bound"),
    )


def gates_of_call(call: Call) -> KdaGates:
    """The gates of a call."""
    return gates_of({**call.tensors, **call.scalars, **call.conventions})


def check_gates(op: str, call: Call, scalars: Mapping[str, Scalar]) -> None:
    """Raises ContractError for tensors and scalars that the form of the gate does not have or lacks, for a
    finite g above 0, and for a finite beta outside its range. `scalars`: with defaults."""
    form = call.conventions.get(GATE.name, GATE.values[0])
    for name, axes in (("A_log", "[Hv]"), ("dt_bias", "[Hv, K]")):
        if form == "log" and name in call.tensors:
            raise ContractError(
                f"{op}: tensor {name} belongs to gate raw and bounded, not to log; leave it out"
            )
        if form == "raw" and name == "A_log" and name not in call.tensors:
            raise ContractError(f"{op}: tensor {name} is missing; with gate raw its axes are {axes}")
    bound = scalars["lower_bound"]
    if form == "bounded":
        if bound is None or not float(bound) < 0:
            raise ContractError(f"{op}: scalar lower_bound is {bound}; with gate bounded it must be below 0")
    elif bound is not None:
        raise ContractError(f"{op}: scalar lower_bound belongs to gate bounded, not to {form}; leave it out")
    if scalars["beta_max"] not in (1, 2):
        raise ContractError(f"{op}: scalar beta_max is {scalars['beta_max']}; it must be 1 or 2")
    if form == "log":
        check_range(op, call, "g", -torch.inf, 0.0)
    if call.conventions.get(BETA.name, BETA.values[0]) == "value":
        check_range(op, call, "beta", 0.0, float(scalars["beta_max"]))


def convert_call(
    op: str, call: Call, target: Mapping[str, str], states: Sequence[str], indices: Sequence[str] = ()
) -> Call:
    """`call` in the conventions `target`; see `CONVERSIONS`. Raises ContractError if that is impossible.
    `states` and `indices` are as in `gdn.convert_call`."""
    gates = gates_of_call(call)
    tensors, scalars, conventions = dict(call.tensors), dict(call.scalars), dict(call.conventions)
    if gates.form != "log" and target.get(GATE.name) == "log":
        tensors["g"] = gates.log_decay(tensors["g"].contiguous(), torch.float32)
        for name in ("A_log", "dt_bias"):
            tensors.pop(name, None)
        scalars.pop("lower_bound", None)
        conventions[GATE.name] = "log"
    if gates.beta_form != "value" and target.get(BETA.name) == "value":
        tensors["beta"] = gates.step_size(tensors["beta"].contiguous(), torch.float32)
        conventions[BETA.name] = "value"
    converted = Call(tensors, scalars, conventions)
    return gdn.convert_call(op, converted, target, states, indices, CONVENTIONS)
