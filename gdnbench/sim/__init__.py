# SPDX-License-Identifier: Apache-2.0
"""Executes compiled SM100 kernels, host code and PTX, on a CPU: `report = sim.launch(compiled, *args)`.

The simulator's interface is this package and its public modules: `argspec`, `cuda_source`, `errors`,
`explore`, `host`, `mutants`, `ptx`, `tensorcore` and `value_trace`. Code outside imports nothing else of it.
Names are imported when first used, because what they need takes longer to import than most commands take to
run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.checker.accept import (
        Accepted,
        acceptance_template,
        baseline,
        extended_baseline,
        known_findings,
    )
    from gdnbench.sim.checker.happens_before import Verdict
    from gdnbench.sim.compiling import Call, call_of, compile, compile_for, keep_ptx
    from gdnbench.sim.errors import (
        ExportError,
        FaultKind,
        KernelFault,
        LaunchError,
        PtxSyntaxError,
        SimError,
        UnsupportedError,
    )
    from gdnbench.sim.finding import Finding, Severity
    from gdnbench.sim.finding_groups import group_findings, lines_by_cause, text_of_groups
    from gdnbench.sim.fp64.session import Fp64Shadows, LostShadows
    from gdnbench.sim.host.device import Questions
    from gdnbench.sim.machine.async_queue import Schedule
    from gdnbench.sim.machine.cta import Launch
    from gdnbench.sim.machine.engine_interface import Dim3
    from gdnbench.sim.machine.memory import GlobalMemory
    from gdnbench.sim.report import AFTER_A_FAULT, LaunchReport, Report
    from gdnbench.sim.run import ENGINES, run_ptx
    from gdnbench.sim.simulate import Session, Settings, active, current_session, launch, settings_apply
    from gdnbench.sim.watch import Observed

__all__ = [
    "AFTER_A_FAULT",
    "ENGINES",
    "Accepted",
    "Call",
    "Dim3",
    "ExportError",
    "FaultKind",
    "Finding",
    "Fp64Shadows",
    "GlobalMemory",
    "KernelFault",
    "Launch",
    "LaunchError",
    "LaunchReport",
    "LostShadows",
    "Observed",
    "PtxSyntaxError",
    "Questions",
    "Report",
    "Schedule",
    "Session",
    "Settings",
    "Severity",
    "SimError",
    "UnsupportedError",
    "Verdict",
    "acceptance_template",
    "active",
    "baseline",
    "call_of",
    "compile",
    "compile_for",
    "current_session",
    "extended_baseline",
    "group_findings",
    "keep_ptx",
    "known_findings",
    "launch",
    "lines_by_cause",
    "run_ptx",
    "settings_apply",
    "text_of_groups",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.checker.accept": "Accepted acceptance_template baseline extended_baseline "
        "known_findings",
        "gdnbench.sim.checker.happens_before": "Verdict",
        "gdnbench.sim.compiling": "Call call_of compile compile_for keep_ptx",
        "gdnbench.sim.errors": "ExportError FaultKind KernelFault LaunchError PtxSyntaxError SimError "
        "UnsupportedError",
        "gdnbench.sim.host.device": "Questions",
        "gdnbench.sim.machine.async_queue": "Schedule",
        "gdnbench.sim.machine.cta": "Launch",
        "gdnbench.sim.machine.engine_interface": "Dim3",
        "gdnbench.sim.machine.memory": "GlobalMemory",
        "gdnbench.sim.finding": "Finding Severity",
        "gdnbench.sim.fp64.session": "Fp64Shadows LostShadows",
        "gdnbench.sim.finding_groups": "group_findings lines_by_cause text_of_groups",
        "gdnbench.sim.report": "AFTER_A_FAULT LaunchReport Report",
        "gdnbench.sim.run": "ENGINES run_ptx",
        "gdnbench.sim.simulate": "Session Settings active current_session launch settings_apply",
        "gdnbench.sim.watch": "Observed",
    },
)
