# SPDX-License-Identifier: Apache-2.0
"""The interface between an engine (registers and control flow) and the machine (everything else).

An engine itself executes arithmetic, control flow, loads, stores and warp collectives. It hands every other
instruction to `Cta.issue`. Operands and results are `Values`: uint64[32], one per lane, zero-extended bits; a
predicate is 0 or 1. Values of lanes outside `lanes` are undefined.

A source operand becomes:

    Register, Immediate, Special, Symbol, Negated   Values
    Address         Values: effective addresses in the instruction's state space, generic if it names none
    TensorAddress   (descriptor address, coordinate, ...)
    Vector          one Values per element
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

# Generic addresses of the shared and local windows; no host pointer is this high.
SHARED_WINDOW = 0x7000_0000_0000_0000
LOCAL_WINDOW = 0x7100_0000_0000_0000
PARAM_WINDOW = 0x7200_0000_0000_0000
WINDOW_SIZE = 0x0010_0000_0000_0000

WINDOWS = {
    "shared": SHARED_WINDOW,
    "local": LOCAL_WINDOW,
    "param": PARAM_WINDOW,
    # Constant memory is part of global memory here; generic addresses of both equal their own.
    "global": 0,
    "const": 0,
}
"""The offset that `cvta` adds to an address, by state space."""

# The first shared address of a CTA: the system uses the first kilobyte of an SM's shared memory.
SHARED_BASE = 1024

# In a cluster the shared addresses of the CTA of rank r begin at r * CLUSTER_STRIDE, its own ones too. So an
# address says which CTA it belongs to, and shared::cta is a part of shared::cluster. An H200 has these
# addresses, and CUTLASS clears bit 24 to name the mbarrier of the even CTA of a pair (Sm100MmaPeerBitMask).
CLUSTER_STRIDE = 1 << 24
MAX_CLUSTER = 16  # with the attribute for non-portable sizes; 8 without


@dataclass(slots=True)
class Wait:
    """Why some lanes cannot continue. The instruction is issued again once `ready()`. `text()` describes the
    condition ("mbarrier 0x1408 parity 1: 1 of 2 arrivals and 4096 bytes pending"). A wait that `expires`
    (try_wait) may return False when nothing else in the CTA can run; `timed_out` is set before the
    instruction is then issued again."""

    ready: Callable[[], bool]
    text: Callable[[], str]
    expires: bool = False
    timed_out: bool = False
    advance: Callable[[], bool] | None = None
    """Land the next asynchronous operation that this wait needs; False if none is in flight. The scheduler
    calls it when no warp of the CTA can run."""

    def over(self) -> bool:
        """True if the instruction must be issued again, with this Wait."""
        return self.timed_out or self.ready()


def window_of_variable(ins: Instruction, variable: Variable) -> int:
    """The offset that `ins` adds to the address of a variable that it names as `[variable]`. If `ins` names
    no state space, it forms a generic address. The PTX ISA (6.4.1) leaves the meaning of such an access open;
    ptxas (CUDA 13.0) accesses the variable."""
    named = any(mod.split("::")[0] in WINDOWS for mod in ins.mods)
    return 0 if named else WINDOWS[variable.space]


Results = Sequence[Values]  # one per register of `Instruction.written()`, or WRITTEN
WRITTEN: Results = []
"""The object that a handler returns if it writes registers itself, now or later; compared by identity."""

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class RegisterList:
    """Registers of 32 bits that one instruction accesses together; lives as long as the launch."""

    registers: tuple[Register, ...]


class RegisterAccess(Protocol):
    """The registers of one warp, for an instruction that reads or writes them after its issue (wgmma).

    A register that such an instruction will write is *in flight* until the warp has waited for the
    instruction. Meanwhile it contains a token, a NaN that no computation produces. Compilers move such
    registers before the wait; the moves then copy the token.
    """

    def read_words(self, registers: RegisterList) -> Words:
        """A copy of the registers, uint32[registers, 32]."""
        ...

    def write_words(self, registers: RegisterList, words: Words) -> None:
        """Write `words` to the registers, in all lanes."""
        ...

    def replace_token(self, register: Register, token: int, words: Words, halves: bool) -> None:
        """Where 32 aligned bits of `register` equal the token, write the lane's word: uint32[32]. With
        `halves`, also where 16 bits equal a half of the token, write that half of the word."""
        ...

    def require_written(self, registers: RegisterList) -> None:
        """Raise a fault, or report to the checker, if one of them was never written. Engines that do not
        track this do nothing."""
        ...

    def mark_in_flight(self, registers: RegisterList, owner: object, ins: Instruction) -> None:
        """Mark the registers as in flight for `owner`, which `ins` issued."""
        ...

    def mark_landed(self, owner: object) -> None:
        """The warp has waited for `owner`: its registers, and copies of them, may be used."""
        ...


class ShadowedRegisters(Protocol):
    """The shadows of one warp's registers (`shadow_cells`), where an engine has them."""

    def moved(self, operand: object) -> npt.NDArray[np.complex128]:
        """A copy of a register's cells, [32, 8]."""
        ...

    def put_f32(self, register: Register, words: Words, values: npt.NDArray[np.float64]) -> None:
        """Write the shadows of an f32 in the lanes in which the register holds these words."""
        ...


@dataclass(slots=True)
class Warp:
    """A warp's place in its CTA. `exists` marks the lanes that are threads of the block and have not exited;
    the engine clears a lane in place when it exits. `registers` belongs to the engine. `rank` is its CTA's
    rank in the cluster, `number` the warp's own number in the cluster: its index if the CTA is alone."""

    index: int
    exists: Lanes
    registers: RegisterAccess | None = None
    shadows: ShadowedRegisters | None = None
    rank: int = 0
    number: int = -1

    def __post_init__(self) -> None:
        if self.number < 0:
            self.number = self.index


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
    """One warp as an engine runs it. A diverged warp has several groups of lanes, each at its own pc."""

    warp: Warp

    def run_turn(self, quantum: int) -> WarpState:
        """Execute about `quantum` instructions at most; stop early when no group can continue."""
        ...

    def blocked(self) -> tuple[Blocked, ...]:
        """The waiting groups, if the last `run_turn` returned BLOCKED."""
        ...

    @property
    def executed(self) -> int:
        """The number of warp instructions executed so far."""
        ...

    def executions(self, pc: int) -> int:
        """How often the instruction at `pc`, one of `Launch.tile_steps`, was executed so far."""
        ...

    def position(self) -> Instruction:
        """The instruction that the lowest of its lanes that have not exited executes next, for messages."""
        ...
