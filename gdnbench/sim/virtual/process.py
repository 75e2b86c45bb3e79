# SPDX-License-Identifier: Apache-2.0
"""The virtual GPU of a process that `gdnbench sim -- PROGRAM` started. The request travels in the environment
as JSON, so that child processes have a GPU too.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from gdnbench.sim.errors import InputError
from gdnbench.sim.virtual.launch_log import LogWriter

REQUEST_VARIABLE = "GDNBENCH_VIRTUAL"


@dataclass(frozen=True, slots=True)
class Request:
    """Which GPU a process gets: the machine, its number of multiprocessors if that is not the machine's own,
    and the fields of `Settings` that differ from their defaults. `log` is the folder for the log, or None.

    `launches` chooses launches (see `LaunchChoice.parse`); None chooses all. `explore` has the schedules
    under which each chosen launch runs, and `engines` further engines in which it runs under each of them.
    `attach` has an argument by the name of a module outside the simulator: the process imports the module and
    calls its function `attach_to(gpu, argument)`.
    """

    machine: str
    sms: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    log: str | None = None
    launches: str | None = None
    explore: Sequence[str] = ()
    engines: Sequence[str] = ()
    attach: Mapping[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The variable that makes a Python process follow this request."""
        return {REQUEST_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Request:
        """Read what `environment` wrote. Raises InputError for anything else."""
        try:
            return cls(**json.loads(environment[REQUEST_VARIABLE]))
        except (TypeError, ValueError) as error:
            raise InputError(f"{REQUEST_VARIABLE} is no request of gdnbench sim: {error}") from None


def start_from_environment(environment: Mapping[str, str]) -> None:
    """Give this process the GPU that the environment requests, until the process ends."""
    from gdnbench.sim.simulate import Settings
    from gdnbench.sim.virtual.gpu import virtual_gpu
    from gdnbench.sim.virtual.launch_choice import LaunchChoice
    from gdnbench.sim.virtual.launch_explorer import LaunchExplorer

    request = Request.from_environment(environment)
    log = LogWriter(request.log)
    try:
        stack = ExitStack()
        gpu = stack.enter_context(virtual_gpu(request.machine, request.sms, Settings(**request.settings)))
        gpu.on_report, gpu.on_refusal = log.report, log.refusal
        if request.launches is not None:
            gpu.choice = LaunchChoice.parse(request.launches)
        if request.explore:
            gpu.explorer = LaunchExplorer(
                tuple(request.explore), log.explored, engines=tuple(request.engines)
            )
        for module, argument in request.attach.items():
            import_module(module).attach_to(gpu, argument)
    except Exception as error:
        log.write(problem=" ".join(str(error).split()) or type(error).__name__)
        raise
    log.write(gpu=request.machine)
    atexit.register(stack.close)
