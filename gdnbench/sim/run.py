# SPDX-License-Identifier: Apache-2.0
"""Run a kernel from its PTX: `run_ptx(text, entry, grid, block, params, smem)`."""

from __future__ import annotations

import importlib
import math
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdnbench.sim.checker.earlier_launches import EarlierLaunches
from gdnbench.sim.checker.evidence import Evidence, collect_evidence
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.deadline import TimeLimit
from gdnbench.sim.errors import KernelFault, LaunchError
from gdnbench.sim.floating_environment import ieee_arithmetic
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine import budget
from gdnbench.sim.machine.async_queue import Schedule
from gdnbench.sim.machine.bounds import Meter, check_grid, default_bounds
from gdnbench.sim.machine.cluster import ClusterGrid
from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.cta import MULTIPROCESSORS, Cta, Engine, Launch, MachineConfig, Note
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.machine.grid import run_grid
from gdnbench.sim.machine.keep_going import Skipped, refuse_to_skip
from gdnbench.sim.machine.launch_grants import uses_launch_control
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.machine.observer import Checker, PathObserver
from gdnbench.sim.machine.processes import Progress
from gdnbench.sim.machine.units import handler
from gdnbench.sim.profile.recorder import LaunchRecord
from gdnbench.sim.ptx.ir import Kernel, Module, Variable
from gdnbench.sim.ptx.parser import parse
from gdnbench.sim.tensorcore.product import Model
from gdnbench.sim.value_trace import End
from gdnbench.sim.watch import Observed


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine by name: the module whose `prepare(module, kernel, config)` compiles or decodes a kernel, the
    module whose `multiply` and `multiply_scaled` model the tensor core, and the quantum of a warp's turn in
    instructions."""

    prepare: str
    multiply: str
    quantum: int
    track: bool  # it detects reads of uninitialised shared memory


ENGINES = {
    "interpreter": EngineKind(
        "gdnbench.sim.interpreter.engine", "gdnbench.sim.tensorcore.reference", 256, track=True
    ),
    "compiled": EngineKind(
        "gdnbench.sim.compiler.engine", "gdnbench.sim.tensorcore.native", 4096, track=False
    ),
}

# The quantum of a warp's turn, in instructions, while a timeline is recorded.
PROFILE_QUANTUM = 64


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= least


def check_settings(engine: str, schedule: str, mma: str, threads: int | None) -> Schedule:
    """Check every setting by name and return the parsed schedule. Raises InputError, which names the setting
    that does not exist."""
    for what, value, known in (("mma", mma, tuple(Model)), ("engine", engine, tuple(ENGINES))):
        if not isinstance(value, str) or value not in known:
            raise LaunchError(f"{what} {value!r}; there are {' and '.join(known)}")
    if threads is not None and not _is_integer(threads, 1):
        raise LaunchError(f"threads {threads!r}; 1 or more, or None for all cores")
    if not isinstance(schedule, str):
        raise LaunchError(f"schedule {schedule!r}; early, late or random:SEED")
    return Schedule.parse(schedule)


def check_bounds(max_instructions: int, timeout: float) -> None:
    """Raises InputError for a bound that no launch could keep."""
    if not _is_integer(max_instructions, 1):
        raise LaunchError(f"max_instructions {max_instructions!r}; a number of warp instructions, 1 or more")
    seconds = isinstance(timeout, int | float | np.integer | np.floating) and not math.isnan(timeout)
    if not seconds or timeout <= 0:
        raise LaunchError(f"timeout {timeout!r}; a number of seconds above 0")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one launch: its counters, its notes with how often each was made, the wall time in
    seconds, the timeline if profiled, the checker's findings if checked, the skipped faults with how often
    each occurred, and, if checked, what a launch that depends on this one has to know."""

    counters: Counters
    notes: dict[Note, int]
    seconds: float
    ctas: int
    record: LaunchRecord | None = None
    found: tuple[Evidence, ...] | None = None
    skipped: tuple[tuple[Skipped, int], ...] = ()
    in_front: EarlierLaunches | None = None


