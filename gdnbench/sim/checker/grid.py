"""Checks a launch: each of its CTAs, and what they do to each other's global memory."""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.checker.between import Between
from gdnbench.sim.checker.cta_detector import Follower
from gdnbench.sim.checker.findings import Findings, Found
from gdnbench.sim.checker.launch_memory import Part
from gdnbench.sim.checker.load_store import Forms
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.grid import communicates
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.profile.roles import issued_as, role
from gdnbench.sim.ptx.ir import Kernel


def _roles(follower: Follower) -> tuple[str, ...]:
    """By warp; what names a role touches memory, so that the events have it."""
    issued = {(event.warp, event.ins.pc): event.ins for event in follower.events.all if event is not None}
    ops: list[dict[str, int]] = [{} for _ in range(follower.count)]
    for (warp, _), ins in issued.items():
        ops[warp][issued_as(ins)] = 1
    return tuple(map(role, ops))


@dataclass(frozen=True, slots=True)
class _Part:
    """What the CTAs of one process left: findings, roles by CTA and warp, what they did to global memory."""

    findings: Findings
    roles: dict[int, tuple[str, ...]]
    memory: Part | None


class LaunchChecker:
    """One launch's; `begin` is what a `Launch` makes the checker of each CTA with. Implements
    `machine.checking.Parts`: its CTAs may run over several processes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._forms = Forms(kernel)
        self._talks = communicates(kernel)
        self._running: dict[int, Follower] = {}
        self.reset()

    def reset(self) -> None:
        """See `Parts`."""
        self._findings = Findings(0)
        self._roles: dict[int, tuple[str, ...]] = {}
        self.between: Between | None = None

    def part(self) -> object:
        """See `Parts`."""
        memory = self.between.memory.part() if self.between is not None and not self._running else None
        return _Part(self._all(), self._roles, memory)

    def join(self, part: object) -> None:
        """See `Parts`."""
        assert isinstance(part, _Part)
        self._findings.merge(part.findings)
        self._roles |= part.roles
        if part.memory is not None:
            self._begun(None).join(part.memory)

    def begin(self, cta: Cta) -> Follower:
        """The checker of a CTA."""
        follower = Follower(cta, self._forms, self._begun(cta.memory), self._ended)
        self._running[cta.index] = follower
        return follower

    def _begun(self, reachable: GlobalMemory | None) -> Between:
        if self.between is None:
            self.between = Between(self._forms.sizes["global"], reachable, talk=self._talks)
        return self.between

    def _ended(self, follower: Follower) -> None:
        del self._running[follower.cta.index]
        self._keep(follower)
        assert self.between is not None
        self.between.memory.ended(follower.cta.index)

    def found(self) -> list[Found]:
        """What was found, once the launch has ended or failed: then also of the CTAs that it stopped."""
        return self._all().all()

    def _all(self) -> Findings:
        for follower in self._running.values():
            self._keep(follower)
        self._running.clear()
        if self.between is not None:
            self._findings.merge(self.between.findings)
            self.between.findings = Findings(0)
        return self._findings

    def _keep(self, follower: Follower) -> None:
        self._findings.merge(follower.findings)
        self._roles[follower.cta.index] = _roles(follower)

    def role(self, cta: int, warp: int) -> str:
        """What a warp is for, as far as its CTA got."""
        return self._roles[cta][warp]
