# SPDX-License-Identifier: Apache-2.0
"""The machine code of a kernel by regions of its PTX, with the pipe, cycles and latency of each instruction.

A *region* is PTX without branches, barriers and instructions of the machine inside: a warp that enters it
executes all of it. ptxas moves instructions within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

from gdnbench.sim.predict.machine_code import MachineInstruction, arch_of, machine_code
from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.ptx.flow import targets_of
from gdnbench.sim.ptx.forms import Flow, Sync
from gdnbench.sim.ptx.ir import Instruction, Kernel, Module


class Pipe(StrEnum):
    """A unit of a sub-partition that takes one instruction at a time."""

    ISSUE = "instruction issue"
    FMA = "fp32"
    ALU = "integer"
    SPECIAL = "special functions"
    TENSOR = "tensor core"


class Cost(NamedTuple):
    """A machine instruction: it keeps `pipe` busy for `busy` cycles, and frees its scoreboard `latency`
    cycles after its issue. `memory`: it is a load, store or atomic, to which an access of the trace may
    belong. `boards`: the scoreboards that it waits for."""

    code: MachineInstruction
    pipe: Pipe
    busy: float
    latency: float
    memory: bool
    boards: tuple[int, ...]


MEMORY = ("LDG", "LDS", "LDSM", "STG", "STS", "STSM", "LD", "ST", "ATOM", "ATOMG", "ATOMS", "RED", "REDG")
SCOREBOARDS = 6
"""How many a warp has, on Volta and later."""
NEAR = 32
"""How many instructions before its place in the PTX a load of the machine code is looked for."""
_LOCAL = ("LDL", "STL")
_FMA = ("FFMA", "FMUL", "FADD", "IMAD", "FFMA2", "FMUL2", "FADD2", "HFMA2", "HADD2", "HMUL2")
_SPECIAL = ("MUFU", "F2I", "I2F", "FRND", "F2F", "POPC", "FLO", "BREV")
_CONVERT = ("F2FP", "I2FP", "F2IP", "I2IP")
_NONE = ("NOP", "BRA", "EXIT", "BSSY", "BSYNC", "WARPSYNC", "CALL", "RET", "BAR", "SYNCS", "DEPBAR", "FENCE")
_UNIFORM = ("ULDC", "S2R", "S2UR", "LDC", "LDCU", "R2UR", "CS2R", "UMOV")


_Kind = tuple[Pipe, float, float, bool]
_M = TypeVar("_M", bound=MachineInstruction)


def _kind(opcode: str, machine: Machine) -> _Kind:
    """The pipe, for how many cycles it is busy, the latency, and whether it is an access."""
    name, _, rest = opcode.partition(".")
    pipe, busy, latency = Pipe.ALU, machine.integer_cycles.value, machine.variable_latency.value
    memory = name in MEMORY
    if memory or name in _LOCAL or name in _NONE:
        pipe, busy = Pipe.ISSUE, 0.0
    elif name in ("HMMA", "IMMA", "QMMA", "DMMA"):
        pipe, busy, latency = Pipe.TENSOR, machine.mma_cycles.value, machine.mma_latency.value
    elif name in _SPECIAL:
        exponential = name == "MUFU" and rest.startswith("EX2")
        cycles = machine.exponential_cycles if exponential else machine.special_cycles
        pipe, busy, latency = Pipe.SPECIAL, cycles.value, machine.special_latency.value
    elif name in _FMA:
        pipe, busy = Pipe.FMA, 1.0
        if name == "IMAD" and rest.startswith(("WIDE", "HI")):
            busy = 2.0
    elif name in _UNIFORM or name.startswith("U"):
        pipe, busy = Pipe.ISSUE, 0.0
    elif name in _CONVERT:
        busy = machine.convert_cycles.value
    elif name == "SHFL":
        pipe, busy = Pipe.ISSUE, 0.0
    return pipe, busy, latency, memory


def _is_memory(code: MachineInstruction) -> bool:
    return code.opcode.partition(".")[0] in MEMORY


def at_accesses(kernel: Kernel, codes: Sequence[_M]) -> Iterator[_M]:
    """The machine code, in which each access has the pc of an access of the PTX. For some loads ptxas names
    the line of the conversion or move that follows the load."""
    accesses = {ins.pc for ins in kernel.instructions if ins.form.in_engine}
    told = {code.pc for code in codes if _is_memory(code)}
    for code in codes:
        if _is_memory(code) and code.pc not in accesses:
            free = (pc for pc in range(code.pc - 1, code.pc - NEAR, -1) if pc in accesses and pc not in told)
            pc = next(free, None)
            if pc is not None:
                told.add(pc)
                yield replace(code, pc=pc)
                continue
        yield code


@dataclass(frozen=True, slots=True)
class Region:
    """PTX instructions [start, stop), and the costs of their machine instructions in order. `accesses`: the
    PTX instructions among them that are a load, store or atomic and have a machine instruction."""

    start: int
    stop: int
    costs: tuple[Cost, ...]
    accesses: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Part:
    """A region without costs: its machine instructions by their places in the code."""

    start: int
    stop: int
    places: tuple[int, ...]
    accesses: frozenset[int]


class Regions:
    """The regions of a kernel, which are the same whatever the parameters of the machine. A region ends at a
    branch, at a label, and at an instruction that synchronises or that the machine executes; ptxas moves
    little over such a place."""

    def __init__(self, module: Module, entry: str, machine: Machine) -> None:
        self.kernel = module.kernels[entry]
        arch = arch_of(module, machine.name)
        self.codes = tuple(at_accesses(self.kernel, machine_code(module, self.kernel, arch)))
        self.boards = tuple(
            tuple(board for board in range(SCOREBOARDS) if code.waits >> board & 1) for code in self.codes
        )
        self._opcodes = {code.opcode for code in self.codes}
        self._on: dict[tuple[_Kind, ...], RegionCosts] = {}
        self._by_pc: dict[int, list[int]] = {}
        for place, code in enumerate(self.codes):
            self._by_pc.setdefault(code.pc, []).append(place)
        targets = {target.pc for ins in self.kernel.instructions for target in targets_of(ins)}
        self._stops = _stops(self.kernel.instructions, targets)
        self._parts: dict[int, _Part] = {}

    def on(self, machine: Machine) -> RegionCosts:
        """The regions with their costs on a machine; the same object where all costs are equal."""
        kinds = {opcode: _kind(opcode, machine) for opcode in self._opcodes}
        return self._on.setdefault(tuple(kinds.values()), RegionCosts(self, kinds))

    def part(self, pc: int) -> _Part:
        """The region from `pc` on."""
        found = self._parts.get(pc)
        if found is None:
            stop = self._stops[pc]
            places = sorted(place for one in range(pc, stop) for place in self._by_pc.get(one, ()))
            codes = (self.codes[place] for place in places)
            accesses = frozenset(code.pc for code in codes if _is_memory(code))
            found = self._parts[pc] = _Part(pc, stop, tuple(places), accesses)
        return found


def _stops(instructions: Sequence[Instruction], targets: Set[int]) -> list[int]:
    """By pc, where a region that begins there stops."""
    found = [0] * len(instructions)
    for pc in range(len(instructions) - 1, -1, -1):
        form, after = instructions[pc].form, pc + 1
        ends = form.flow is not Flow.NEXT or form.by_machine or form.sync is not Sync.NONE or form.atomic
        if ends or after == len(instructions) or after in targets or instructions[after].form.by_machine:
            found[pc] = after
        else:
            found[pc] = found[after]
    return found


class RegionCosts:
    """The regions of a kernel with the costs that their instructions have, by opcode."""

    def __init__(self, regions: Regions, kinds: Mapping[str, _Kind]) -> None:
        self.kernel = regions.kernel
        self._all = regions
        self._kinds = kinds
        self._costs: list[Cost | None] = [None] * len(regions.codes)
        self._regions: dict[int, Region] = {}

    def region(self, pc: int) -> Region:
        """The region from `pc` on."""
        found = self._regions.get(pc)
        if found is None:
            part = self._all.part(pc)
            costs = tuple([self._costs[place] or self._cost(place) for place in part.places])
            found = self._regions[pc] = Region(part.start, part.stop, costs, part.accesses)
        return found

    def _cost(self, place: int) -> Cost:
        code = self._all.codes[place]
        found = self._costs[place] = Cost(code, *self._kinds[code.opcode], self._all.boards[place])
        return found
