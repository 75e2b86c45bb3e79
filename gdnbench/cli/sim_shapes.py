# SPDX-License-Identifier: Apache-2.0
"""The shapes of `gdnbench sim --explore`: arguments with values put in, and what runs them."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from gdnbench.cli.console import print_note
from gdnbench.cli.exploring import typed
from gdnbench.errors import CANNOT_RUN_ERRORS, BadInputError
from gdnbench.kernel_file import FileCall, LaunchOptions, kernel_file
from gdnbench.sim import Settings
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.explore import Exploration, Progress, Run, Shape, explore
from gdnbench.simulated_call import (
    FunctionCall,
    GpuOptions,
    function_named,
    kernels_simulated,
    launch_call,
    put_in,
    tensors_of,
)

if TYPE_CHECKING:
    from gdnbench.sim import Call, GlobalMemory
    from gdnbench.sim.host import LaunchRequest
    from gdnbench.sim.ptx import Module


@dataclass(frozen=True, slots=True)
class Exploring:
    """What `gdnbench sim --explore` runs: the function or file, its arguments as text, the options of the
    launch, the values of `--vary`, and the schedules. `machine` is that of `--machine`, `words` are the other
    options, for the command that repeats a run."""

    function: str
    texts: Sequence[str]
    options: LaunchOptions
    vary: Mapping[str, Sequence[str]]
    seed: int
    arch: str
    settings: Settings
    machine: str | None
    words: tuple[str, ...]
    schedules: tuple[str, ...]

    def command(self, texts: Sequence[str], launched: LaunchOptions, schedule: str, gpu: GpuOptions) -> str:
        """The command that repeats a run."""
        options = ("--schedule", schedule, *launched.words(), *gpu.words(), *self.words)
        return typed("sim", self.function, *options, *["--"] * bool(texts), *texts)


def explore_shapes(
    what: Exploring, sms: int | None, progress: Progress | None = None, *, keep: bool = False
) -> Exploration:
    """The runs of all shapes on a GPU of that number of SMs, None for the machine's own. With `keep` the
    results have the outputs of each shape."""
    gpu = GpuOptions(what.machine, sms)
    return explore(shapes(what, gpu), what.schedules, progress, keep=keep)


def explore_on(what: Exploring, sms: int, progress: Progress) -> Exploration:
    """`explore_shapes` with its outputs, for `explore_gpus`."""
    return explore_shapes(what, sms, progress, keep=True)


class Caller(Protocol):
    """What is to be called, its arguments made anew; None if the function did all by itself."""

    def call(self) -> Call | None: ...


def shapes(what: Exploring, gpu: GpuOptions) -> list[Shape]:
    """One for each choice of the values in `vary`, each put in for {NAME} in the arguments and in the options
    of the launch. BadInputError for a name that stands nowhere."""
    function, texts, options, vary = what.function, what.texts, what.options, what.vary
    seed, arch = what.seed, what.arch
    for name in vary:
        if not any(f"{{{name}}}" in text for text in (*texts, *options.words())):
            raise BadInputError(
                f"--vary {name}: no argument has {{{name}}} in it, such as 'bf16[?{{{name}}},64]'"
            )
    file = kernel_file(function)
    active_for = arch if file is None else None
    loaded: Callable[..., Any] | None = None
    if file is None:
        # Its file may print, and compile kernels, when it is imported.
        with contextlib.redirect_stdout(sys.stderr), kernels_simulated(what.settings, arch, gpu):
            loaded = function_named(function)
    found = []
    for values in itertools.product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        given, launched = put_in(texts, chosen), options.with_values(chosen)
        caller: Caller = (
            FunctionCall(function, given, seed, arch, loaded)
            if file is None
            else FileCall(file, launched, given, seed, arch, print_note)
        )
        called = _Called(function, caller, active_for, what.settings, gpu)
        label = ", ".join(f"{name}={value}" for name, value in chosen.items()) or "as given"
        found.append(Shape(label, called.run, _repeat(what, given, launched, gpu)))
    return found


def _repeat(
    what: Exploring, texts: Sequence[str], options: LaunchOptions, gpu: GpuOptions
) -> Callable[[str], str]:
    return lambda schedule: what.command(texts, options, schedule, gpu)


class _Called:
    """The function called `name` with arguments that are made anew for each run. `arch` and `gpu` are those
    of `kernels_simulated`."""

    def __init__(
        self, name: str, asked: Caller, arch: str | None, settings: Settings, gpu: GpuOptions
    ) -> None:
        self._name, self._asked, self._arch = name, asked, arch
        self._settings, self._gpu = settings, gpu

    def run(self, schedule: str) -> Run:
        met = _Met()
        settings = replace(self._settings, schedule=schedule, before=met)
        tensors: dict[str, Tensor] | None = None
        with (
            contextlib.redirect_stdout(sys.stderr),
            kernels_simulated(settings, self._arch, self._gpu) as session,
        ):
            try:
                call = self._asked.call()
                if call is not None:
                    launch_call(call)
                tensors = met.left() if call is None else tensors_of(call)
            except KernelFault:
                if not session.reports:
                    raise
            except CANNOT_RUN_ERRORS as error:
                return Run(refused=str(error))
        if not session.reports:
            raise BadInputError(f"{self._name} returned no (compiled, args) and ran nothing on the simulator")
        return Run(tensors, tuple(finding for report in session.reports for finding in report.findings))


class _Met:
    """Told of each launch: the memory of each call, for what a function launched by itself."""

    def __init__(self) -> None:
        self._memories: list[GlobalMemory] = []

    def __call__(self, module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        if not any(memory is known for known in self._memories):
            self._memories.append(memory)

    def left(self) -> dict[str, Tensor]:
        """The bytes of all that the launches of each call could reach."""
        return {
            f"{item.name} of call {number}" if len(self._memories) > 1 else item.name: torch.frombuffer(
                bytearray(memory.view(item.base, item.size).data), dtype=torch.uint8
            )
            for number, memory in enumerate(self._memories)
            for item in memory.allocations
        }
