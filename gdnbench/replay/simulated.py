# SPDX-License-Identifier: Apache-2.0
"""Runs kernels on the simulated SM100: they get CPU tensors, and every compiled kernel that they call is
simulated.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gdnbench import phases
from gdnbench.errors import CannotRunError
from gdnbench_kernels.compiling import launching
from gdnbench_kernels.contract import Kernel
from gdnbench_kernels.gpu import calls_for

if TYPE_CHECKING:
    from gdnbench.sim import Finding, Questions, Session
    from gdnbench.sim.virtual import DeviceMemory
    from gdnbench.store.reader import StoredRecord
    from gdnbench.trace.request import TraceRequest

SIM = "sim"

MACHINE, SMS = "GDNBENCH_REPLAY_MACHINE", "GDNBENCH_REPLAY_SMS"
"""Environment variables, so that worker processes have them: what `replay_gpu` says."""

_session: ContextVar[Session | None] = ContextVar("gdnbench_replay_session", default=None)
"""That of the innermost `simulated` block."""


@contextmanager
def simulated(
    on: str,
    checked: list[Finding] | None = None,
    *,
    keep_going: bool = False,
    questions: Questions | None = None,
) -> Iterator[Session | None]:
    """While a kernel is loaded or runs on the device called `on`; yields None unless that is the simulator.

    A kernel calls a `Program`, what `cute.compile` returned, or `gdnbench.sim.launch`, with the tensors it
    was given. The GPU is the one that `replay_gpu` says. With `checked`, which takes what is found, its
    launches are checked, until it fails if it does. With `keep_going` launches go on after faults that can be
    skipped. `questions` notes what the kernel asks of the GPU, here and in other such blocks.
    """
    if on != SIM:
        yield None
        return
    from gdnbench.sim import active

    with ExitStack() as stack:
        if keep_going:
            around = stack.enter_context(active())
            stack.enter_context(active(replace(around.settings, keep_going=True)))
        phases.enter("compile")
        around = stack.enter_context(active())
        if around.settings.progress is None:
            stack.enter_context(active(replace(around.settings, progress=_enter_simulation)))
        machine, sms = requested_gpu()
        session = stack.enter_context(
            active(check=checked is not None, machine=machine, sms=sms, questions=questions)
        )
        stack.enter_context(programs_simulated())
        token = _session.set(session)
        try:
            yield session
        finally:
            _session.reset(token)
            if checked is not None:
                checked += _of_checker(session)


def _enter_simulation(done: int, ctas: int) -> None:
    phases.enter("simulate", f"{done} of {ctas} CTAs")


@contextmanager
def replay_gpu(machine: str | None = None, sms: int | None = None) -> Iterator[None]:
    """Inside this block the GPU of simulated kernels is `machine` with `sms` multiprocessors; None leaves
    what an enclosing block says. InputError for an unknown machine or a number below 1."""
    from gdnbench.sim.virtual import machine_named

    machine_named(machine or "b200", sms)
    given = {MACHINE: machine, SMS: None if sms is None else str(sms)}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def requested_gpu() -> tuple[str | None, int | None]:
    """What `replay_gpu` said: machine and number of multiprocessors, None for what it did not say."""
    sms = os.environ.get(SMS)
    return os.environ.get(MACHINE), None if sms is None else int(sms)


@functools.cache
def _device_memory() -> DeviceMemory:
    """The memory of all virtual GPUs of this process: a package may keep a workspace from call to call."""
    from gdnbench.sim.virtual import DeviceMemory

    return DeviceMemory()


def on_virtual_gpu(function: Kernel) -> Kernel:
    """`function` of a package that takes tensors on CUDA alone. While `simulated`, it is called on a virtual
    GPU with CUDA tensors of the same memory as the CPU tensors it was given, those in a dict of stages too;
    the tensors that it returns, or adds to the dict, are on the CPU again."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        session = _session.get()
        if session is None:
            return function(**arguments)
        from gdnbench.sim.virtual import virtual_gpu

        machine, sms = requested_gpu()
        with virtual_gpu(machine or "b200", sms, session.settings, _device_memory()) as gpu:
            given = {name: _on_cuda(value) for name, value in arguments.items()}
            try:
                returned = _on_cpu(function(**given))
            finally:
                session.reports += gpu.reports
            for name, value in arguments.items():
                if isinstance(value, MutableMapping):
                    value.update(
                        _on_cpu({key: given[name][key] for key in given[name].keys() - value.keys()})
                    )
            return returned

    return call


