# SPDX-License-Identifier: Apache-2.0
"""Says of a checked launch when no CTA of a persistent kernel took a second tile.

A persistent kernel has one CTA for each multiprocessor, and each CTA takes one tile of the work after
another. If there are as many multiprocessors as tiles, each CTA takes one tile, no buffer is used for a
second one, and a missing wait before that use goes unnoticed. The kernel passes although it is wrong for
larger inputs.

A kernel counts as persistent if the program asked for the number of multiprocessors, the CTAs fit the device,
and a loop of the kernel advances by the number of CTAs. That is, the loop

- adds `%nctaid`, or a value computed from it, to a number that it carries from one iteration to the next;
- adds a constant or a kernel parameter that equals the number of CTAs to such a number, if that is computed
  from `%ctaid`; or
- multiplies such a number by `%nctaid`.

A warp executes such an instruction once for each tile: if no warp has executed one twice, no CTA took a
second tile. The additions of a loop that the compiler has unrolled count together.

A kernel with cluster launch control is persistent too: each cluster takes a first tile, and one for each
cluster that it cancels. Whether the program asked for the number of multiprocessors does not matter then.

There is no note for a kernel that takes its tiles from a counter in memory, nor for one in which a value that
is computed from the number of CTAs passes through memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.machine.launch_grants import uses_launch_control
from gdnbench.sim.ptx.flow import registers_of, successors
from gdnbench.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Register,
    Special,
    Symbol,
    TensorAddress,
)
from gdnbench.sim.ptx.literals import width_of

RING_REUSE = "ring reuse"
"""The kind of the finding."""

_GRID = ("nctaid.", "nclusterid.")
_CTA = ("ctaid.", "clusterid.")
_SUMS = ("add", "mad", "sub")
_PRODUCTS = ("mul", "mad")

Steps = tuple[tuple[int, ...], ...]
"""Groups of pcs: the instructions that advance one number by the grid."""


def tile_steps(kernel: Kernel, grid: Dim3 = (1, 1, 1), params: Sequence[bytes] = ()) -> Steps:
    """The instructions by which loops of the kernel advance from tile to tile, in a launch of this grid with
    these parameters. Additions to the same number are one group."""
    flow = _DataFlow.of(kernel)
    ctas = math.prod(grid)
    by_grid = flow.without_cycles(flow.reading_special(_GRID))
    extents = {extent for extent in (*grid, ctas) if extent > 1}
    same = flow.without_cycles(_equal_parameters(kernel, extents, params))
    steps = by_grid | same
    groups: list[tuple[set[int], list[int]]] = []
    multiples: list[tuple[int, ...]] = []
    for ins in kernel.instructions:
        if ins.op in _PRODUCTS and _multiplies(ins, by_grid, flow) and _repeats(kernel, ins.pc):
            multiples.append((ins.pc,))
        if ins.op not in _SUMS:
            continue
        read = _read(ins)
        equal = ctas > 1 and any(isinstance(one, Immediate) and one.bits == ctas for one in ins.sources)
        if not equal and steps.isdisjoint(read):
            continue
        for total in _written(ins):
            after = flow.reached([total])
            carried = [register for register in read if register in after]
            if not carried or not _repeats(kernel, ins.pc):
                continue
            if not by_grid.intersection(read).difference(after) and not (
                (equal or same.intersection(read).difference(after)) and flow.of_cta().intersection(carried)
            ):
                continue
            group = next((pcs for totals, pcs in groups if flow.one_cycle(totals, total)), None)
            if group is None:
                groups.append(({total}, [ins.pc]))
            else:
                group.append(ins.pc)
    sums = [tuple(pcs + flow.further_sums(kernel, totals, steps, pcs)) for totals, pcs in groups]
    return (*sums, *multiples)


def _multiplies(ins: Instruction, by_grid: set[int], flow: _DataFlow) -> bool:
    """Whether a product is of the grid and a number that a loop carries: tile = first + turn x CTAs."""
    one, other = ([register.index for register in registers_of(source)] for source in ins.sources[:2])
    return any(
        by_grid.issuperset(grid) and grid and any(map(flow.in_cycle, turn))
        for grid, turn in ((one, other), (other, one))
    )


@dataclass(slots=True)
class _DataFlow:
    """Which registers are computed from which, by index, without what goes through memory and predicates."""

    uses: dict[int, set[int]] = field(default_factory=dict)
    specials: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, kernel: Kernel) -> _DataFlow:
        flow = cls()
        for ins in kernel.instructions:
            if any(isinstance(source, Address | TensorAddress) for source in ins.sources):
                continue
            written = _written(ins)
            for register in _read(ins):
                flow.uses.setdefault(register, set()).update(written)
            for source in ins.sources:
                if isinstance(source, Special):
                    flow.specials += [(source.name, register) for register in written]
        return flow

    def reading_special(self, names: tuple[str, ...]) -> set[int]:
        """Registers that are written from these special registers."""
        return {register for name, register in self.specials if name.startswith(names)}

    def of_cta(self) -> set[int]:
        """Registers that are computed from the CTA's own number."""
        return self.reached(self.reading_special(_CTA))

    def reached(self, start: Iterable[int]) -> set[int]:
        """`start` and the registers that are computed from it."""
        found = set(start)
        left = list(found)
        while left:
            fresh = self.uses.get(left.pop(), set()) - found
            found |= fresh
            left += fresh
        return found

    def in_cycle(self, register: int) -> bool:
        """Whether the register's value is computed from an earlier value of it: a loop carries it."""
        return register in self.reached(self.uses.get(register, ()))

    def without_cycles(self, start: Iterable[int]) -> set[int]:
        """`start` and what is computed from it, without what a loop carries and what depends on that."""
        found: set[int] = set()
        left = list(start)
        while left:
            register = left.pop()
            if register not in found and not self.in_cycle(register):
                found.add(register)
                left += self.uses.get(register, ())
        return found

    def one_cycle(self, totals: set[int], total: int) -> bool:
        """Whether the sums `totals` and `total` are computed from each other."""
        first = next(iter(totals))
        return total in self.reached([first]) and first in self.reached([total])

    def further_sums(
        self, kernel: Kernel, totals: set[int], steps: set[int], pcs: Sequence[int]
    ) -> list[int]:
        """Additions of multiples of the grid to a number of the cycle that lead out of it, as compilers write
        them in a loop that they unroll: each is a tile too."""
        inside = {register for register in self.reached(totals) if totals <= self.reached([register])}
        return [
            ins.pc
            for ins in kernel.instructions
            if ins.op in _SUMS and ins.pc not in pcs and steps.intersection(_read(ins))
            if inside.intersection(_read(ins)) and _repeats(kernel, ins.pc)
        ]