@ieee_arithmetic()
def run_ptx(
    ptx: str | Module,
    entry: str,
    grid: Dim3,
    block: Dim3,
    params: Sequence[object],
    smem: int = 0,
    *,
    engine: str = "compiled",
    schedule: str = "late",
    mma: str = "hardware",
    check: bool = False,
    profile: bool = False,
    memory: GlobalMemory | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    registers: int | None = None,
    observed: Observed | None = None,
    checker: Callable[[Cta], Checker] | None = None,
    max_instructions: int | None = None,
    timeout: float | None = None,
    multiprocessors: int | None = None,
    keep_going: bool = False,
    tile_steps: tuple[tuple[int, ...], ...] = (),
    cluster: Dim3 | None = None,
    preferred_cluster: Dim3 | None = None,
    earlier: EarlierLaunches | None = None,
    path: bool = False,
    only: Sequence[int] | None = None,
) -> RunResult:
    """Launch `entry` of the PTX with `smem` bytes of dynamic shared memory and wait for its end.

    `params`: tensors and arrays are passed by address, and the kernel may access their memory; numbers are
    packed to the parameter's size; bytes are passed unchanged. `memory` adds allocations that the kernel
    reaches in other ways. `registers` is ptxas's register count per thread, for the launch budget. `observed`
    records the launch; its CTAs then run one by one, as with `check`. `checker` makes the observer of a CTA's
    events that replaces `check`'s. `multiprocessors`, 148 unless given, bounds how many CTAs that wait for
    one another run at once. `tile_steps` are instructions whose executions count as tiles of a CTA. `cluster`
    is the shape of the clusters in CTAs, that of the kernel (`.reqnctapercluster`) unless given; in some
    places of the grid the device may use clusters of the shape `preferred_cluster` (`ClusterGrid`). `earlier`
    are launches that may still run, for `check`. `path`: `checker` makes a `PathObserver`. `only`: the CTAs
    that run, all unless given. The other parameters are those of `gdnbench.sim.launch`; bounds that are None
    come from the enclosing `active` block, so also from the command line of `gdnbench sim`.

    Raises KernelFault for an illegal act and for a launch beyond `max_instructions` or `timeout`, with the
    findings before it; UnsupportedError for what is not simulated; PtxSyntaxError or LaunchError for a text
    or arguments that cannot be launched.
    """
    order = check_settings(engine, schedule, mma, threads)
    max_instructions = default_bounds().max_instructions if max_instructions is None else max_instructions
    timeout = default_bounds().timeout if timeout is None else timeout
    check_bounds(max_instructions, timeout)
    limit = TimeLimit(timeout)
    grid, block = _extents("grid", grid), _extents("block", block)
    if cluster is not None:
        cluster = _extents("cluster", cluster)
    if preferred_cluster is not None:
        preferred_cluster = _extents("preferred_cluster", preferred_cluster)
    _check_types(ptx, smem, registers, progress, memory)
    with limit:
        module = parse(ptx) if isinstance(ptx, str) else ptx
    if not isinstance(entry, str) or entry not in module.kernels:
        raise LaunchError(f"no kernel {entry!r} in the PTX; it has {', '.join(module.kernels) or 'none'}")
    kernel = module.kernels[entry]
    checks = LaunchChecker(kernel, earlier) if check else None
    if checks is not None:
        checker = checks.begin
    memory = GlobalMemory() if memory is None else memory
    param = pack_parameters(kernel, params, memory)
    kind = ENGINES[engine]
    tensor_core = importlib.import_module(kind.multiply)
    config = MachineConfig(
        schedule=order,
        mma=mma,
        multiply=tensor_core.multiply,
        multiply_scaled=tensor_core.multiply_scaled,
        track=kind.track and checker is None,  # a checker reports uninitialised reads and continues
        profile=profile,
        registers=registers if registers is not None else kernel.maxnreg,
        check=checker is not None,
        multiprocessors=multiprocessors or MULTIPROCESSORS,
        keep_going=keep_going,
        clustered=budget.is_clustered(kernel, cluster, preferred_cluster),
        explicit_clusters=budget.has_explicit_clusters(kernel, cluster, preferred_cluster),
        path=path,
    )
    launch = prepare_launch(
        module, kernel, grid, block, param, smem, memory, config, cluster, preferred_cluster
    )
    check_grid(grid, max_instructions)
    record = LaunchRecord() if profile else None
    launch.recorder = record.cta if record is not None else None
    launch.checker, launch.parts = checker, checks
    launch.tile_steps = tile_steps
    with limit:
        ready: Engine = importlib.import_module(kind.prepare).prepare(module, kernel, config)
    if observed is not None:
        ready, threads = observed.wrap_engine(launch, ready, engine), 1
    start = time.perf_counter()
    # A profile measures waits in rounds of turns: only short turns resolve them.
    quantum = min(kind.quantum, PROFILE_QUANTUM) if profile else kind.quantum
    end = End.INTERRUPTED
    launch.meter = Meter(max_instructions, timeout, limit.end)
    try:
        if progress is not None:
            progress(0, launch.ctas)
        counters = run_grid(launch, ready, quantum=quantum, threads=threads, progress=progress, only=only)
        end = End.COMPLETE
    except KernelFault as fault:
        end = End.FAULT
        fault.skipped = tuple(launch.skipped)
        if keep_going:
            refuse_to_skip(fault)
        if checks is not None:
            fault.found = collect_evidence(checks, launch)
        raise
    finally:
        if observed is not None:
            observed.end_launch(end)
    seconds = time.perf_counter() - start
    found = None if checks is None else collect_evidence(checks, launch)
    skipped = tuple(launch.skipped)
    in_front = None if checks is None else checks.in_front(grid)
    return RunResult(counters, dict(launch.notes), seconds, launch.ctas, record, found, skipped, in_front)


