# SPDX-License-Identifier: Apache-2.0
"""A virtual GPU: programs that need CUDA run unmodified on a machine without one, their kernels simulated.

with virtual_gpu("b200", sms=4) as gpu:
    run_the_program()
print(gpu.reports[-1])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.host.machines import MACHINES, Machine, machine_named
    from gdnbench.sim.virtual.device_memory import DeviceMemory
    from gdnbench.sim.virtual.explored import (
        ExploredLaunch,
        explored_summary,
        explored_text,
        run_names,
        schedule_and_engine,
    )
    from gdnbench.sim.virtual.gpu import VirtualGpu, current_gpu, virtual_gpu
    from gdnbench.sim.virtual.launch_choice import LaunchChoice
    from gdnbench.sim.virtual.launch_explorer import LaunchExplorer
    from gdnbench.sim.virtual.launch_log import Log, LoggedLaunch, launches_of
    from gdnbench.sim.virtual.process import REQUEST_VARIABLE, Request
    from gdnbench.sim.virtual.program import (
        KernelRow,
        ProgramLog,
        ProgramRun,
        findings_text,
        kernel_rows,
        program_log,
        run_program,
    )
    from gdnbench.sim.virtual.torch_backend import cpu_alias, cuda_alias

__all__ = [
    "MACHINES",
    "REQUEST_VARIABLE",
    "DeviceMemory",
    "ExploredLaunch",
    "KernelRow",
    "LaunchChoice",
    "LaunchExplorer",
    "Log",
    "LoggedLaunch",
    "Machine",
    "ProgramLog",
    "ProgramRun",
    "Request",
    "VirtualGpu",
    "cpu_alias",
    "cuda_alias",
    "current_gpu",
    "explored_summary",
    "explored_text",
    "findings_text",
    "kernel_rows",
    "launches_of",
    "machine_named",
    "program_log",
    "run_names",
    "run_program",
    "schedule_and_engine",
    "virtual_gpu",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.virtual.device_memory": "DeviceMemory",
        "gdnbench.sim.virtual.explored": "ExploredLaunch explored_summary explored_text"
        " run_names schedule_and_engine",
        "gdnbench.sim.virtual.launch_choice": "LaunchChoice",
        "gdnbench.sim.virtual.launch_explorer": "LaunchExplorer",
        "gdnbench.sim.virtual.gpu": "VirtualGpu current_gpu virtual_gpu",
        "gdnbench.sim.host.machines": "MACHINES Machine machine_named",
        "gdnbench.sim.virtual.launch_log": "Log LoggedLaunch launches_of",
        "gdnbench.sim.virtual.process": "REQUEST_VARIABLE Request",
        "gdnbench.sim.virtual.program": "KernelRow ProgramLog ProgramRun findings_text kernel_rows"
        " program_log run_program",
        "gdnbench.sim.virtual.torch_backend": "cpu_alias cuda_alias",
    },
)
