# SPDX-License-Identifier: Apache-2.0
"""One virtual GPU in this process: its memory, its modules and its launches, which are simulated at once."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from gdnbench.sim.deadline import TimeLimit
from gdnbench.sim.errors import CannotSimulateError, LaunchError, SimError
from gdnbench.sim.floating_environment import ieee_arithmetic
from gdnbench.sim.host.arguments import Region
from gdnbench.sim.host.device import Device, Questions, described_device
from gdnbench.sim.host.kernel_caches import kernel_caches_off
from gdnbench.sim.host.machines import DEFAULT, Machine, machine_named
from gdnbench.sim.host.request import NO_ATTRIBUTES, LaunchAttributes, LaunchRequest
from gdnbench.sim.launch_order import ANY_STREAM, LaunchOrder
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.report import Report
from gdnbench.sim.run import RunResult
from gdnbench.sim.simulate import PendingLaunch, Session, Settings, run_requests
from gdnbench.sim.virtual.device_memory import Bytes, DeviceMemory
from gdnbench.sim.virtual.graph_recorder import GraphRecorder
from gdnbench.sim.virtual.launch_choice import LaunchChoice
from gdnbench.sim.virtual.launch_explorer import LaunchExplorer, LaunchPlace
from gdnbench.sim.virtual.launch_site import launch_site
from gdnbench.sim.virtual.refusals import add_listener, note_refusal, remove_listener


@dataclass(slots=True)
class VirtualGpu:
    """A GPU of `machine`. `reports` has one report for each call that launched kernels, in order, and
    `refusals` what the program was refused, whether it caught the error or not. `on_report` and `on_refusal`
    are called with each as it comes, the former also with the number of the report's first launch.

    `explorer` runs each launch under more schedules. With a `choice`, the explorer and the settings'
    schedule, check, profile and watch apply only to the launches that the choice includes; the others run
    unchecked under the schedule `late`. `running` is the chosen launch that is being run. `order` knows the
    launch in front of the next one."""

    machine: Machine
    settings: Settings
    reports: list[Report] = field(default_factory=list)
    refusals: list[SimError] = field(default_factory=list)
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    on_report: Callable[[Report, int], None] | None = None
    on_refusal: Callable[[SimError], None] | None = None
    recorder: GraphRecorder | None = None
    choice: LaunchChoice | None = None
    explorer: LaunchExplorer | None = None
    running: LaunchPlace | None = None
    questions: Questions = field(default_factory=Questions)
    order: LaunchOrder = field(default_factory=LaunchOrder)
    _modules: dict[str, Module] = field(default_factory=dict)
    _variables: dict[int, dict[str, Bytes]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _launched: tuple[int, int] = (0, 0)  # process, and how many launches it began: a fork counts its own

    @property
    def device(self) -> Device:
        """The limits that the program can query."""
        return self.machine.device

    def description(self) -> dict[str, str | int]:
        """The machine and how it is simulated, for the provenance of results."""
        return {
            "machine": self.machine.name,
            "arch": self.machine.arch,
            "multiprocessors": self.device.multiprocessors,
            "engine": self.settings.engine,
            "schedule": self.settings.schedule,
            "mma": self.settings.mma,
        }

    def asked_device(self) -> Device:
        """`device`, when the program asks for its number of multiprocessors."""
        self.questions.multiprocessors = True
        return self.device

    def load_module(self, ptx: str) -> Module:
        """The module of a PTX text; one text is parsed once. Raises PtxSyntaxError for any other text."""
        with self._lock:
            if ptx not in self._modules:
                with TimeLimit(self.settings.timeout):
                    self._modules[ptx] = parse(ptx)
            return self._modules[ptx]

    def variable(self, module: Module, name: str) -> Bytes:
        """The bytes of a `.global` or `.const` variable, which live as long as the GPU. Raises LaunchError if
        the module has none of that name."""
        found = self._variables_of(module)
        if name not in found:
            raise LaunchError(f"no variable {name!r} in the module; it has {', '.join(found) or 'none'}")
        return found[name]

    def _variables_of(self, module: Module) -> dict[str, Bytes]:
        with self._lock:
            found = self._variables.get(id(module))
            if found is None:
                found = {}
                for variable in module.variables:
                    if variable.space in ("global", "const"):
                        room = self.memory.allocate(max(variable.size, 1))
                        room[:] = 0
                        if variable.init is not None:
                            room[: len(variable.init)] = np.frombuffer(variable.init, np.uint8)
                        found[variable.name] = room
                self._variables[id(module)] = found
                self._modules.setdefault(f"module {id(module)}", module)  # its id stays its own
            return found

    def variable_addresses(self) -> set[int]:
        """Where the variables of all modules are, which are made when a module first runs."""
        with self._lock:
            return {int(room.ctypes.data) for found in self._variables.values() for room in found.values()}

    def allocations(self) -> list[Region]:
        """The live memory of all tensors and allocations on the GPU: what a launch may access."""
        return self.memory.regions()

    def launch(
        self,
        module: Module,
        entry: str,
        grid: Dim3,
        block: Dim3,
        params: Sequence[bytes],
        shared_bytes: int = 0,
        attributes: LaunchAttributes = NO_ATTRIBUTES,
        registers: int | None = None,
        stream: int = ANY_STREAM,
    ) -> None:
        """Simulate a launch of `entry` at once and add its report. `params` are the bytes of each parameter.

        Raises KernelFault for an illegal act of the kernel, UnsupportedError for what is not simulated,
        LaunchError for arguments that do not fit.
        """
        request = LaunchRequest(
            *("", entry, grid, block, attributes.cluster, shared_bytes, tuple(params), registers, stream),
            *(attributes.preferred_cluster, attributes.programmatic),
        )
        self.run(module, [request])

    def run(self, module: Module, requests: Sequence[LaunchRequest], named: Sequence[Region] = ()) -> Report:
        """Simulate the launches of one call. `named` are regions whose names replace those of the allocations
        that they lie in. Raises what `launch` raises."""
        if self.recorder is not None:
            self.recorder.add(
                functools.partial(self._run, module, tuple(requests), tuple(named), launch_site())
            )
        return self._run(module, requests, named, launch_site())

    @ieee_arithmetic()
    def _run(
        self,
        module: Module,
        requests: Sequence[LaunchRequest],
        named: Sequence[Region],
        origin: str | None,
    ) -> Report:
        variables = {name: int(room.ctypes.data) for name, room in self._variables_of(module).items()}
        regions = _with_names(self.allocations(), named)
        with self._lock:
            first = self._launch_count()
            try:
                with described_device(self.device, questions=self.questions):
                    session = Session(self.settings, questions=self.questions, order=self.order)
                    report, fault = run_requests(
                        module,
                        requests,
                        regions,
                        session,
                        self.settings,
                        variables,
                        origin,
                        functools.partial(self._run_launch, origin, named),
                    )
            except CannotSimulateError as error:
                note_refusal(error)
                raise
        self.add_report(report, first)
        if fault is not None:
            raise fault
        return report

    def _run_launch(
        self, origin: str | None, named: Sequence[Region], launch: PendingLaunch, settings: Settings
    ) -> RunResult:
        number = self._launch_count()
        self._launched = os.getpid(), number + 1
        if self.choice is not None and not self.choice.includes(number, launch.request.entry):
            return launch.run(replace(settings, schedule="late", check=False, profile=False, watch=None))
        place = self.running = LaunchPlace(number, origin)
        try:
            # What a graph's capture computes is no result: its replays are explored.
            if self.explorer is not None and self.recorder is None:
                return self.explorer.run(launch, settings, place, named)
            return launch.run(settings)
        finally:
            self.running = None

    def _launch_count(self) -> int:
        """How many launches this process began."""
        process, count = self._launched
        return count if process == os.getpid() else 0

    def renew_locks(self) -> None:
        """Forget locks that threads of the parent process held at a fork."""
        self._lock = threading.RLock()
        self.memory.renew_lock()

    def add_report(self, report: Report, first: int) -> None:
        """Keep a report, whose first launch has this number, and tell `on_report`."""
        self.reports.append(report)
        if self.on_report is not None:
            self.on_report(report, first)

    def add_refusal(self, error: SimError) -> None:
        """Keep what was refused and tell `on_refusal`."""
        self.refusals.append(error)
        if self.on_refusal is not None:
            self.on_refusal(error)


def _with_names(regions: Sequence[Region], named: Sequence[Region]) -> list[Region]:
    """`regions`, those that hold the start of one in `named` under its name."""
    out = []
    for region in regions:
        inside = [one for one in named if region.address <= one.address < region.address + region.size]
        out.append(replace(region, name=inside[0].name) if inside else region)
    return out


_current: list[VirtualGpu] = []  # that of the process, whose threads all see it, or none


def _after_fork() -> None:
    for gpu in _current:
        gpu.renew_locks()


os.register_at_fork(after_in_child=_after_fork)


def current_gpu() -> VirtualGpu | None:
    """The virtual GPU of this process, in any of its threads; None outside a block of `virtual_gpu`."""
    return _current[-1] if _current else None


@contextmanager
def virtual_gpu(
    machine: str = DEFAULT,
    sms: int | None = None,
    settings: Settings | None = None,
    memory: DeviceMemory | None = None,
) -> Iterator[VirtualGpu]:
    """Inside this block the process sees one GPU, `machine` with `sms` multiprocessors: tensors on `cuda`
    live in CPU memory, torch's operations on them run on the CPU, and launches of kernels are simulated.

    Libraries that are imported inside the block see it from then on. `memory` is that of an earlier virtual
    GPU, whose tensors a library may have kept; None makes a new one. Raises LaunchError for an unknown
    machine and if another virtual GPU is active.
    """
    from gdnbench.sim.virtual.install import installed

    if _current:
        raise LaunchError(
            "a virtual GPU is active already, of an enclosing virtual_gpu() or of gdnbench sim -- PROGRAM:"
            " remove this virtual_gpu()"
        )
    gpu = VirtualGpu(machine_named(machine, sms), settings or Settings(), memory=memory or DeviceMemory())
    gpu.memory.capacity = gpu.machine.memory
    with ExitStack() as stack:
        stack.enter_context(kernel_caches_off())
        _current.append(gpu)
        stack.callback(_current.remove, gpu)
        add_listener(gpu.add_refusal)
        stack.callback(remove_listener, gpu.add_refusal)
        stack.enter_context(installed(gpu))
        yield gpu