def run_observed(
    module: Module,
    request: LaunchRequest,
    memory: GlobalMemory,
    observer: Callable[[Cta], PathObserver],
    only: Sequence[int] | None,
    multiprocessors: int | None = None,
) -> RunResult:
    """Run the CTAs of a launch that host code requested one after the other. `observer` makes the observer of
    each CTA. `only`: the numbers of the CTAs or clusters that run, all if None. `multiprocessors`: those of
    the GPU, 148 if None. Raises what `run_ptx` raises."""
    return run_ptx(
        module,
        request.entry,
        request.grid,
        request.block,
        request.params,
        request.shared_bytes,
        memory=memory,
        threads=1,
        registers=request.registers,
        multiprocessors=multiprocessors,
        cluster=request.cluster,
        preferred_cluster=request.preferred_cluster,
        checker=observer,
        path=True,
        only=only,
    )


def _check_types(ptx: object, smem: object, registers: object, progress: object, memory: object) -> None:
    """Raises LaunchError for arguments of `run_ptx` that are of another type."""
    if not _is_integer(smem, 0):
        raise LaunchError(f"smem {smem!r}: a number of bytes, 0 or more")
    if registers is not None and not _is_integer(registers, 0):
        raise LaunchError(f"registers {registers!r}: those of a thread, or None if they are not known")
    if progress is not None and not callable(progress):
        raise LaunchError(f"progress {progress!r}; a function of (CTAs done, of how many), or None")
    if memory is not None and not isinstance(memory, GlobalMemory):
        raise LaunchError(f"memory is of type {type(memory).__name__}: a GlobalMemory, or None")
    if not isinstance(ptx, str | Module):
        raise LaunchError(f"ptx is of type {type(ptx).__name__}: the text, or what parse() made of it")


def _extents(name: str, given: object) -> Dim3:
    """Convert to three integers; `machine.budget` checks their size."""
    extents = tuple(given) if isinstance(given, Iterable) else (given,)
    if len(extents) != 3 or not all(isinstance(extent, int | np.integer) for extent in extents):
        raise LaunchError(f"{name} {given!r}: three integers (x, y, z)")
    x, y, z = (int(extent) for extent in extents)
    return x, y, z