def _read(ins: Instruction) -> list[int]:
    return [one.index for source in ins.sources for one in registers_of(source) if one.bits > 1]


def _written(ins: Instruction) -> list[int]:
    return [one.index for one in ins.written() if isinstance(one, Register) and one.bits > 1]


def _equal_parameters(kernel: Kernel, values: set[int], params: Sequence[bytes]) -> Iterator[int]:
    """Registers into which a kernel parameter is loaded that has one of these values."""
    given = {variable.name: data for variable, data in zip(kernel.params, params, strict=False)}
    for ins in kernel.instructions:
        if ins.op != "ld" or not isinstance(ins.sources[0], Address):
            continue
        address = ins.sources[0]
        if not isinstance(address.base, Symbol) or address.base.variable.name not in given:
            continue
        data, size = given[address.base.variable.name], width_of(ins.types[0]) // 8
        start = address.base.offset + address.offset
        for number, register in enumerate(ins.written()):
            at = start + number * size
            if isinstance(register, Register) and int.from_bytes(data[at : at + size], "little") in values:
                yield register.index


def _repeats(kernel: Kernel, pc: int) -> bool:
    """Whether control can come back to an instruction."""
    found: set[int] = set()
    left = [pc]
    while left:
        fresh = set(successors(kernel, kernel.instructions[left.pop()])) - found
        found |= fresh
        left += fresh
    return pc in found


def reuse_note(
    kernel: Kernel,
    steps: Steps,
    counters: Counters,
    ctas: int,
    multiprocessors: int,
    fitting: int,
    cluster: int = 1,
) -> str | None:
    """The note for a launch of `ctas` CTAs in clusters of `cluster`, whose `steps` were counted, on a device
    of `multiprocessors` that run `fitting` CTAs each; None if buffers were used again, if it is not known, or
    if there is one cluster of several CTAs: fewer SMs cannot run it."""
    if uses_launch_control(kernel):
        return _grants_note(counters, ctas, fitting, cluster)
    if not steps or not ctas <= multiprocessors * fitting or ctas == cluster > 1:
        return None
    per_multiprocessor = -(-ctas // multiprocessors)
    fewest = -(-cluster // per_multiprocessor)  # SMs that can run a cluster
    busy = counters.busy_ctas
    if counters.most_tiles <= 1:
        if not busy:
            return None
        if busy == 1:
            return (
                "no CTA took a second tile, as there was one: ring reuse was not exercised; a larger input"
                " would do it"
            )
        fewer = max(fewest, busy // _tiles_to_reuse(counters) // per_multiprocessor)
        return (
            f"no CTA took a second tile, and {busy} of {ctas} took one: ring reuse was not exercised; fewer"
            f" SMs would do it: --sms {fewer}"
        )
    invalidates = any(ins.op == "mbarrier.inval" for ins in kernel.instructions)  # phases are not counted
    if counters.most_phases != 1 or ctas == 1 or invalidates:
        return None
    fewer = max(fewest, ctas // _tiles_to_reuse(counters) // per_multiprocessor)
    return (
        f"no pipeline stage was used a second time by any of {ctas} CTAs: ring reuse was not exercised; fewer"
        f" SMs would do it: --sms {fewer}"
    )


def _grants_note(counters: Counters, ctas: int, fitting: int, cluster: int) -> str | None:
    """The same for a kernel with cluster launch control, which counts tiles without `steps`. The device holds
    as many clusters as fit at once, and those that do not are cancelled by others."""
    if counters.most_tiles > 1:
        return None
    if ctas == cluster:
        return (
            "no CTA took a second tile, as there was one cluster: ring reuse was not exercised; a larger"
            " input would do it"
        )
    fewer = max(ctas // cluster // 2 * cluster // fitting, -(-cluster // fitting))
    if fewer * fitting // cluster >= ctas // cluster:
        return (
            f"no CTA took a second tile, as one SM holds all {ctas}: ring reuse was not exercised; a larger"
            " input would do it"
        )
    return (
        f"no CTA took a second tile, and {counters.busy_ctas} of {ctas} took one: ring reuse was not"
        f" exercised; fewer SMs would do it: --sms {fewer}"
    )


def _tiles_to_reuse(counters: Counters) -> int:
    """Tiles that a CTA must take so that it uses a buffer again: a ring with stages that no tile has used yet
    takes more than two to come round."""
    if counters.most_phases != 1:
        return 2
    return counters.mbarriers // counters.mbarriers_used + 1
