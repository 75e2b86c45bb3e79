"""Executes compiled SM100 kernels, host code and PTX, on a CPU: `report = sim.launch(compiled, *args)`.

Names are imported when first used: what they need takes longer to import than most commands to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdnbench.sim.compiling import compile, keep_ptx
    from gdnbench.sim.errors import (
        ExportError,
        FaultKind,
        KernelFault,
        LaunchError,
        PtxSyntaxError,
        SimError,
        UnsupportedError,
    )
    from gdnbench.sim.report import Finding, Report, Severity
    from gdnbench.sim.run import run_ptx
    from gdnbench.sim.simulate import Settings, active, launch

__all__ = [
    "ExportError",
    "FaultKind",
    "Finding",
    "KernelFault",
    "LaunchError",
    "PtxSyntaxError",
    "Report",
    "Settings",
    "Severity",
    "SimError",
    "UnsupportedError",
    "active",
    "compile",
    "keep_ptx",
    "launch",
    "run_ptx",
]

_HOMES = {
    "Finding": "report",
    "Report": "report",
    "Settings": "simulate",
    "Severity": "report",
    "active": "simulate",
    "compile": "compiling",
    "keep_ptx": "compiling",
    "launch": "simulate",
    "run_ptx": "run",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
