# SPDX-License-Identifier: Apache-2.0
"""The call that `gdnbench sim` simulates: a function, or its name, and arguments as values or as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdnbench.errors import BadInputError

if TYPE_CHECKING:
    from torch import Tensor

    from gdnbench.sim import Call, Session, Settings


SM100 = "sm_100a"


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """`--machine` and `--sms` of a run: None for the GPU of the kernels' PTX target, and its own number of
    SMs."""

    machine: str | None = None
    sms: int | None = None

    def words(self) -> list[object]:
        """The options as typed."""
        words: list[object] = [] if self.machine is None else ["--machine", self.machine]
        return words + ([] if self.sms is None else ["--sms", self.sms])


def function_named(name: str) -> Callable[..., Any]:
    """What FILE.py:function or package.module:function names."""
    from gdnbench.replay.kernels import load_function

    if ":" not in name:
        raise BadInputError(f"{name!r} is no function; write FILE.py:function or package.module:function")
    return load_function(name).function


class FunctionCall:
    """A function with arguments, to be called once or again and again. An argument is a value, or the text
    that `gdnbench sim` takes. `seed` is that of random arguments, and of what a Python function draws of
    torch. `function` is what `name` names; None imports it."""

    def __init__(
        self,
        name: str,
        texts: Sequence[object],
        seed: int,
        arch: str,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self._name, self._texts, self._seed, self._arch = name, texts, seed, arch
        self._function = function
        self._compiled: Call | None = None
        self._given: list[Any] = []

    def call(self) -> Call | None:
        """What is to be called, its arguments made anew; None if the function did all by itself. A @cute.jit
        function is compiled the first time."""
        from gdnbench.sim import Call, call_of, compile_for
        from gdnbench.sim.host import is_jit

        positional, named, dynamic = self._values()
        if self._function is None:
            self._function = function_named(self._name)
        given = [*positional, *named.values()]
        if self._compiled is not None:
            made = {id(old): new for old, new in zip(self._given, given, strict=True)}
            arguments = {name: made.get(id(value), value) for name, value in self._compiled.arguments.items()}
            return Call(self._compiled.compiled, arguments)
        if not is_jit(self._function):
            return call_of(self._function(*positional, **named), self._name)
        self._compiled = compile_for(self._function, positional, named, dynamic, self._arch)
        self._given = given
        return self._compiled

    def _values(self) -> tuple[list[Any], dict[str, Any], dict[int, tuple[bool, ...]]]:
        """The arguments by position and by name, and what is left open of each tensor, by its id."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        dynamic: dict[int, tuple[bool, ...]] = {}
        for argument in argument_values(self._texts, self._seed):
            dynamic[id(argument.value)] = argument.dynamic
            if argument.name is not None:
                named[argument.name] = argument.value
            elif named:
                text = self._texts[len(positional) + len(named)]
                raise BadInputError(f"argument {text!r} follows a named one")
            else:
                positional.append(argument.value)
        return positional, named, dynamic


@dataclass(frozen=True, slots=True)
class ArgumentValue:
    """An argument made from its text. `dynamic` marks the extents of a tensor that were written as ?N."""

    name: str | None
    value: Any
    dynamic: tuple[bool, ...] = ()


def argument_values(texts: Sequence[object], seed: int) -> Iterator[ArgumentValue]:
    """The arguments in order: those of texts, their tensors made anew, and other values as they are; `seed`
    is that of random tensors."""
    import torch

    from gdnbench.sim.argspec import TensorSpec, make_tensor, parse_argument

    try:
        generator = torch.manual_seed(seed)
    except (RuntimeError, ValueError):
        raise BadInputError(f"--seed {seed} does not fit 64 bits") from None
    for text in texts:
        if not isinstance(text, str):
            yield text if isinstance(text, ArgumentValue) else ArgumentValue(None, text)
            continue
        argument = parse_argument(text)
        spec = argument.value
        if isinstance(spec, TensorSpec):
            yield ArgumentValue(argument.name, make_tensor(spec, generator), spec.dynamic)
        else:
            yield ArgumentValue(argument.name, spec)


def put_in(texts: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The texts with each {NAME} replaced by its value."""
    found = list(texts)
    for name, value in values.items():
        found = [text.replace(f"{{{name}}}", value) for text in found]
    return found


def make_and_launch(make: Callable[[], Call | None], session: Session) -> Call | None:
    """Make a call and launch it; `session` has the reports. A fault is the last finding of a report.

    None if the function did all by itself, or if a fault ended it that the checker's report has; KernelFault
    if there is no such report.
    """
    from gdnbench.sim.errors import KernelFault

    try:
        call = make()
    except KernelFault:
        # The report of the launch that it ended has what was found before.
        if not session.settings.check or all(report.ok for report in session.reports):
            raise
        return None
    if call is not None:
        launch_call(call, raises=False)
    return call


def arch_for(machine: str | None, arch: str | None) -> str:
    """What kernels are compiled for: `arch`, or what the machine runs, or sm_100a."""
    from gdnbench.sim.virtual import machine_named

    return arch or (SM100 if machine is None else machine_named(machine).arch)


def launch_call(call: Call, *, raises: bool = True) -> None:
    """Launch what is to be called; a kernel of a file takes its arguments in order."""
    from gdnbench.sim import launch
    from gdnbench.sim.host import PtxKernel

    if isinstance(call.compiled, PtxKernel):
        launch(call.compiled, *call.arguments.values(), raises=raises)
    else:
        launch(call.compiled, raises=raises, **call.arguments)


@contextmanager
def kernels_simulated(settings: Settings, arch: str | None, gpu: GpuOptions) -> Iterator[Session]:
    """While kernels are simulated: those of Python functions, compiled for `arch`; None for kernels of a
    file, which need no CuTe DSL."""
    from gdnbench.replay.simulated import programs_simulated
    from gdnbench.sim import active, settings_apply

    if arch is None:
        with settings_apply(settings, machine=gpu.machine, sms=gpu.sms) as session:
            yield session
        return
    with active(settings, arch, machine=gpu.machine, sms=gpu.sms) as session, programs_simulated():
        yield session


def tensors_of(call: Call) -> dict[str, Tensor]:
    """Those of its arguments, by name."""
    from gdnbench.sim.host import tensors_in

    return {named.name: named.tensor for named in tensors_in(call.arguments)}
