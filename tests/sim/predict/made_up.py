# SPDX-License-Identifier: Apache-2.0
"""Code that is made up, and its replay on an SM, for expectations that are worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gdnbench.sim.predict.critical_path import CriticalPath
from gdnbench.sim.predict.machine_code import MachineInstruction
from gdnbench.sim.predict.machines import H200, Machine
from gdnbench.sim.predict.regions import Cost, Pipe, Region
from gdnbench.sim.predict.sm import Interval, Sm, sectors_lacking
from gdnbench.sim.predict.trace import CtaTrace, Operation, Step

PLAIN = H200.with_values(cta_start=0, cta_interval=0, integer_cycles=2, phase_latency=40)


def cost(pc: int, **given: Any) -> Cost:
    code = MachineInstruction(
        pc,
        given.get("opcode", "FADD"),
        given.get("stall", 1),
        sum(1 << board for board in given.get("waits", ())),
        given.get("result"),
        None,
    )
    return Cost(
        code,
        given.get("pipe", Pipe.ISSUE),
        given.get("busy", 0.0),
        given.get("latency", 0.0),
        given.get("memory", False),
        tuple(given.get("waits", ())),
    )


class MadeUp:
    """Regions by pc; the opcode of each of their instructions is `op`."""

    def __init__(self, regions: dict[int, tuple[Cost, ...]], op: str) -> None:
        self._regions = regions
        self.kernel = SimpleNamespace(instructions=[SimpleNamespace(op=op)] * 100)

    def region(self, pc: int) -> Region:
        costs = self._regions.get(pc, (cost(pc),))
        return Region(pc, pc + 1, costs, frozenset(each.code.pc for each in costs if each.memory))


def run(
    regions: dict[int, tuple[Cost, ...]],
    warps: list[list[Step]],
    machine: Machine = PLAIN,
    *,
    ctas: int = 1,
    resident: int = 1,
    share: float = 1e9,
    op: str = "ld",
    operations: list[Operation] | None = None,
    arrivals: list[int] | None = None,
    roles: list[str] | None = None,
    path: CriticalPath | None = None,
    timeline: list[Interval] | None = None,
) -> tuple[float, Sm]:
    """The cycle in which the last of equal CTAs of these warps ends."""
    roles = roles or ["compute"] * len(warps)
    trace = CtaTrace(0, warps, roles, operations or [], arrivals or [])
    sm = Sm(machine, MadeUp(regions, op), share, resident, timeline, path)  # type: ignore[arg-type]
    pairs = [(trace, one) for one in sectors_lacking([trace])] * ctas
    return sm.run(iter(pairs)), sm
