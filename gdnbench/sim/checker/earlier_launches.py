# SPDX-License-Identifier: Apache-2.0
"""The launches that may still run when a dependent launch starts, and what orders accesses after theirs.

CUDA calls the launch in front the primary kernel and the dependent one the secondary kernel ("Programmatic
Dependent Launch"); PTX calls the one in front a prerequisite grid. A launch with programmatic stream
serialisation may start before the launch in front of it in its stream has ended: as soon as each CTA of that
launch has executed `griddepcontrol.launch_dependents` or exited. Only `griddepcontrol.wait` waits for that
launch's end, and makes its writes visible, to the thread that executes it (PTX ISA, "griddepcontrol");
barriers hand the order on to other threads. Here the launches run one after the other. The checker keeps the
shadow of the earlier launch, and checks an access that no wait is ordered before against all accesses of that
launch.

That launch may itself have started early. Its end is also the end of the launch in front of it only if one of
its threads waited. Unless some CTA of it waits before it lets dependents start, three launches may run at
once.

The CTAs of earlier launches have negative numbers, from -1 on, those of the latest launch first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gdnbench.sim.checker.findings import Owner
from gdnbench.sim.checker.happens_before import Cause, Unordered, Verdict
from gdnbench.sim.checker.launch_memory import CtaAccess, GlobalShadow
from gdnbench.sim.checker.remote_clocks import RemoteClock, RemoteClocks
from gdnbench.sim.machine.engine_interface import Dim3

LATEST = -1
"""The entry in `RemoteClocks` of a warp that is ordered after the end of the launch in front."""
ENDED = RemoteClock((), 0, ())

SECTION = 'PTX ISA, "griddepcontrol"'
_WAIT = "griddepcontrol.wait before the second, in its thread or before a barrier that orders it"


@dataclass(slots=True)
class DependencyUse:
    """How a launch, or one of its CTAs, uses griddepcontrol. `waits`: a thread waits. `triggers`: a thread
    executes launch_dependents. `starts_before_wait`: dependents may start before any thread has waited."""

    waits: bool = False
    triggers: bool = False
    starts_before_wait: bool = True

    def wait(self) -> None:
        """A thread of the CTA waits."""
        self.waits = True

    def trigger(self, waited: bool) -> None:
        """A thread of the CTA lets dependents start; `waited`: it is ordered after a wait."""
        self.starts_before_wait = self.starts_before_wait if self.triggers else not waited
        self.triggers = True

    def end_cta(self) -> DependencyUse:
        """The use of a CTA that has ended: an exit lets dependents start, as launch_dependents does."""
        return self if self.triggers else replace(self, starts_before_wait=not self.waits)

    def join(self, other: DependencyUse) -> None:
        """Add the use of another CTA, or process."""
        self.waits |= other.waits
        self.triggers |= other.triggers
        self.starts_before_wait &= other.starts_before_wait


@dataclass(frozen=True, slots=True)
class EarlierLaunch:
    """A launch that may still run. `roles` are those of its warps by CTA; `owner_of` says which warp made an
    access. `ends_with_latest`: it has ended when the launch directly in front has. `early`: it lets
    dependents start by launch_dependents, and not by its exit alone."""

    kernel: str
    grid: Dim3
    roles: Mapping[int, tuple[str, ...]]
    owner_of: Callable[[CtaAccess], Owner]
    early: bool
    ends_with_latest: bool = True

    @property
    def ctas(self) -> int:
        x, y, z = self.grid
        return x * y * z


@dataclass(frozen=True, slots=True)
class EarlierLaunches:
    """The launches in front that may still run, the latest first, and the shadow of global memory that they
    leave, whose cells have `cell_bytes` bytes. In it, the CTAs of the latest have their own numbers and those
    before it negative ones."""

    launches: tuple[EarlierLaunch, ...]
    memory: GlobalShadow
    cell_bytes: int

    def launch_of(self, cta: int) -> tuple[EarlierLaunch, int]:
        """The launch that a CTA with a negative number is of, and its number there."""
        number = -1 - cta
        for launch in self.launches:
            if number < launch.ctas:
                return launch, number
            number -= launch.ctas
        raise AssertionError(cta)

    def unordered(self, cta: int, remote: RemoteClocks) -> Unordered | None:
        """None if a warp with the clocks `remote` is ordered after all accesses of the CTA; else what is
        missing. It is left open whether an exit orders memory, where nothing else lets the launch start."""
        launch, _ = self.launch_of(cta)
        waited = LATEST in remote.by_cta
        if waited and launch.ends_with_latest:
            return None
        verdict = Verdict.ERROR if launch.early else Verdict.REVIEW
        missing = _WAIT
        if waited:
            missing = (
                f"griddepcontrol.wait in {self.launches[0].kernel}, which may end before {launch.kernel}"
            )
        return Unordered(Cause.LAUNCHES, verdict, missing)