def prepare_launch(
    module: Module,
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    param: bytes,
    smem: int,
    memory: GlobalMemory,
    config: MachineConfig,
    cluster: Dim3 | None = None,
    preferred_cluster: Dim3 | None = None,
) -> Launch:
    """Check the launch against the limits and allocate the module's variables."""
    shared_size = kernel.shared_with(smem)
    budget.check_budget(kernel, grid, block, shared_size, config.registers)
    shape = budget.check_cluster(kernel, cluster, preferred_cluster)
    memory.add_variables(module.variables)
    launch_control = uses_launch_control(kernel)
    return Launch(
        module=module,
        kernel=kernel,
        grid=grid,
        block=block,
        param=param,
        memory=memory,
        config=config,
        static_shared=kernel.shared_size,
        dynamic_shared=smem,
        shared_size=shared_size,
        handler=handler,
        launch_control=launch_control,
        clusters=ClusterGrid.plan(grid, shape, preferred_cluster, config.schedule, one_shape=launch_control)
        if config.clustered
        else None,
    )


def pack_parameters(kernel: Kernel, params: Sequence[object], memory: GlobalMemory) -> bytes:
    """The bytes of the kernel's parameter block. Tensors and arrays are added to `memory`."""
    if not isinstance(params, Sequence) or isinstance(params, str | bytes | bytearray):
        raise LaunchError(f"params is of type {type(params).__name__}: a list, one for each parameter")
    if len(params) != len(kernel.params):
        raise LaunchError(f"{kernel.name} has {len(kernel.params)} parameters, {len(params)} were given")
    size = max((variable.offset + variable.size for variable in kernel.params), default=0)
    block = bytearray(size)
    for variable, value in zip(kernel.params, params, strict=True):
        data = _encode(variable, value, memory)
        block[variable.offset : variable.offset + len(data)] = data
    return bytes(block)


_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def _encode(variable: Variable, value: object, memory: GlobalMemory) -> bytes:
    """One parameter as bytes."""
    if isinstance(value, bytes | bytearray):
        if len(value) != variable.size:
            raise LaunchError(f"{variable.name} has {variable.size} bytes, {len(value)} were given")
        return bytes(value)
    if isinstance(value, float) and variable.size in _FLOATS:
        try:
            return struct.pack(_FLOATS[variable.size], value)
        except OverflowError:
            raise LaunchError(f"{value} does not fit {variable.name} of {variable.size} bytes") from None
    if isinstance(value, int | np.integer):
        bits = 8 * variable.size
        if not -(1 << bits - 1) <= int(value) < 1 << bits:
            raise LaunchError(f"{value} does not fit {variable.name} of {variable.size} bytes")
        return (int(value) & ((1 << bits) - 1)).to_bytes(variable.size, "little")
    address = _address(value, variable.name, memory)
    if address is None or variable.size != 8:
        raise LaunchError(f"a {type(value).__name__} for {variable.name} of {variable.size} bytes")
    return address.to_bytes(8, "little")


def _address(value: object, name: str, memory: GlobalMemory) -> int | None:
    """The address of a tensor or array, whose bytes the kernel may access from now on; None for any other
    value."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise LaunchError(f"{name} is an array of Python objects; pass numbers")
        if not value.flags.writeable:
            raise LaunchError(f"{name} is a read-only array, which a kernel could write; pass a copy")
        return memory.add_array(value, name)
    if hasattr(value, "data_ptr"):
        return _add_tensor(value, name, memory)
    return None


def _add_tensor(tensor: Any, name: str, memory: GlobalMemory) -> int:
    if tensor.device.type != "cpu":
        raise LaunchError(f"{name} is on {tensor.device}; the simulator takes CPU tensors")
    reach = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel():
        memory.add(tensor.data_ptr(), (reach + 1) * tensor.element_size(), name, tensor)
    return int(tensor.data_ptr())
