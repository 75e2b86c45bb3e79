# SPDX-License-Identifier: Apache-2.0
"""Calls of gdn_decode for the tests of its compiled kernel, which runs in the simulator and is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gdnbench.judge.rule import Bound
from gdnbench.judge.tensor import Subject, judge
from gdnbench.record import When
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.gdn_decode.contract import OPERATION, slots_of
from gdnbench_kernels.gdn_decode.cute import cute
from gdnbench_kernels.gdn_decode.synth import synth
from gdnbench_kernels.run import run_kernel
from tests.kernels.guarded_outputs import same as same
from tests.kernels.guarded_outputs import same_outputs as same_outputs
from tests.seeds import drawn, fresh

Outputs = dict[str, Tensor]

FRESH = drawn("gdn_decode calls", 20)
FRESH_SCHEDULE = fresh(f"random:{FRESH}")
"""By a name that is the same in every process that runs tests."""

CALLS: dict[str, dict[str, Any]] = {
    "log gates": {"gate": "log", "qk": "normalised"},
    "raw, padding": {"padding": 0.4},
    "raw, bf16 state": {"state_dtype": "bfloat16", "padding": 0.2},
    "beta to 2, correlated keys": {"beta": (0.0, 2.0), "key_correlation": 0.99},
    "gates over 60": {"gate_span": 60.0},
    "slots apart": {"slot_gap": 8, "slots": 9},
    "a negative scale": {"scale": -0.5},
    "drafted tokens": {"steps": 3, "speculative": True, "padding": 0.25, "holes": 0.3},
    "drafted tokens, bf16 state": {"steps": 3, "speculative": True, "state_dtype": "bfloat16"},
    "none accepted before": {"steps": 2},
    "read slots of their own": {"read_indices": "own", "padding": 0.25},
    "one slot read by all": {"read_indices": "shared", "steps": 2, "holes": 0.3},
    "read slot written last": {"read_indices": "last", "steps": 2},
    "bf16 bias": {"dt_bias_dtype": "bfloat16"},
    "fp16 gates": {"gate": "log", "gate_dtype": "float16", "heads": (2, 2)},
}
"""Raw gates and raw q, k of 1 key head and 2 value heads unless told."""


def made(**options: Any) -> Call:
    call = synth(**{"batch": 4, "heads": (1, 2), "gate": "raw", "qk": "raw", "seed": FRESH, **options})
    OPERATION.validate(call)
    print(f"seed {FRESH}")  # which pytest shows of a test that fails
    return call


def with_tensors(call: Call, **tensors: Tensor) -> Call:
    return replace(call, tensors={**call.tensors, **tensors})


def sequence_of(call: Call, row: int) -> Call:
    """One sequence of the call, on the whole pool."""
    alone = {"A_log", "dt_bias", "state"}
    tensors = {
        name: tensor if name in alone else tensor[row : row + 1] for name, tensor in call.tensors.items()
    }
    return replace(call, tensors=tensors)


def arguments(call: Call) -> dict[str, Any]:
    conventions = {name: call.conventions[name] for name in ("gate", "qk")}
    return {**call.tensors, **call.scalars, **conventions}


def with_gaps(state: Tensor) -> Tensor:
    """A copy with the same strides; what lies between slots is NaN."""
    size = (state.shape[0] - 1) * state.stride(0) + state[0].numel()
    memory = torch.full((size,), torch.nan, dtype=state.dtype)
    return memory.as_strided(state.shape, state.stride()).copy_(state)


def run(call: Call, options: dict[str, Any] | None = None, **settings: Any) -> Outputs:
    """o and the pool after the call; o is poisoned, and the inputs are as they were."""
    return run_by(cute, call, arguments(call) | (options or {}), settings)


def run_by(
    kernel: Callable[..., Outputs], call: Call, given: dict[str, Any], settings: dict[str, Any]
) -> Outputs:
    """As `run`, by that kernel with these arguments."""
    state = with_gaps(call.tensors["state"])
    o = torch.full(call.tensors["v"].shape, torch.nan, dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in call.tensors.items()}
    with active(Settings(**settings)) as session, programs_simulated():
        returned = kernel(**{**given, "state": state}, o=o)
    assert returned["o"] is o
    assert all(same(call.tensors[name], before[name]) for name in before)
    assert [finding for report in session.reports for finding in report.findings] == []
    return {"o": o, "state": state}


def assert_passes(call: Call, outputs: Outputs, operation: Operation = OPERATION) -> None:
    """Each within twice torch's error; padding and slots that nobody writes as they were."""
    oracle, torchs = (run_kernel(operation, kernel, call) for kernel in ("reference", "torch"))
    for name, tensor in outputs.items():
        subject = Subject(name, When.AFTER, operation.partition(call, name), operation.spec(name).axes)
        assert judge(subject, tensor, oracle[name], torchs[name], Bound()).reasons == (), name
    plan = slots_of(call)
    padding = torch.ones(len(outputs["o"]), dtype=torch.bool)
    padding[plan.active] = False
    assert outputs["o"][padding].isnan().all()
    assert not outputs["o"][~padding].isnan().any()
    untouched = torch.ones(len(outputs["state"]), dtype=torch.bool)
    untouched[plan.write[plan.write >= 0]] = False
    assert same(outputs["state"][untouched], call.tensors["state"][untouched])
