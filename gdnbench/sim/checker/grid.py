"""The checker of one launch: a race detector for each CTA, and one between CTAs for global memory."""

from __future__ import annotations

from dataclasses import dataclass

from gdnbench.sim.checker.cross_cta import CrossCtaDetector
from gdnbench.sim.checker.cta_detector import CtaRaceDetector
from gdnbench.sim.checker.findings import FindingGroup, Findings
from gdnbench.sim.checker.launch_memory import ProcessShadow
from gdnbench.sim.checker.load_store import KernelAccesses
from gdnbench.sim.machine.cta import Cta
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


class LaunchChecker:
    """The checker of one launch. A `Launch` calls `begin` for each CTA. Implements `machine.observer.Parts`:
    the CTAs may run in several processes, whose results `join` merges."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._forms = KernelAccesses(kernel)
        self._synchronized = ctas_communicate(kernel)
        self._running: dict[int, CtaRaceDetector] = {}
        self.reset()

    def reset(self) -> None:
        """See `Parts`."""
        self._findings = Findings(0)
        self._roles: dict[int, tuple[str, ...]] = {}
        self.cross_cta: CrossCtaDetector | None = None

    def part(self) -> object:
        """See `Parts`."""
        memory = (
            self.cross_cta.memory.process_shadow()
            if self.cross_cta is not None and not self._running
            else None
        )
        return _ProcessResult(self._collect(), self._roles, memory)

    def join(self, part: object) -> None:
        """See `Parts`."""
        assert isinstance(part, _ProcessResult)
        self._findings.merge(part.findings)
        self._roles |= part.roles
        if part.memory is not None:
            self._cross_cta_detector(None).join_process(part.memory)

    def begin(self, cta: Cta) -> CtaRaceDetector:
        """The race detector of a CTA that begins."""
        detector = CtaRaceDetector(cta, self._forms, self._cross_cta_detector(cta.memory), self._ended)
        self._running[cta.index] = detector
        return detector

    def _cross_cta_detector(self, reachable: GlobalMemory | None) -> CrossCtaDetector:
        if self.cross_cta is None:
            self.cross_cta = CrossCtaDetector(
                self._forms.cell_bytes["global"], reachable, synchronized=self._synchronized
            )
        return self.cross_cta

    def _ended(self, detector: CtaRaceDetector) -> None:
        del self._running[detector.cta.index]
        self._keep(detector)
        assert self.cross_cta is not None
        self.cross_cta.memory.end_cta(detector.cta.index)

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
            self.cross_cta.findings = Findings(0)
        return self._findings

    def _keep(self, detector: CtaRaceDetector) -> None:
        self._findings.merge(detector.findings)
        self._roles[detector.cta.index] = _roles(detector)

    def role(self, cta: int, warp: int) -> str:
        """The role of a warp (load, mma, compute, ...), judged by what it had issued when its CTA stopped."""
        return self._roles[cta][warp]