def _on_cuda(value: Any) -> Any:
    """An argument of a kernel, with its tensors on the virtual GPU."""
    from gdnbench.sim.virtual import cuda_alias

    if isinstance(value, Mapping):
        return {name: _on_cuda(one) for name, one in value.items()}
    return cuda_alias(value) if isinstance(value, Tensor) else value


def _on_cpu(returned: Any) -> Any:
    """What a kernel returned, with its tensors on the CPU."""
    if isinstance(returned, Mapping):
        return {name: _on_cpu(value) for name, value in returned.items()}
    if isinstance(returned, tuple | list):
        return [_on_cpu(value) for value in returned]
    return _copy_on_cpu(returned) if isinstance(returned, Tensor) else returned


def _copy_on_cpu(tensor: Tensor) -> Tensor:
    """A tensor of the virtual GPU on the CPU, with its fp64 shadows if launches have any."""
    from gdnbench.sim import Fp64Shadows
    from gdnbench.sim.virtual import cpu_alias

    copied = tensor.cpu()
    session = _session.get()
    watch = None if session is None else session.settings.watch
    if isinstance(watch, Fp64Shadows) and tensor.is_cuda:
        watch.copy(cpu_alias(tensor), copied)
    return copied


@contextmanager
def traced(trace: TraceRequest | None, record: StoredRecord) -> Iterator[None]:
    """While launches of a simulated kernel go to a value trace, if there is one, as launches of `record`."""
    if trace is None:
        yield
        return
    from gdnbench.sim import active

    with active() as around:
        watch = trace.watch({"record": record.key, "record_number": record.number})
        with active(replace(around.settings, watch=watch)):
            yield


@contextmanager
def programs_simulated() -> Iterator[None]:
    """While calls of compiled programs are simulated, and kernels see the GPU of the `active` block."""
    from gdnbench.sim import launch

    with (
        launching(lambda program, args, kwargs: launch(program, *args, **kwargs)),
        calls_for(_SimulatedGpu()),
    ):
        yield


class _SimulatedGpu:
    """The GPU of the innermost `active` block; implements `gdnbench_kernels.gpu.Gpu`."""

    @property
    def name(self) -> str:
        machine = self._session().machine
        return "the simulated GPU" if machine is None else machine.product

    @property
    def capability(self) -> tuple[int, int] | None:
        machine = self._session().machine
        return None if machine is None else machine.device.capability

    def sms(self, arch: str) -> int:
        return self._session().multiprocessors(arch)

    def _session(self) -> Session:
        from gdnbench.sim import Session, Settings, current_session

        return current_session() or Session(Settings())


def _of_checker(session: Session) -> Iterator[Finding]:
    """What was found in all calls, their launches numbered on."""
    before = 0
    for report in session.reports:
        for finding in report.findings:
            if finding.evidence is not None:
                yield replace(finding, launch=before + finding.launch)
        before += len(report.launches)


def skipped_faults(session: Session) -> list[str]:
    """The faults after which launches went on, one line each."""
    before, found = 0, []
    for report in session.reports:
        for fault in report.findings:
            if fault.skipped:
                often = f" ({fault.count} times)" if fault.count > 1 else ""
                where = f" at PTX line {fault.ptx_line}" if fault.ptx_line is not None else ""
                message = f"{fault.kind} in launch {before + fault.launch}: {fault.message}"
                found.append(f"{message}{where}{often}")
        before += len(report.launches)
    return found


def notes_of(session: Session, kernel: str, empty: bool = False) -> list[str]:
    """What was simulated, in a line, and what the simulator noted. CannotRunError if nothing was, unless the
    call is `empty`, one of no tokens: a result that the simulator had no part in says nothing about it."""
    from gdnbench.sim import AFTER_A_FAULT

    launches = [launch for report in session.reports for launch in report.launches]
    if empty and not launches:
        return ["simulated: no launch, for no tokens"]
    if not launches:
        raise CannotRunError(
            f"kernel {kernel} ran nothing on the simulator: it must call a compiled program, what"
            " cute.compile returned, or gdnbench.sim.launch"
        )
    instructions = sum(launch.warp_instructions for launch in launches)
    findings = [finding for report in session.reports for finding in report.findings]
    found = [finding.message for finding in findings if finding.evidence is None and not finding.skipped]
    count = f"{len(launches)} launch{'es' if len(launches) > 1 else ''}"
    checked = ", checked" if session.settings.check else ""
    machine, sms = requested_gpu()
    described = f", {machine}" if machine is not None else ""
    described += f", {sms} SM{'' if sms == 1 else 's'}" if sms is not None else ""
    if any(finding.skipped for finding in findings):
        found.append(AFTER_A_FAULT)
    return [
        f"simulated: {count}, {instructions:,} warp instructions{checked}{described}",
        *dict.fromkeys(found),
    ]
