# SPDX-License-Identifier: Apache-2.0
"""Simulates a call of a compiled kernel: runs its host code, then every launch that the host code
requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, cast

from torch import Tensor

from gdnbench.sim.checker.earlier_launches import EarlierLaunches
from gdnbench.sim.checker.evidence import Evidence
from gdnbench.sim.deadline import TimeLimit
from gdnbench.sim.errors import KernelFault, LaunchError
from gdnbench.sim.finding import Finding, Severity
from gdnbench.sim.floating_environment import ieee_arithmetic
from gdnbench.sim.host import cutlass_dsl
from gdnbench.sim.host.arguments import NamedTensor, Region, region_of
from gdnbench.sim.host.asked_memory import AskedMemory, addresses_noted
from gdnbench.sim.host.capture import capture_launches
from gdnbench.sim.host.device import Device, Questions, described_device, device_for, device_of_host_code
from gdnbench.sim.host.dsl_calls import calls_go_to
from gdnbench.sim.host.machines import Machine, machine_named
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.launch_order import LaunchOrder
from gdnbench.sim.machine.bounds import Bounds, bounded, default_bounds
from gdnbench.sim.machine.cta import Cta, Note
from gdnbench.sim.machine.keep_going import Skipped
from gdnbench.sim.machine.memory import Allocation, GlobalMemory
from gdnbench.sim.machine.observer import Checker
from gdnbench.sim.machine.processes import Progress
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.report import LaunchReport, Report
from gdnbench.sim.ring_reuse import RING_REUSE, Steps, reuse_note, tile_steps
from gdnbench.sim.run import RunResult, check_bounds, check_settings, run_ptx
from gdnbench.sim.watch import Watch


@dataclass(frozen=True, slots=True)
class Settings:
    """How a call is simulated; `launch` explains the fields. Raises InputError for an unknown value. `watch`
    is called for every launch and returns what to record of it. `before` is called with each launch just
    before it runs; if it returns a result, the launch does not run. The bounds default to those of the
    enclosing `active` block."""

    mma: str = "hardware"
    engine: str = "compiled"
    schedule: str = "late"
    profile: bool = False
    threads: int | None = None
    progress: Progress | None = None
    watch: Watch | None = None
    check: bool = False
    before: Callable[[Module, LaunchRequest, GlobalMemory], RunResult | None] | None = None
    max_instructions: int = field(default_factory=lambda: default_bounds().max_instructions)
    timeout: float = field(default_factory=lambda: default_bounds().timeout)
    keep_going: bool = False

    def __post_init__(self) -> None:
        check_settings(self.engine, self.schedule, self.mma, self.threads)
        check_bounds(self.max_instructions, self.timeout)


@dataclass(slots=True)
class Session:
    """What `active` yields: the reports of the calls made so far. Launches may access `reachable`, and the
    memory that was `asked` for by its address. The device is `machine`, None for that of each kernel's PTX
    target, with `sms` multiprocessors, None for its own number. `patched`: the calls of CuTe DSL functions go
    to the simulator. `order` knows what else runs on the GPU between calls; without it a launch is dependent
    on another of its call alone."""

    settings: Settings
    reports: list[Report] = field(default_factory=list)
    reachable: tuple[Tensor, ...] = ()
    asked: AskedMemory = field(default_factory=AskedMemory)
    machine: Machine | None = None
    sms: int | None = None
    questions: Questions = field(default_factory=Questions)
    patched: bool = False
    order: LaunchOrder | None = None

    def multiprocessors(self, target: str) -> int:
        """The number of multiprocessors of the device, without a machine that of a PTX target, noted as asked
        for. Raises UnsupportedError for an unknown target."""
        self.questions.multiprocessors = True
        with _on_device_of(self):
            return device_for(target if self.machine is None else self.machine.arch).multiprocessors


_session: ContextVar[Session | None] = ContextVar("gdnbench_sim_session", default=None)


def current_session() -> Session | None:
    """The session of the innermost `active` or `settings_apply` block."""
    return _session.get()


@ieee_arithmetic()
def launch(
    compiled: Any,
    *args: Any,
    check: bool | None = None,
    raises: bool = True,
    reachable: Sequence[Tensor] = (),
    mma: str | None = None,
    engine: str | None = None,
    schedule: str | None = None,
    profile: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    max_instructions: int | None = None,
    timeout: float | None = None,
    keep_going: bool | None = None,
    **kwargs: Any,
) -> Report:
    """Call `compiled`, which `cute.compile` returned for sm_100a, sm_103a or sm_90a, on the CPU. It may also
    be an exported kernel, see `gdnbench.sim.host.exported_kernel`, or a kernel of a PTX text, see
    `gdnbench.sim.host.ptx_kernel`; neither needs a compiler.

    `args` and `kwargs` are the kernel's arguments without the stream: numbers, and torch CPU tensors, which
    the kernel writes in place. `reachable` are tensors that the kernel finds by pointers; those of the
    enclosing `active` blocks, and tensors whose address was asked for there, need not be named.

    `mma` is the tensor cores' arithmetic ("hardware" or "exact"), `engine` "compiled" or "interpreter",
    `schedule` when asynchronous effects land: "late", "early" or "random:SEED". `threads` is the most cores
    to use. With `check` the race checker observes every launch and the report has its findings. A launch that
    executes more than `max_instructions` warp instructions, or takes more than `timeout` seconds, is stopped;
    the seconds include those in which its PTX is read and compiled.
    A setting that is None comes from the enclosing `active` block, or else is the first value named here,
    with all cores and the bounds of `machine.bounds`.

    An illegal act, or a launch beyond a bound, raises KernelFault; with `raises` False it becomes the
    report's last finding. Later launches do not run. With `keep_going` a fault that can be skipped
    (`machine.keep_going`) is an error of the report, the launch goes on as hardware most likely would, and
    later launches run; their results are not those of a correct run. Raises ExportError, LaunchError or
    UnsupportedError for a call that cannot be simulated.
    """
    options = {
        "check": check,
        "mma": mma,
        "engine": engine,
        "schedule": schedule,
        "profile": profile,
        "threads": threads,
        "progress": progress,
        "max_instructions": max_instructions,
        "timeout": timeout,
        "keep_going": keep_going,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    session = _session.get()
    settings = replace(session.settings if session is not None else Settings(), **given)
    named = [*_tensors(reachable), *(session.reachable if session is not None else ())]
    around = session or Session(settings)
    with TimeLimit(settings.timeout):  # its PTX is read
        call = capture_launches(compiled, args, kwargs)
    more = [region_of(NamedTensor(f"reachable[{i}]", tensor)) for i, tensor in enumerate(named)]
    report, fault = run_requests(call.module, call.requests, [*call.regions, *more], around, settings)
    if session is not None:
        session.reports.append(report)
    if fault is not None and raises:
        raise fault
    return report


def _tensors(given: object) -> list[Tensor]:
    if not isinstance(given, Sequence) or not all(isinstance(tensor, Tensor) for tensor in given):
        raise LaunchError("reachable takes a list of tensors")
    return list(given)


@contextmanager
def active(
    settings: Settings | None = None,
    arch: str | None = None,
    *,
    check: bool = False,
    reachable: Sequence[Tensor] = (),
    machine: str | None = None,
    sms: int | None = None,
    questions: Questions | None = None,
) -> Iterator[Session]:
    """Inside this block calling a CuTe DSL function simulates it: what `cute.compile` returned, an executor
    of it, or the `@cute.jit` function itself. `launch` takes its defaults from `settings`, or from the
    enclosing block; `run_ptx` takes its bounds from there. Kernels compiled inside, for `arch`, keep what the
    simulator needs. `check` checks all launches, whatever the settings.

    Launches may access the tensors in `reachable`. They may also access a tensor whose `data_ptr()` was
    called inside the block, or which `from_dlpack` took, if an address inside it is among their parameters or
    in an argument, for as long as the program keeps the tensor.

    `machine` is the GPU, "b200", "b300", "h200" or "h100"; without it kernels run on that of their PTX
    target. `sms` is the number of multiprocessors that compilers, host code and kernels see: a persistent
    kernel then has that many CTAs at most. `questions` notes what the call asks the device. Raises
    LaunchError for an unknown machine, and for an `arch` that it does not run.
    """
    if machine is not None:
        named = machine_named(machine, sms)
        if arch not in (None, named.arch):
            raise LaunchError(f"arch {arch} and machine {machine}, which runs {named.arch}: give only one")
        arch = named.arch
    with ExitStack() as stack:
        session = stack.enter_context(
            settings_apply(
                settings, check=check, reachable=reachable, machine=machine, sms=sms, questions=questions
            )
        )

        def simulate(compiled: Any, *args: Any, **kwargs: Any) -> None:
            # A thread that the program starts has no session of its own.
            with nullcontext() if _session.get() is not None else _inside(session):
                launch(compiled, *args, **kwargs)

        stack.enter_context(cutlass_dsl.keep_ptx(arch))
        if not session.patched:  # `launch` finds the session of an inner block
            stack.enter_context(calls_go_to(simulate))
            stack.enter_context(addresses_noted(session.asked))
            session.patched = True
        yield session


@contextmanager
def settings_apply(
    settings: Settings | None = None,
    *,
    check: bool = False,
    reachable: Sequence[Tensor] = (),
    machine: str | None = None,
    sms: int | None = None,
    questions: Questions | None = None,
) -> Iterator[Session]:
    """The part of `active` that needs no CuTe DSL: inside this block `launch` takes its defaults from
    `settings`, and the session has the reports."""
    around = _session.get()
    given = settings or (Settings() if around is None else around.settings)
    session = Session(
        replace(given, check=given.check or check),
        reachable=(*_tensors(reachable), *(() if around is None else around.reachable)),
        asked=AskedMemory() if around is None else around.asked,
        machine=machine_named(machine) if machine is not None else None if around is None else around.machine,
        sms=sms if sms is not None or around is None else around.sms,
        questions=questions or (Questions() if around is None else around.questions),
        patched=around is not None and around.patched,
    )
    with _inside(session):
        yield session


@contextmanager
def _inside(session: Session) -> Iterator[None]:
    """Inside this block the calls of this thread belong to `session`."""
    bounds = Bounds(session.settings.max_instructions, session.settings.timeout)
    token = _session.set(session)
    try:
        with bounded(bounds), _on_device_of(session):
            yield
    finally:
        _session.reset(token)


def _on_device_of(session: Session) -> AbstractContextManager[None]:
    device = None if session.machine is None else session.machine.device
    return described_device(device, session.sms, session.questions)


def run_requests(
    module: Module,
    requests: Sequence[LaunchRequest],
    regions: Sequence[Region],
    session: Session,
    settings: Settings,
    variables: Mapping[str, int] | None = None,
    origin: str | None = None,
    run_launch: RunLaunch | None = None,
) -> tuple[Report, KernelFault | None]:
    """Run the launches of one call: the report, and the fault that ended the call, if any.

    The kernels may access `regions`, and what the program asked for in `session`. `variables` are the
    addresses, inside `regions`, of those variables of the module that outlive the call; the others are made
    for it. `origin` is the program's line that made the call, for the report. `run_launch` is called for each
    launch in place of `PendingLaunch.run`. Raises UnsupportedError for an instruction or launch that the
    simulator does not model.
    """
    memory = GlobalMemory()
    memory.extend(map(_allocation, regions))
    memory.symbols.update(variables or {})
    memory.freed += map(_allocation, session.asked.freed())
    device = device_for(module.target) if requests else device_of_host_code()
    launches: list[LaunchReport] = []
    findings: list[Finding] = []
    order = session.order or LaunchOrder()  # between two calls the program may use the tensors itself
    ended: KernelFault | None = None
    for number, request in enumerate(requests):
        memory.extend(map(_allocation, session.asked.found_in(request.params, regions)))
        steps: Steps = ()
        if settings.check and session.questions.multiprocessors:
            steps = tile_steps(module.kernels[request.entry], request.grid, request.params)
        try:
            earlier = order.in_front_of(request)
            launch = PendingLaunch(module, request, memory, regions, device, steps, earlier)
            result = launch.run(settings) if run_launch is None else run_launch(launch, settings)
        except KernelFault as fault:
            ended = fault
            order.forget()
            findings += findings_of(fault, number)
            found = cast("tuple[Evidence, ...] | None", fault.found)
            launches.append(_launch_report(request, None, found, settings))
            break
        order.add(request, result)
        launches.append(_launch_report(request, result, result.found, settings))
        findings += findings_of(result, number)
        if settings.check:
            findings += _ring_reuse(module, request, result, device, number, steps)
    how = (settings.engine, settings.schedule, settings.mma, settings.check)
    return Report(tuple(launches), tuple(findings), *how, origin=origin), ended


def _allocation(region: Region) -> Allocation:
    return Allocation(region.address, region.size, region.name, region.keeper)


@dataclass(frozen=True, slots=True)
class PendingLaunch:
    """A launch that is about to run in `memory`. `regions` are those of its call, with their names; `earlier`
    are the launches that may still run."""

    module: Module
    request: LaunchRequest
    memory: GlobalMemory
    regions: Sequence[Region]
    device: Device
    steps: Steps = ()
    earlier: EarlierLaunches | None = None

    def run(self, settings: Settings, checker: Callable[[Cta], Checker] | None = None) -> RunResult:
        """Run it to its end. `checker` makes the observer of a CTA's events that replaces that of
        `settings.check`. Raises what `run_ptx` raises."""
        request, watch = self.request, settings.watch
        if settings.before is not None:
            replaced = settings.before(self.module, request, self.memory)
            if replaced is not None:
                return replaced
        observed = None if watch is None else watch.on_launch_begin(request.entry, request.grid, self.regions)
        result = run_ptx(
            self.module,
            request.entry,
            request.grid,
            request.block,
            request.params,
            request.shared_bytes,
            engine=settings.engine,
            schedule=settings.schedule,
            mma=settings.mma,
            profile=settings.profile,
            memory=self.memory,
            progress=settings.progress,
            threads=settings.threads,
            registers=request.registers,
            observed=observed,
            check=settings.check,
            checker=checker,
            max_instructions=settings.max_instructions,
            timeout=settings.timeout,
            multiprocessors=self.device.multiprocessors,
            keep_going=settings.keep_going,
            tile_steps=self.steps,
            cluster=request.cluster,
            preferred_cluster=request.preferred_cluster,
            earlier=self.earlier,
        )
        if watch is not None:
            watch.on_launch_end(self.regions)
        return result


RunLaunch = Callable[[PendingLaunch, Settings], RunResult]
"""Runs a launch under the settings of its call; raises what `PendingLaunch.run` raises."""


def findings_of(ended: RunResult | KernelFault, number: int) -> list[Finding]:
    """What is to be said of launch `number` of a call: skipped faults, notes, what the checker found, and the
    fault that stopped it."""
    skipped = cast("tuple[tuple[Skipped, int], ...]", ended.skipped)
    findings = _of_skipped(skipped, number)
    if isinstance(ended, RunResult):
        findings += [_of_note(note, count, number) for note, count in ended.notes.items()]
    findings += _of_checker(cast("tuple[Evidence, ...] | None", ended.found), number)
    if isinstance(ended, KernelFault):
        findings.append(Finding.of_fault(ended, number))
    return findings


def _of_note(note: Note, count: int, launch: int) -> Finding:
    return Finding.at_place(
        note.place,
        severity=Severity.NOTE,
        kind="note",
        message=note.message,
        launch=launch,
        count=count,
    )


def _ring_reuse(
    module: Module, request: LaunchRequest, result: RunResult, device: Device, number: int, steps: Steps
) -> list[Finding]:
    """The note of `ring_reuse` for a launch, if there is one."""
    kernel = module.kernels[request.entry]
    x, y, z = request.block
    shared = kernel.shared_size + request.shared_bytes
    fitting = device.blocks_per_multiprocessor(x * y * z, request.registers or 0, shared)
    cluster = prod(kernel.cluster or request.cluster or ())
    message = reuse_note(
        kernel, steps, result.counters, result.ctas, device.multiprocessors, fitting, cluster
    )
    if message is None:
        return []
    return [Finding(Severity.NOTE, RING_REUSE, message, number)]


def _of_skipped(skipped: Sequence[tuple[Skipped, int]], launch: int) -> list[Finding]:
    return [
        Finding.at_place(
            fault.place,
            severity=Severity.ERROR,
            kind=fault.kind.value,
            message=fault.text,
            launch=launch,
            thread=fault.thread,
            count=count,
            skipped=True,
        )
        for fault, count in skipped
    ]


def _of_checker(found: Sequence[Evidence] | None, launch: int) -> list[Finding]:
    return [Finding.of_evidence(evidence, launch) for evidence in found or ()]


def _launch_report(
    request: LaunchRequest,
    result: RunResult | None,
    found: Sequence[Evidence] | None,
    settings: Settings,
) -> LaunchReport:
    """`result` is None for a launch that a fault stopped, `found` for one that was not checked."""
    start = LaunchReport(
        entry=request.entry,
        grid=request.grid,
        block=request.block,
        shared_bytes=request.shared_bytes,
        registers=request.registers,
        finished=result is not None,
        found=None if found is None else dict(Counter(one.verdict.value for one in found)),
    )
    if result is None:
        return start
    counters = result.counters
    done = replace(
        start,
        ctas=result.ctas,
        warp_instructions=counters.warp_instructions,
        mma_macs=counters.mma_macs,
        seconds=result.seconds,
        printed=tuple(text for _, text in sorted(counters.printed, key=lambda one: one[0])),
    )
    if not settings.profile:
        return done
    waits = {f"warp {warp} at {name}": count for (warp, name), count in counters.waits.items()}
    return replace(
        done,
        instructions=dict(counters.instructions),
        traffic=dict(counters.traffic),
        waits=waits,
        timeline=result.record,
    )
