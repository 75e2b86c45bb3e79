"""The scheduler of one CTA: gives its warps turns and detects deadlock.

A turn is a quantum of instructions of one warp. The warps of a round run in ascending order, under `random`
shuffled. When no warp can run, the scheduler lands operations in flight one at a time, first those that a
warp waits for. When nothing is in flight, waits that may time out (try_wait) return False. If the warps then
return to the same waits and nothing has changed, the CTA is deadlocked. After each round the launch's meter
counts the instructions (`bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Blocked, WarpEngine, WarpState

QUANTUM = 4096
# How often all waits may time out without progress: a kernel may poll a few times before it waits.
EXPIRIES = 64


class Scheduler:
    """Runs the warps of one CTA to their end."""

    def __init__(self, cta: Cta, warps: Sequence[WarpEngine], quantum: int = QUANTUM) -> None:
        self.cta = cta
        self.warps = list(warps)
        self.quantum = quantum
        self._states = [WarpState.RUNNING] * len(self.warps)
        self._expiries = 0
        self._seen: tuple[object, ...] = ()
        self._spent = 0

    def round(self) -> bool:
        """Give each warp that can run one turn; False once all have exited."""
        try:
            going = self._round()
            self._spend()
            return going
        except KernelFault as fault:
            # Operations that land between turns, and their faults, belong to no thread.
            fault.thread = fault.thread or f"CTA {self.cta.ctaid}"
            raise

    def _spend(self) -> None:
        """Count what the warps have executed in this round. A fault names the warp that has executed most."""
        spent, self._spent = self._spent, 0
        try:
            self.cta.launch.meter.spend(spent)
        except KernelFault as fault:
            pairs = zip(self.warps, self._states, strict=True)
            left = [warp for warp, state in pairs if state is not WarpState.EXITED]
            if left:
                warp = max(left, key=lambda warp: warp.executed)
                fault.place = warp.position().place
                fault.thread = f"CTA {self.cta.ctaid}, warp {warp.warp.index}"
            raise

    def _round(self) -> bool:
        moved = False
        for index in self._order():
            if self._states[index] is WarpState.EXITED or not self._can_run(index):
                continue
            moved = True
            state = self._turn(index)
            if state is WarpState.EXITED:
                if self.cta.checker is not None:
                    self.cta.checker.on_warp_exit(self.warps[index].warp.index)
                self.cta.barriers.exited(self.warps[index].warp.index)
        if all(state is WarpState.EXITED for state in self._states):
            self.cta.finish()
            return False
        if moved:
            if self.cta.recorder is not None:
                self.cta.recorder.round()
            self.cta.queue.tick()
        elif not self._land():
            self._expire()
        return True

    def _turn(self, index: int) -> WarpState:
        warp, recorder = self.warps[index], self.cta.recorder
        before = warp.executed
        self._states[index] = state = warp.run_turn(self._quantum())
        self._spent += warp.executed - before
        if recorder is not None:
            blocked = warp.blocked() if state is WarpState.BLOCKED else ()
            recorder.turn(warp.warp.index, warp.executed - before, blocked)
        return state

    def _order(self) -> list[int]:
        order = list(range(len(self.warps)))
        if self.cta.config.schedule.kind == "random":
            self.cta.queue.random.shuffle(order)
        return order

    def _quantum(self) -> int:
        if self.cta.config.schedule.kind == "random":
            return self.cta.queue.random.choice((1, 16, 256, self.quantum))
        return self.quantum

    def _can_run(self, index: int) -> bool:
        if self._states[index] is WarpState.RUNNING:
            return True
        return any(blocked.wait.over() for blocked in self.warps[index].blocked())

    def _blocked(self) -> list[tuple[int, Blocked]]:
        return [
            (index, blocked)
            for index, warp in enumerate(self.warps)
            if self._states[index] is WarpState.BLOCKED
            for blocked in warp.blocked()
        ]

    def _land(self) -> bool:
        """Land one operation, preferably one that a warp waits for; False if none is in flight."""
        for _, blocked in self._blocked():
            if blocked.wait.advance is not None and blocked.wait.advance():
                return True
        return self.cta.queue.advance_any()

    def _expire(self) -> None:
        """Let waits that may time out do so, or raise the deadlock."""
        blocked = self._blocked()
        progress = self._progress()
        self._expiries = self._expiries + 1 if progress == self._seen else 0
        self._seen = progress
        expiring = [entry.wait for _, entry in blocked if entry.wait.expires]
        if not expiring or self._expiries >= EXPIRIES:
            if self.cta.checker is not None:
                self.cta.checker.on_hang()
            raise self._deadlock(blocked)
        for wait in expiring:
            wait.timed_out = True

    def _progress(self) -> tuple[object, ...]:
        """A value that changes whenever anything happens that a warp could wait for."""
        shared = self.cta.shared
        present = shared.phase >= 0
        barriers = tuple((index, use.arrivals) for index, use in sorted(self.cta.barriers.rounds.items()))
        live = sum(state is not WarpState.EXITED for state in self._states)
        words = shared.words[: present.size][present].tobytes()
        return shared.phase[present].tobytes(), words, barriers, self.cta.queue.landed, live

    def _deadlock(self, blocked: list[tuple[int, Blocked]]) -> KernelFault:
        lines = [
            f"warp {self.warps[index].warp.index} ({int(entry.lanes.sum())} lanes) "
            f"waits for {entry.wait.text()} at {entry.instruction.place}"
            for index, entry in blocked
        ]
        place = blocked[0][1].instruction.place if blocked else None
        waits = f"{len(lines)} wait{'' if len(lines) == 1 else 's'}"
        message = "\n  ".join([f"nothing in the CTA can go on: {waits}", *lines])
        return KernelFault(FaultKind.DEADLOCK, message, place)
