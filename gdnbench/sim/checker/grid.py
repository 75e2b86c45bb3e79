# SPDX-License-Identifier: Apache-2.0
"""The checker of one launch: a race detector for each CTA or cluster, and one between them for global
memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdnbench.sim.checker.cluster_uses import ClusterMember
from gdnbench.sim.checker.cross_cta import CrossCtaDetector
from gdnbench.sim.checker.cta_detector import CtaRaceDetector
from gdnbench.sim.checker.earlier_launches import DependencyUse, EarlierLaunch, EarlierLaunches
from gdnbench.sim.checker.findings import FindingGroup, Findings, Members, Owner
from gdnbench.sim.checker.launch_memory import CtaAccess, ProcessShadow
from gdnbench.sim.checker.load_store import KernelAccesses
from gdnbench.sim.machine.cta import Cta, Launch
from gdnbench.sim.machine.engine_interface import Dim3
from gdnbench.sim.machine.grid import ctas_communicate
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.profile.roles import issued_as, role
from gdnbench.sim.ptx.ir import Kernel


def _roles(detector: CtaRaceDetector) -> tuple[str, ...]:
    """The role of each warp, from the instructions of its events. Events suffice, because every instruction
    that determines a role accesses memory."""
    issued = {(event.warp, event.ins.pc): event.ins for event in detector.events.all if event is not None}
    ops: list[dict[str, int]] = [{} for _ in range(detector.warps)]
    for (warp, _), ins in issued.items():
        ops[warp][issued_as(ins)] = 1
    return tuple(map(role, ops))


@dataclass(frozen=True, slots=True)
class _ProcessResult:
    """The result of the CTAs of one process: findings, roles by CTA and warp, the shadow of global memory."""

    findings: Findings
    roles: dict[int, tuple[str, ...]]
    memory: ProcessShadow | None
    dependency: DependencyUse


class LaunchChecker:
    """The checker of one launch. A `Launch` calls `begin` for each CTA. `earlier` are the launches that may
    still run when it starts. Implements `machine.observer.Parts`: the CTAs may run in several processes,
    whose results `join` merges."""

    def __init__(self, kernel: Kernel, earlier: EarlierLaunches | None = None) -> None:
        self.kernel = kernel
        self.earlier = earlier
        self._forms = KernelAccesses(kernel)
        self._synchronized = ctas_communicate(kernel)
        self._running: dict[int, CtaRaceDetector] = {}  # by the index of their first CTA
        self._launch: Launch | None = None
        self.reset()

    def reset(self) -> None:
        """See `Parts`."""
        self._findings = Findings(Members((0,), 1))
        self._roles: dict[int, tuple[str, ...]] = {}
        self._dependency = DependencyUse()
        self.cross_cta: CrossCtaDetector | None = None

    def part(self) -> object:
        """See `Parts`."""
        memory = (
            self.cross_cta.memory.process_shadow()
            if self.cross_cta is not None and not self._running
            else None
        )
        return _ProcessResult(self._collect(), self._roles, memory, self._dependency)

    def join(self, part: object) -> None:
        """See `Parts`."""
        assert isinstance(part, _ProcessResult)
        self._findings.merge(part.findings)
        self._roles |= part.roles
        self._dependency.join(part.dependency)
        if part.memory is not None:
            self._cross_cta_detector(None).join_process(part.memory)

    def begin(self, cta: Cta) -> CtaRaceDetector | ClusterMember:
        """The race detector of a CTA that begins; for a CTA of a cluster its part of the detector that they
        share."""
        self._launch = cta.launch
        if cta.rank == 0:
            cross_cta = self._cross_cta_detector(cta.memory)
            self._running[cta.index] = CtaRaceDetector(cta, self._forms, cross_cta, self._ended)
        if cta.cluster is None:
            return self._running[cta.index]
        return self._running[cta.cluster.place.ctas[0]].member(cta)

    def _cross_cta_detector(self, reachable: GlobalMemory | None) -> CrossCtaDetector:
        if self.cross_cta is None:
            self.cross_cta = CrossCtaDetector(
                self._forms.cell_bytes["global"], reachable, self.earlier, synchronized=self._synchronized
            )
            self.cross_cta.owner_of = self._owner_of
        return self.cross_cta

    def _owner_of(self, access: CtaAccess) -> Owner:
        """Whose access it is. An access of a cluster has the index of the cluster's first CTA."""
        if access.cta < 0:
            assert self.earlier is not None
            launch, number = self.earlier.launch_of(access.cta)
            owner = launch.owner_of(access._replace(cta=number))
            return Owner(access.cta - (owner.cta - number), owner.warp)
        clusters = None if self._launch is None else self._launch.clusters
        if self._launch is None or clusters is None:
            return Owner(access.cta, access.event.warp)
        return Members(clusters.cluster_of(access.cta).ctas, self._launch.warps).owner(access.event)

    def _ended(self, detector: CtaRaceDetector) -> None:
        del self._running[detector.index]
        self._keep(detector)
        self._dependency.join(detector.dependency.end_cta())
        assert self.cross_cta is not None
        self.cross_cta.memory.end_cta(detector.index)

    def found(self) -> list[FindingGroup]:
        """All findings, errors first. Call it when the launch has ended or failed; findings of the CTAs that
        a failure stopped are included."""
        return self._collect().in_report_order()

    def _collect(self) -> Findings:
        for detector in self._running.values():
            self._keep(detector)
        self._running.clear()
        if self.cross_cta is not None:
            self._findings.merge(self.cross_cta.findings)
            self.cross_cta.findings = Findings(Members((0,), 1))
        return self._findings

    def _keep(self, detector: CtaRaceDetector) -> None:
        self._findings.merge(detector.findings)
        members, roles = detector.findings.members, _roles(detector)
        for rank, cta in enumerate(members.ctas):
            self._roles[cta] = roles[rank * members.warps : (rank + 1) * members.warps]

    def in_front(self, grid: Dim3) -> EarlierLaunches | None:
        """What a dependent launch has to know of this one, which has ended, and of those before it that may
        run on with it."""
        if self.cross_cta is None:
            return None
        use, name = self._dependency, self.kernel.name
        older = () if self.earlier is None or not use.starts_before_wait else self.earlier.launches
        return EarlierLaunches(
            (
                EarlierLaunch(name, grid, self._roles, self._owner_of, early=use.triggers),
                *(replace(one, ends_with_latest=one.ends_with_latest and use.waits) for one in older),
            ),
            self.cross_cta.memory,
            self._forms.cell_bytes["global"],
        )

    def role(self, cta: int, warp: int) -> str:
        """The role of a warp (load, mma, compute, ...), judged by what it had issued when its CTA stopped."""
        return self._roles[cta][warp]
