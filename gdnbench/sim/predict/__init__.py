# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of a launch on an H200, B200 or B300 without that GPU: the simulator records what warps
do, and one SM replays it against a table of the GPU's latencies and rates (docs/time_model.md).

    recorder.py, trace.py, accesses.py    the trace of a CTA: blocks, accesses, operations, phases
    machine_code.py, regions.py           the machine code of ptxas, by regions of the PTX
    machines.py, products.py              latencies and rates of the GPUs, each with its source
    sm.py, server.py, critical_path.py    the replay of one SM, and what its cycles were spent on
    launch.py, call.py, predictor.py      the time of a launch and of a call
"""

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
