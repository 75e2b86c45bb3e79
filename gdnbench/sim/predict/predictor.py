# SPDX-License-Identifier: Apache-2.0
"""Predicts a launch in a forked process: the CTAs that it runs change a copy of the memory."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

from gdnbench.sim.errors import KernelFault, UnsupportedError
from gdnbench.sim.forked import in_a_copy
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.launch import Prediction, check_covered, predict, record, sampled_ctas
from gdnbench.sim.predict.machine_code import arch_of, assemble
from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.predict.timeline import Timeline
from gdnbench.sim.ptx.ir import Module

KILLED = "the process that predicts it was killed"
"""The end of a refusal that another try may not have."""


@dataclass(slots=True)
class Predictor:
    """Predicts each launch that it is called with, before the launch runs, for `Settings(before=...)`.
    `refused` says why a launch has no prediction; no launch after it is predicted. If `timelines` is a list,
    the timeline of each launch is appended to it, with a name that begins with `name`."""

    machine: Machine
    launches: list[Prediction] = field(default_factory=list)
    refused: str = ""
    timelines: list[tuple[str, Timeline]] | None = None
    name: str = ""

    def __call__(self, module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        if self.refused:
            return
        drawn: list[Timeline] | None = None if self.timelines is None else []
        try:
            found = predict_in_copy(self.machine, module, request, memory, drawn)
        except UnsupportedError as error:
            self.refused = error.what
        except KernelFault as fault:  # which the launch itself reports, with what it found before
            self.refused = f"the time of {request.entry}, which faults: {fault.kind}"
        else:
            if self.timelines is not None:
                name = f"{self.name}launch {len(self.launches)}: "
                self.timelines += [(name, each) for each in drawn or ()]
            self.launches.append(found)


def predict_in_copy(
    machine: Machine,
    module: Module,
    request: LaunchRequest,
    memory: GlobalMemory,
    timelines: list[Timeline] | None = None,
) -> Prediction:
    """The predicted time of a launch that has not run yet; its timeline is appended to `timelines`. Raises
    what `record` and `predict` raise, and UnsupportedError where processes cannot be forked."""
    if not hasattr(os, "fork"):
        raise UnsupportedError("the time on a system without fork")
    check_covered(module, request)
    # Here and not in the child, so that the next launch of the kernel finds it assembled.
    assemble(module, module.kernels[request.entry], arch_of(module, machine.name))

    def predicted() -> _Answer:
        ctas = sampled_ctas(math.prod(request.grid), machine)
        traces = record(module, request, memory, ctas, machine)
        found: list[Timeline] = []
        return predict(machine, module, request, traces, None if timelines is None else found), found

    prediction, drawn = in_a_copy(predicted, f"the time of {request.entry}: {KILLED}")
    if timelines is not None:
        timelines += drawn
    return prediction


_Answer = tuple[Prediction, list[Timeline]]
