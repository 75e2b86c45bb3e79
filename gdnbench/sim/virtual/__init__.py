"""A virtual GPU: programs that need CUDA run unmodified on a machine without one, their kernels simulated.

with virtual_gpu("b200", sms=4) as gpu:
    run_the_program()
print(gpu.reports[-1])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdnbench.sim.lazy import lazy_names

if TYPE_CHECKING:
    from gdnbench.sim.virtual.gpu import VirtualGpu, current_gpu, virtual_gpu
    from gdnbench.sim.virtual.machines import MACHINES, Machine, machine_named
    from gdnbench.sim.virtual.process import LoggedLaunch, Request, launches_of
    from gdnbench.sim.virtual.program import KernelRow, ProgramRun, findings_text, kernel_rows, run_program
    from gdnbench.sim.virtual.torch_backend import cuda_alias

__all__ = [
    "MACHINES",
    "KernelRow",
    "LoggedLaunch",
    "Machine",
    "ProgramRun",
    "Request",
    "VirtualGpu",
    "cuda_alias",
    "current_gpu",
    "findings_text",
    "kernel_rows",
    "launches_of",
    "machine_named",
    "run_program",
    "virtual_gpu",
]

__getattr__ = lazy_names(
    __name__,
    {
        "gdnbench.sim.virtual.gpu": "VirtualGpu current_gpu virtual_gpu",
        "gdnbench.sim.virtual.machines": "MACHINES Machine machine_named",
        "gdnbench.sim.virtual.process": "LoggedLaunch Request launches_of",
        "gdnbench.sim.virtual.program": "KernelRow ProgramRun findings_text kernel_rows run_program",
        "gdnbench.sim.virtual.torch_backend": "cuda_alias",
    },
)
