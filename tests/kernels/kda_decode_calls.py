# SPDX-License-Identifier: Apache-2.0
"""Calls of kda_decode for the tests of its compiled kernel, which runs in the simulator and is judged."""

from __future__ import annotations

from typing import Any

from gdnbench_kernels.contract import Call
from gdnbench_kernels.kda_decode.contract import OPERATION
from gdnbench_kernels.kda_decode.cute import cute
from gdnbench_kernels.kda_decode.decode_plan import ChannelPlan
from gdnbench_kernels.kda_decode.synth import synth
from tests.kernels import gdn_decode_calls
from tests.kernels.gdn_decode_calls import Outputs, run_by
from tests.seeds import drawn, fresh

FRESH = drawn("kda_decode calls", 20)
FRESH_SCHEDULE = fresh(f"random:{FRESH}")
"""By a name that is the same in every process that runs tests."""

CALLS: dict[str, dict[str, Any]] = {
    "log gates": {"gate": "log", "beta_form": "value", "qk": "normalised"},
    "raw, padding": {"padding": 0.4},
    "raw, beta given": {"beta_form": "value"},
    "bounded, bf16 state": {"gate": "bounded", "gate_span": 320.0, "state_dtype": "bfloat16", "padding": 0.2},
    "beta to 2, correlated keys": {"beta": (0.0, 2.0), "key_correlation": 0.99},
    "channels far apart": {"gate": "log", "gate_span": (1e-3, 6e4)},
    "drafted tokens": {"steps": 3, "speculative": True, "padding": 0.25, "holes": 0.3},
    "drafted tokens, bounded": {"steps": 2, "gate": "bounded", "speculative": True},
    "read slots of their own": {"read_indices": "own", "padding": 0.25},
    "bf16 bias": {"dt_bias_dtype": "bfloat16"},
    "fp16 gates": {"gate": "log", "gate_dtype": "float16", "beta_dtype": "float16", "heads": (2, 2)},
}
"""Raw gates and raw q, k, and beta from b, of 1 key head and 2 value heads unless told."""

OTHERS = [
    ChannelPlan(),
    ChannelPlan(rows=2, passes=4, spread=True, resident=2, pdl=True),
    ChannelPlan(transport="bulk", pdl=True, spread=True),
]
"""Plans of kinds that are not chosen: loads that keep out of L1, without `pdl`, rows apart."""


def made(**options: Any) -> Call:
    forms = {"gate": "raw", "beta_form": "logit", "qk": "raw"}
    call = synth(**{"batch": 4, "heads": (1, 2), "seed": FRESH, **forms, **options})
    OPERATION.validate(call)
    print(f"seed {FRESH}")  # which pytest shows of a test that fails
    return call


def arguments(call: Call) -> dict[str, Any]:
    conventions = {name: call.conventions[name] for name in ("gate", "beta_form", "qk")}
    return {**call.tensors, **call.scalars, **conventions}


def run(call: Call, options: dict[str, Any] | None = None, **settings: Any) -> Outputs:
    """o and the pool after the call; o is poisoned, and the inputs are as they were."""
    return run_by(cute, call, arguments(call) | (options or {}), settings)


def assert_passes(call: Call, outputs: Outputs) -> None:
    """Each within twice torch's error; padding and slots that nobody writes as they were."""
    gdn_decode_calls.assert_passes(call, outputs, OPERATION)
