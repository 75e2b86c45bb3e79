# SPDX-License-Identifier: Apache-2.0
"""A CTA on the bench: instructions are issued one by one, or as scripts of several warps under the
scheduler."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from gdnbench.sim.machine.async_queue import Schedule
from gdnbench.sim.machine.cta import Cta, Launch, MachineConfig
from gdnbench.sim.machine.engine_interface import LANES, Blocked, Wait, Warp, WarpState
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.machine.scheduler import Scheduler
from gdnbench.sim.machine.units import handler
from gdnbench.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Module,
    Negated,
    Register,
    TensorAddress,
    Vector,
)
from gdnbench.sim.ptx.parser import parse

ALL = np.ones(LANES, bool)
NONE = np.zeros(LANES, bool)
ONE = np.arange(LANES) == 0


@cache
def _module(text: str) -> Module:
    """A kernel of one instruction. Registers named p* are predicates, d* have 64 bits, all others 32."""
    widths = {"p": ".pred", "d": ".b64"}
    registers = "".join(
        f".reg {widths.get(name[1], '.b32')} {name}; " for name in sorted(set(re.findall(r"%\w+", text)))
    )
    return parse(
        f".version 8.8\n.target sm_100a\n.address_size 64\n.entry k() {{\n{registers}\n{text};\nret;\n}}\n"
    )


def instruction(text: str) -> Instruction:
    """The IR of one instruction, written without its semicolon."""
    return _module(text).kernels["k"].instructions[0]


def operands(ins: Instruction, values: dict[str, object]) -> tuple[object, ...]:
    """The sources of `ins` as an engine would hand them over; `values` are the registers by name."""

    def operand(source: object) -> object:
        match source:
            case Register(name=name):
                value = np.asarray(values[name.lstrip("%")])
                return np.broadcast_to(value.astype(np.uint64), LANES).copy()
            case Negated(register=register):
                return np.uint64(1) - operand(register)
            case Immediate(bits=bits):
                return np.full(LANES, bits, np.uint64)
            case Address(base=base, offset=offset):
                return operand(base) + np.uint64(offset)
            case TensorAddress(descriptor=descriptor, coordinates=coordinates):
                return (operand(descriptor), *(operand(coordinate) for coordinate in coordinates))
            case Vector(elements=elements):
                return tuple(operand(element) for element in elements)
        raise AssertionError(source)

    return tuple(operand(source) for source in ins.sources)


def launch(
    *,
    shared: int = 64 * 1024,
    schedule: str = "late",
    threads: int = 128,
    param: bytes = b"",
    memory: GlobalMemory | None = None,
    track: bool = True,
    registers: int | None = None,
    cluster: tuple[int, int, int] | None = None,
) -> Launch:
    """A launch of one CTA; `cluster` is the kernel's .reqnctapercluster."""
    module = _module("membar.cta")
    config = MachineConfig(
        Schedule.parse(schedule), track=track, registers=registers, explicit_clusters=cluster is not None
    )
    return Launch(
        module=module,
        kernel=replace(module.kernels["k"], cluster=cluster),
        grid=(1, 1, 1),
        block=(threads, 1, 1),
        param=param,
        memory=memory or GlobalMemory(),
        config=config,
        static_shared=0,
        dynamic_shared=shared,
        shared_size=shared,
        handler=handler,
    )


class Bench:
    """A CTA and its warps."""

    def __init__(self, **options: object) -> None:
        self.launch = launch(**options)  # type: ignore[arg-type]
        self.cta = Cta(self.launch, 0)
        self.shared = self.cta.shared
        self.warps = [self.cta.warp(index) for index in range(self.launch.warps)]

    def issue(
        self,
        text: str,
        *,
        warp: int = 0,
        lanes: np.ndarray = ONE,
        previous: Wait | None = None,
        **values: object,
    ):  # type: ignore[no-untyped-def]
        """Execute one instruction; keyword arguments are the contents of its registers."""
        ins = instruction(text)
        return self.cta.issue(self.warps[warp], ins, lanes, operands(ins, values), previous)  # type: ignore[arg-type]

    def notes(self) -> list[str]:
        return [note.message for note in self.launch.notes]


@dataclass
class Step:
    """One instruction of a script. A predicate result of zero makes the warp issue it again, as a loop
    would."""

    text: str
    lanes: np.ndarray = field(default_factory=lambda: ONE)
    values: dict[str, object] = field(default_factory=dict)
    loop: bool = True


def step(text: str, *, lanes: np.ndarray = ONE, loop: bool = True, **values: object) -> Step:
    return Step(text, lanes, values, loop)


Action = Step | Callable[[], None]


class ScriptWarp:
    """A warp that executes a list of actions: the smallest engine there is."""

    def __init__(self, cta: Cta, warp: Warp, actions: Sequence[Action]) -> None:
        self.cta = cta
        self.warp = warp
        self.actions = list(actions)
        self.results: list[object] = []
        self._at = 0
        self._wait: Wait | None = None
        self._executed = 0

    @property
    def executed(self) -> int:
        return self._executed

    def executions(self, pc: int) -> int:
        raise NotImplementedError

    def position(self) -> Instruction:
        action = self.actions[self._at]
        assert isinstance(action, Step)
        return instruction(action.text)

    def run_turn(self, quantum: int) -> WarpState:
        for _ in range(quantum):
            if self._at == len(self.actions):
                self.warp.exists[:] = False
                return WarpState.EXITED
            action = self.actions[self._at]
            if not isinstance(action, Step):
                action()
                self._at += 1
                continue
            if self._wait is not None and not self._wait.over():
                return WarpState.BLOCKED
            ins = instruction(action.text)
            lanes = action.lanes & self.warp.exists
            got = self.cta.issue(self.warp, ins, lanes, operands(ins, action.values), self._wait)  # type: ignore[arg-type]
            if isinstance(got, Wait):
                self._wait = got
                return WarpState.BLOCKED
            self._wait = None
            self._executed += 1
            if action.loop and ins.op.endswith(("try_wait", "test_wait")) and not got[0][lanes].all():
                continue
            self.results.append(got)
            self._at += 1
        return WarpState.RUNNING

    def blocked(self) -> tuple[Blocked, ...]:
        if self._wait is None:
            return ()
        action = self.actions[self._at]
        assert isinstance(action, Step)
        return (Blocked(instruction(action.text), action.lanes, self._wait),)


def play(bench: Bench, *scripts: Sequence[Action], rounds: int = 2000) -> list[ScriptWarp]:
    """Run one script a warp to the end; warps without one exit at once."""
    warps = [
        ScriptWarp(bench.cta, warp, scripts[index] if index < len(scripts) else ())
        for index, warp in enumerate(bench.warps)
    ]
    scheduler = Scheduler(bench.cta, warps)
    for _ in range(rounds):
        if not scheduler.round():
            return warps
    raise AssertionError(f"not done after {rounds} rounds")
