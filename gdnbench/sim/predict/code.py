"""The machine code of a kernel by regions of its PTX, and what an instruction of it keeps busy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gdnbench.sim.predict.machine_code import Machined, machine_code
from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.ptx.flow import targets_of
from gdnbench.sim.ptx.forms import Flow, Sync
from gdnbench.sim.ptx.ir import Kernel, Module


class Pipe(StrEnum):
    """A unit of a sub-partition that takes one instruction at a time."""

    ISSUE = "instruction issue"
    FMA = "fp32"
    ALU = "integer"
    SPECIAL = "special functions"
    TENSOR = "tensor core"


@dataclass(frozen=True, slots=True)
class Cost:
    """A machine instruction: it keeps `pipe` busy for `busy` cycles, and what it says to a scoreboard comes
    `latency` cycles after its issue. `memory`: an access of the trace belongs to it, if there is one."""

    code: Machined
    pipe: Pipe
    busy: float
    latency: float
    memory: bool
    boards: tuple[int, ...]


MEMORY = ("LDG", "LDS", "LDSM", "STG", "STS", "STSM", "LD", "ST", "ATOM", "ATOMG", "ATOMS", "RED", "REDG")
NEAR = 32
"""How many instructions before its place in the PTX a load of the machine code is looked for."""
_LOCAL = ("LDL", "STL")
_FMA = ("FFMA", "FMUL", "FADD", "IMAD", "FFMA2", "FMUL2", "FADD2", "HFMA2", "HADD2", "HMUL2")
_SPECIAL = ("MUFU", "F2I", "I2F", "FRND", "F2F", "POPC", "FLO", "BREV")
_CONVERT = ("F2FP", "I2FP", "F2IP", "I2IP")
_NONE = ("NOP", "BRA", "EXIT", "BSSY", "BSYNC", "WARPSYNC", "CALL", "RET", "BAR", "SYNCS", "DEPBAR", "FENCE")
_UNIFORM = ("ULDC", "S2R", "S2UR", "LDC", "LDCU", "R2UR", "CS2R", "UMOV")


def cost_of(code: Machined, machine: Machine) -> Cost:
    """What `code` costs on `machine`."""
    name, _, rest = code.opcode.partition(".")
    boards = tuple(board for board in range(6) if code.waits >> board & 1)
    pipe, busy, latency = Pipe.ALU, machine.integer_cycles.value, machine.variable_latency.value
    memory = name in MEMORY
    if memory or name in _LOCAL or name in _NONE:
        pipe, busy = Pipe.ISSUE, 0.0
    elif name in ("HMMA", "IMMA", "QMMA", "DMMA"):
        pipe, busy, latency = Pipe.TENSOR, machine.mma_cycles.value, machine.mma_latency.value
    elif name in _SPECIAL:
        pipe, busy, latency = Pipe.SPECIAL, machine.special_cycles.value, machine.special_latency.value
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
    return Cost(code, pipe, busy, latency, memory, boards)


def _is_memory(code: Machined) -> bool:
    return code.opcode.partition(".")[0] in MEMORY


def _at_accesses(kernel: Kernel, codes: Sequence[Machined]) -> Iterator[Machined]:
    """The machine code, in which each access has the pc of an access of the PTX. ptxas says of some loads
    that they are for the conversion or move that follows the load."""
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
    """PTX instructions [start, stop), and the machine instructions for them in their order, some of which are
    for `accesses` in the PTX."""

    start: int
    stop: int
    costs: tuple[Cost, ...]
    accesses: frozenset[int]


class Code:
    """The regions of a kernel. A region ends at a branch, at a label, and at an instruction that synchronises
    or that the machine executes; ptxas moves little over such a place."""

    def __init__(self, module: Module, entry: str, machine: Machine) -> None:
        self.kernel = module.kernels[entry]
        arch = module.target
        self._by_pc: dict[int, list[tuple[int, Cost]]] = {}
        for place, code in enumerate(_at_accesses(self.kernel, machine_code(module, self.kernel, arch))):
            self._by_pc.setdefault(code.pc, []).append((place, cost_of(code, machine)))
        self._targets = {target.pc for ins in self.kernel.instructions for target in targets_of(ins)}
        self._regions: dict[int, Region] = {}

    def region(self, pc: int) -> Region:
        """The region from `pc` on."""
        found = self._regions.get(pc)
        if found is None:
            stop = self._stop(pc)
            costs = self._between(pc, stop)
            accesses = frozenset(cost.code.pc for cost in costs if cost.memory)
            found = self._regions[pc] = Region(pc, stop, costs, accesses)
        return found

    def _stop(self, pc: int) -> int:
        instructions = self.kernel.instructions
        stop = pc
        while stop < len(instructions):
            ins = instructions[stop]
            if stop > pc and (stop in self._targets or ins.form.by_machine):
                break
            stop += 1
            if (
                ins.form.flow is not Flow.NEXT
                or ins.form.by_machine
                or ins.form.sync is not Sync.NONE
                or ins.form.atomic
            ):
                break
        return stop

    def _between(self, start: int, stop: int) -> tuple[Cost, ...]:
        placed = sorted(
            (one for pc in range(start, stop) for one in self._by_pc.get(pc, ())), key=lambda one: one[0]
        )
        return tuple(cost for _, cost in placed)
