"""The shapes of `gdnbench sim --explore`: arguments with values put in, and what runs them."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gdnbench.cli.sim_call import TextCall, function_named, tensors_of
from gdnbench.errors import CANNOT_RUN_ERRORS, BadInputError
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active, launch
from gdnbench.sim.errors import KernelFault
from gdnbench.sim.explore import Run, Shape

if TYPE_CHECKING:
    from gdnbench.sim import GlobalMemory
    from gdnbench.sim.host import LaunchRequest
    from gdnbench.sim.ptx import Module

Command = Callable[[list[str], str], str]
"""What a person types to repeat a run: the arguments, and the schedule."""


def shapes(
    function: str,
    texts: Sequence[str],
    vary: Mapping[str, Sequence[str]],
    seed: int,
    arch: str,
    settings: Settings,
    command: Command,
) -> list[Shape]:
    """One for each choice of the values in `vary`, each put in for {NAME} in the arguments `texts`.
    BadInputError for a name that stands nowhere."""
    for name in vary:
        if not any(f"{{{name}}}" in text for text in texts):
            raise BadInputError(
                f"--vary {name}: no argument has {{{name}}} in it, such as 'bf16[?{{{name}}},64]'"
            )
    # Its file may print, and compile kernels, when it is imported.
    with contextlib.redirect_stdout(sys.stderr), active(settings, arch), programs_simulated():
        loaded = function_named(function)
    found = []
    for values in itertools.product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        put_in = _put_in(texts, chosen)
        called = _Called(function, TextCall(function, put_in, seed, arch, loaded), arch, settings)
        label = ", ".join(f"{name}={value}" for name, value in chosen.items()) or "as given"
        found.append(Shape(label, called.run, _repeat(command, put_in)))
    return found


def _put_in(texts: Sequence[str], values: Mapping[str, str]) -> list[str]:
    found = list(texts)
    for name, value in values.items():
        found = [text.replace(f"{{{name}}}", value) for text in found]
    return found


def _repeat(command: Command, texts: list[str]) -> Callable[[str], str]:
    return lambda schedule: command(texts, schedule)


class _Called:
    """The function called `name` with arguments that are made anew for each run."""

    def __init__(self, name: str, asked: TextCall, arch: str, settings: Settings) -> None:
        self._name, self._asked, self._arch = name, asked, arch
        self._settings = settings

    def run(self, schedule: str) -> Run:
        met = _Met()
        settings = replace(self._settings, schedule=schedule, before=met)
        tensors: dict[str, Tensor] | None = None
        with (
            contextlib.redirect_stdout(sys.stderr),
            active(settings, self._arch) as session,
            programs_simulated(),
        ):
            try:
                call = self._asked.call()
                if call is not None:
                    launch(call.compiled, **call.arguments)
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
