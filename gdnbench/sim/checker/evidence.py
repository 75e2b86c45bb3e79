# SPDX-License-Identifier: Apache-2.0
"""Findings as a user sees them: both accesses, where they met, and the synchronisation that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gdnbench.sim.checker.cta_detector import REGISTER
from gdnbench.sim.checker.cta_exit import IN_FLIGHT_AT_END, TRANSACTIONS, UNFINISHED
from gdnbench.sim.checker.earlier_launches import SECTION as GRID_SECTION
from gdnbench.sim.checker.findings import FindingGroup, Side
from gdnbench.sim.checker.grid import LaunchChecker
from gdnbench.sim.checker.happens_before import Cause, Verdict
from gdnbench.sim.checker.named_barriers import BARRIER
from gdnbench.sim.errors import Place
from gdnbench.sim.machine.cta import Launch, coordinates
from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE, Dim3
from gdnbench.sim.machine.footprint import TMEM_COLUMNS
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.machine.shared_memory import rank_of

SECTIONS = {
    Cause.EQUAL_STORES.value: 'PTX ISA, "Limitations on Mixed-size Data-races", "Coherence Order"',
    Cause.CONVERGED.value: 'PTX ISA, "bar.warp.sync", "shfl.sync", "elect.sync"',
    Cause.INIT.value: 'PTX ISA, "membar, fence"',
    Cause.PROXY.value: 'PTX ISA, "Proxies", "Causality Order"',
    Cause.TCGEN05_FENCE.value: "PTX ISA 9.7.16.6.3",
    Cause.NO_WAIT.value: "PTX ISA 9.7.16.6.4.5",
    Cause.LAUNCHES.value: GRID_SECTION,
    IN_FLIGHT_AT_END: 'PTX ISA, "Phase of the mbarrier object"',
    TRANSACTIONS: 'PTX ISA, "Tracking asynchronous operations by the mbarrier object"',
    UNFINISHED: 'PTX ISA, "Phase of the mbarrier object"',
}
"""Where the PTX ISA leaves the order open, by cause."""

# At most this many warps, or pairs of warps, are named; the rest are counted.
_NAMED = 6


@dataclass(frozen=True, slots=True)
class Access:
    """One of the two accesses. `asynchronous`: an operation that continues after its instruction. `kernel` is
    that of an earlier launch, empty for an access of this launch."""

    does: str
    asynchronous: bool
    cta: Dim3
    warp: int
    role: str
    place: Place
    kernel: str = ""

    def __str__(self) -> str:
        late = ", asynchronously," if self.asynchronous else ""
        earlier = f" of the earlier launch of {self.kernel}" if self.kernel else ""
        return f"CTA {self.cta}, warp {self.warp} ({self.role}){earlier}: {self.does}{late} at {self.place}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding: all pairs of accesses with one cause. `first` and `second` are the pair found first.
    `first` is None if one access alone is at fault; both are None if the finding says what was not judged.

    `address` is where they met in `memory` (shared, global; tmem: lane << 16 | column; register: its index;
    barrier: its number), `where` the same in words. `missing` is the synchronisation that would have ordered
    them, `section` the part of the PTX ISA that leaves open whether they are ordered. `count` pairs of
    executions come from `places` pairs of instructions, in `ctas` CTAs, by the warps in `warps`.
    """

    verdict: Verdict
    cause: str
    kernel: str
    missing: str
    section: str | None = None
    memory: str = ""
    address: int = 0
    size: int = 0  # bytes of shared memory from `address` on where the first pair met, 0 if unknown
    where: str = ""
    first: Access | None = None
    second: Access | None = None
    count: int = 1
    places: int = 1
    ctas: int = 1
    warps: tuple[tuple[int, int], ...] = ()

    @property
    def message(self) -> str:
        """The finding in one line, without the accesses."""
        if self.second is None:
            return self.missing
        section = (
            f" ({self.section})" if self.section is not None and self.section not in self.missing else ""
        )
        return f"{self.where}, without {self.missing}{section}"

    def lines(self) -> list[str]:
        """The accesses, one a line, and how many pairs like this one there are."""
        if self.second is None:
            return []
        lines = [] if self.first is None else [f"first: {self.first}"]
        lines.append(f"{'access' if self.first is None else 'second'}: {self.second}")
        if self.count > 1:
            places = f" of {self.places} pairs of instructions" if self.places > 1 else ""
            lines.append(
                f"{self.count} such {'accesses' if self.first is None else 'pairs'}{places} in"
                f" {self.ctas} CTA{'s' if self.ctas > 1 else ''}, by {self._by()}"
            )
        return lines

    @property
    def summary(self) -> str:
        """The finding in one line that is the same for every launch in which it is found."""
        sides = [_short(side.place) for side in (self.first, self.second) if side is not None]
        if self.second is None:
            return f"{self.kernel}: {self.missing}"
        return f"{self.cause}: {', then '.join(sides)}, without {self.missing}"

    def _by(self) -> str:
        named = [f"warp {a}" if self.first is None else f"warps {a} and {b}" for a, b in self.warps]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return ", ".join(named[:_NAMED]) + more

    def as_json(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {**asdict(self), "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """The inverse of `as_json`."""
        given = {
            **data,
            "verdict": Verdict(data["verdict"]),
            "first": _access(data["first"]),
            "second": _access(data["second"]),
            "warps": tuple((first, second) for first, second in data["warps"]),
        }
        return cls(**given)


def _access(data: Mapping[str, Any] | None) -> Access | None:
    if data is None:
        return None
    return Access(**{**data, "cta": tuple(data["cta"]), "place": Place(**data["place"])})


def _short(place: Place) -> str:
    opcode = place.text.split(maxsplit=2)
    named = opcode[1] if opcode[0].startswith("@") and len(opcode) > 1 else opcode[0]
    source = f"PTX line {place.line}" if place.file is None else f"{place.file}:{place.file_line}"
    return f"{named.rstrip(';')} at {source}"


def collect_evidence(checker: LaunchChecker, launch: Launch) -> tuple[Evidence, ...]:
    """The findings of a launch that has ended or failed, errors first."""
    return tuple(_to_evidence(found, checker, launch) for found in checker.found())


def _to_evidence(found: FindingGroup, checker: LaunchChecker, launch: Launch) -> Evidence:
    def access(side: Side) -> Access:
        place = replace(side.place, text=" ".join(side.place.text.split()))
        what = side.does, side.asynchronous
        if side.cta >= 0:
            role = checker.role(side.cta, side.warp)
            return Access(*what, launch.ctaid(side.cta), side.warp, role, place)
        assert checker.earlier is not None
        earlier, cta = checker.earlier.launch_of(side.cta)
        role = earlier.roles[cta][side.warp]
        return Access(*what, coordinates(cta, earlier.grid), side.warp, role, place, earlier.kernel)

    cause = found.cause.value if isinstance(found.cause, Cause) else found.cause
    made = Evidence(
        found.verdict,
        cause,
        launch.kernel.name,
        found.missing,
        SECTIONS.get(cause) if found.verdict is Verdict.REVIEW else None,
        found.memory,
        first=None if found.first is None else access(found.first),
        second=access(found.second),
        count=found.count,
        places=len(found.places),
        ctas=len(found.ctas),
        warps=tuple(sorted(found.warps)),
    )
    if found.memory == "tmem":
        lane, column = divmod(found.cell, TMEM_COLUMNS)
        where = f"tensor memory at lane {lane}, column {column}"
        return replace(made, address=lane << 16 | column, where=where)
    if found.memory == REGISTER:
        return replace(made, address=found.cell, where=f"register {launch.kernel.registers[found.cell].name}")
    if found.memory == BARRIER:
        return replace(made, address=found.cell, where=f"barrier {found.cell}")
    rank, cell = rank_of(found.cell) if found.memory == "shared" else 0, found.cell
    cell -= rank * CLUSTER_STRIDE
    where = f"{found.memory} memory at {_at(found.memory, cell, launch.memory)}"
    if found.size > 1:
        where += f"..{cell + found.size - 1:#x}"
    if rank:
        where += f" of the CTA of rank {rank}"
    return replace(made, address=found.cell, size=found.size, where=where)


def _at(memory: str, address: int, reachable: GlobalMemory) -> str:
    """An address; in global memory as an offset into its allocation."""
    for item in reachable.allocations if memory == "global" else ():
        if item.base <= address < item.end:
            return f"{item.name} + {address - item.base:#x}"
    return f"{address:#x}"
