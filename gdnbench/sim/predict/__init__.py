# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of a launch on a GPU that is not there: what warps did on the simulator is replayed
against a table of the GPU's latencies and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.predict.call import PredictedCall, PredictedTime
    from gdnbench.sim.predict.launch import LATENCY, Prediction
    from gdnbench.sim.predict.machine_code import tool_versions
    from gdnbench.sim.predict.machines import GROUPS, MACHINES, machine_model, parameter_table
    from gdnbench.sim.predict.predictor import Predictor
    from gdnbench.sim.predict.timeline import Timeline, write_timelines

__all__ = [
    "GROUPS",
    "LATENCY",
    "MACHINES",
    "PredictedCall",
    "PredictedTime",
    "Prediction",
    "Predictor",
    "Timeline",
    "machine_model",
    "parameter_table",
    "tool_versions",
    "write_timelines",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.predict.predictor": "Predictor",
        "gdnbench.sim.predict.call": "PredictedCall PredictedTime",
        "gdnbench.sim.predict.launch": "LATENCY Prediction",
        "gdnbench.sim.predict.machine_code": "tool_versions",
        "gdnbench.sim.predict.machines": "GROUPS MACHINES machine_model parameter_table",
        "gdnbench.sim.predict.timeline": "Timeline write_timelines",
    },
)
