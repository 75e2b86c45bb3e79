"""The seam between an engine, which owns registers and control flow, and the machine, which owns all else.

An engine executes arithmetic, control flow, loads and stores and warp collectives by itself. Every other
instruction it hands to `Cta.issue`. Values cross the seam as `Values`: uint64[32], one per lane,
zero-extended bits; a predicate is 0 or 1. Lanes outside `lanes` hold rubbish.

How a source operand arrives: Register, Immediate, Special, Symbol, Negated -> Values; Address -> Values, the
effective address, in the state space that the instruction names (generic if it names none); TensorAddress ->
(descriptor address, coordinate, ...); Vector -> one Values an element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.ptx.ir import Instruction, Register, Variable

LANES = 32

Dim3 = tuple[int, int, int]
Values = npt.NDArray[np.uint64]
Lanes = npt.NDArray[np.bool_]
Argument = Values | tuple[Values, ...]

# Generic addresses of the windows that are not global memory; no host pointer lies this high.
SHARED_WINDOW = 0x7000_0000_0000_0000
LOCAL_WINDOW = 0x7100_0000_0000_0000
PARAM_WINDOW = 0x7200_0000_0000_0000
WINDOW_SIZE = 0x0010_0000_0000_0000

WINDOWS = {
    "shared": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW,
    # Constant memory lies in global memory here; both have generic addresses that equal their own.
    "global": 0,
    "const": 0,
}
"""By state space, what `cvta` adds to an address."""

# Shared addresses start here: the first kilobyte of an SM's shared memory belongs to the system.
SHARED_BASE = 1024


@dataclass(slots=True)
class Wait:
    """Why some lanes cannot go on: the instruction is issued again once `ready()`; `text()` says what is
    awaited ("mbarrier 0x1408 parity 1: 1 of 2 arrivals and 4096 bytes pending"). `expires` waits (try_wait)
    may give up, returning false, when nothing else in the CTA can move; `timed_out` is then set before the
    instruction is issued again."""

    ready: Callable[[], bool]
    text: Callable[[], str]
    expires: bool = False
    timed_out: bool = False
    advance: Callable[[], bool] | None = None
    """Lands the next asynchronous effect that this wait is for; false if none is in flight. Called when no
    warp of the CTA can run."""

    def over(self) -> bool:
        """True if the instruction is to be issued again, with this Wait."""
        return self.timed_out or self.ready()


def window_of_variable(ins: Instruction, variable: Variable) -> int:
    """What `ins` adds to the address of a variable that it names as `[variable]`: a generic address is formed
    if it names no state space. The PTX ISA (6.4.1) leaves open what such an access means; ptxas (CUDA 13.0)
    makes it one to the variable."""
    named = any(mod.split("::")[0] in WINDOWS for mod in ins.mods)
    return 0 if named else WINDOWS[variable.space]


Results = Sequence[Values]  # one per register of `Instruction.written()`, or WRITTEN
WRITTEN: Results = []
"""What a handler returns that writes registers by itself, now or later: this very object."""

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class RegisterList:
    """Registers of 32 bits that the machine reaches together, kept as long as the launch."""

    registers: tuple[Register, ...]


class RegisterAccess(Protocol):
    """The registers of one warp for an instruction that reads or writes them after its issue (wgmma).

    A register that such an instruction is going to write is *in flight* until the warp has waited for it. It
    holds a token meanwhile, a NaN that no computation gives; compilers move such registers before the wait,
    and the token goes along.
    """

    def take(self, registers: RegisterList) -> Words:
        """What they hold, uint32[registers, 32]: a copy."""
        ...

    def put(self, registers: RegisterList, words: Words) -> None:
        """Have them hold `words`, in all lanes."""
        ...

    def replace(self, register: Register, token: int, words: Words, halves: bool) -> None:
        """Where 32 aligned bits of `register` are the token, put the lane's word: uint32[32]. `halves`: where
        16 bits are a half of the token, put that half of the word."""
        ...

    def require(self, registers: RegisterList) -> None:
        """Fault, or tell the checker, if one of them was never written, for an engine that knows."""
        ...

    def launch(self, registers: RegisterList, owner: object, ins: Instruction) -> None:
        """They are in flight for `owner`, which `ins` set going."""
        ...

    def settle(self, owner: object) -> None:
        """The warp has waited for `owner`: its registers, wherever they were moved, may be used."""
        ...


@dataclass(slots=True)
class Warp:
    """Who issues: the warp's place in its CTA. `exists` marks the lanes that are threads of the block and
    have not exited: the engine clears a lane, in place, when it exits. `registers` is the engine's."""

    index: int
    exists: Lanes
    registers: RegisterAccess | None = None


class WarpState(Enum):
    RUNNING = auto()
    BLOCKED = auto()
    EXITED = auto()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Lanes of a warp that wait at an instruction."""

    instruction: Instruction
    lanes: Lanes
    wait: Wait


class WarpEngine(Protocol):
    """One warp as an engine runs it. A warp whose lanes diverged has several groups, each at its own pc."""

    warp: Warp

    def run(self, quantum: int) -> WarpState:
        """Execute at most about `quantum` instructions; stop early when no group can go on."""
        ...

    def blocked(self) -> tuple[Blocked, ...]:
        """The groups that wait, if the last `run` said BLOCKED."""
        ...

    @property
    def executed(self) -> int:
        """Warp instructions executed so far."""
        ...
