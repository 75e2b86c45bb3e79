"""Says of a checked launch when it could not show what goes wrong as a pipeline's stages are used again.

A persistent kernel takes one work tile after another. On a GPU with more multiprocessors than there are tiles
each of its CTAs takes one, and a missing wait before a stage's second use never matters. So it is in a
simulated launch, which then passes a kernel that is wrong for larger inputs.

The rule is meant to say nothing that is not so. A stage that is used twice completes two phases of its
mbarriers: if no mbarrier of the launch did, no stage was used twice. Fewer multiprocessors change that only
if there are fewer CTAs then and each takes more tiles. So the program must have asked for the number of
multiprocessors, the CTAs must fit the device, and the kernel must advance by its grid: a loop adds to a
number what is derived from the number of CTAs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.ptx.flow import registers_of, successors
from gdnbench.sim.ptx.ir import Address, Kernel, Register, Special, TensorAddress

RING_REUSE = "ring reuse"
"""The kind of the finding."""

_GRID = ("nctaid.", "nclusterid.")
_SUMS = ("add", "mad", "sub")


def advances_by_grid(kernel: Kernel) -> bool:
    """Whether a loop of the kernel adds what is derived from the number of CTAs, `%nctaid`, to a number that
    it carries from one iteration to the next. Values that pass through memory are not followed."""
    uses: dict[int, set[int]] = {}
    sums: list[tuple[int, int, list[int]]] = []
    start: set[int] = set()
    for ins in kernel.instructions:
        if any(isinstance(source, Address | TensorAddress) for source in ins.sources):
            continue
        written = [register.index for register in ins.written() if isinstance(register, Register)]
        read = [register.index for source in ins.sources for register in registers_of(source)]
        for register in read:
            uses.setdefault(register, set()).update(written)
        if any(isinstance(source, Special) and source.name.startswith(_GRID) for source in ins.sources):
            start.update(written)
        if ins.op in _SUMS:
            sums += [(ins.pc, register, read) for register in written]
    of_grid = _reached(start, uses)
    return any(
        carried in _reached([total], uses)
        for pc, total, read in sums
        for step in of_grid.intersection(read)
        for carried in read
        if carried != step and _repeats(kernel, pc)
    )


def _repeats(kernel: Kernel, pc: int) -> bool:
    """Whether control can come back to an instruction."""
    found: set[int] = set()
    left = [pc]
    while left:
        fresh = set(successors(kernel, kernel.instructions[left.pop()])) - found
        found |= fresh
        left += fresh
    return pc in found


def _reached(start: Iterable[int], uses: Mapping[int, set[int]]) -> set[int]:
    """`start` and the registers that are computed from it."""
    found, left = set(start), list(start)
    while left:
        fresh = uses.get(left.pop(), set()) - found
        found |= fresh
        left += fresh
    return found


def without_reuse(kernel: Kernel, counters: Counters, ctas: int, resident: int) -> str | None:
    """The note for a launch of `ctas` CTAs in which no pipeline stage was used a second time, on a device
    that runs `resident` CTAs at once; None if there was one, or if it is not known."""
    if counters.most_phases != 1 or not 1 < ctas <= resident or not advances_by_grid(kernel):
        return None
    if any(ins.op == "mbarrier.inval" for ins in kernel.instructions):  # their phases are not counted
        return None
    # A ring with stages that no tile has used yet takes more tiles than one to come round.
    tiles = counters.mbarriers // counters.mbarriers_used + 1
    fewer = max(1, ctas // tiles)
    return (
        f"no pipeline stage was used a second time by any of {ctas} CTAs: ring reuse was not exercised; "
        f"fewer SMs would: --sms {fewer}"
    )
