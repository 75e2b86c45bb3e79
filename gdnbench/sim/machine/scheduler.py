# SPDX-License-Identifier: Apache-2.0
"""The scheduler of one CTA, and of the CTAs of a cluster: gives warps turns and detects deadlock.

A turn is a quantum of instructions of one warp. The warps of a round run in ascending order, under `random`
shuffled. When no warp can run, the scheduler lands operations in flight one at a time, first those that a
warp waits for, until one can. When nothing is in flight, waits that may time out (try_wait) return False. If
the warps then return to the same waits and nothing has changed, the CTA is deadlocked. After each round the
launch's meter counts the instructions (`bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.async_queue import Schedule
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Blocked, Wait, WarpEngine, WarpState

QUANTUM = 4096
# How often all waits may time out without progress: a kernel may poll a few times before it waits.
EXPIRIES = 64
# Under `random`: how often a CTA of a cluster stalls, and for how many rounds.
STALL_CHANCE = 1 / 8
STALL_ROUNDS = (1, 4, 16, 64)


class Scheduler:
    """Runs the warps of one CTA to their end."""

    def __init__(self, cta: Cta, warps: Sequence[WarpEngine], quantum: int = QUANTUM) -> None:
        self.cta = cta
        self.warps = list(warps)
        self.quantum = quantum
        self._states = [WarpState.RUNNING] * len(self.warps)
        self._stuck: list[tuple[Blocked, ...]] = [()] * len(self.warps)  # of blocked warps, since their turn
        self._waits: list[list[Wait]] = [[] for _ in self.warps]  # of `_stuck`
        self._timeouts = _Timeouts()
        self._spent = 0
        self.finished = False

    def round(self) -> bool:
        """Give each warp that can run one turn; False once all have exited."""
        return self.guarded(self._guarded_round)

    def _guarded_round(self) -> bool:
        going = self._round()
        self._spend()
        return going

    def guarded(self, act: Callable[[], bool]) -> bool:
        """`act`, whose faults name at least the CTA: operations that land between turns belong to no
        thread."""
        try:
            return act()
        except KernelFault as fault:
            fault.thread = fault.thread or f"CTA {self.cta.ctaid}"
            raise

    # A round of one CTA of a cluster, in the parts that the cluster's scheduler needs.

    def turns_of_cluster(self) -> bool:
        """Give each warp that can run one turn, and end the CTA once all have exited; False if no warp can
        run."""
        return self.guarded(self._turns_of_cluster)

    def _turns_of_cluster(self) -> bool:
        moved = self._turns()
        if self._over():
            self.cta.finish()
            self.finished = True
        self._spend()
        return moved

    def end_round_of_cluster(self) -> None:
        """A round of the cluster has ended."""
        self.guarded(self._end_round_of_cluster)

    def _end_round_of_cluster(self) -> bool:
        self._end_round()
        return True

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
        moved = self._turns()
        if self._over():
            self.cta.finish()
            return False
        if moved:
            self._end_round()
        elif not self._land():
            self._expire()
        return True

    def _turns(self) -> bool:
        """Give each warp that can run one turn; False if none can."""
        moved = False
        for index in self._order():
            if not self._can_run(index):
                continue
            moved = True
            if self._turn(index) is WarpState.EXITED:
                self.cta.warp_exited(self.warps[index].warp)
        return moved

    def _over(self) -> bool:
        return all(state is WarpState.EXITED for state in self._states)

    def _end_round(self) -> None:
        if self.cta.recorder is not None:
            self.cta.recorder.round()
        self.cta.queue.tick()

    def _turn(self, index: int) -> WarpState:
        warp, recorder = self.warps[index], self.cta.recorder
        before = warp.executed
        self._states[index] = state = warp.run_turn(self._quantum())
        self._spent += warp.executed - before
        self._stuck[index] = blocked = warp.blocked() if state is WarpState.BLOCKED else ()
        self._waits[index] = [entry.wait for entry in blocked]
        if recorder is not None:
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
        for wait in self._waits[index]:
            if wait.timed_out or wait.ready():
                return True
        return self._states[index] is WarpState.RUNNING

    def _any_can_run(self) -> bool:
        return any(map(self._can_run, range(len(self.warps))))

    def _blocked(self) -> list[tuple[int, Blocked]]:
        return [
            (index, blocked)
            for index, waits in enumerate(self._stuck)
            if self._states[index] is WarpState.BLOCKED
            for blocked in waits
        ]

    def _land(self) -> bool:
        """Land operations until a warp can run; False if none is in flight."""
        return _land_until([self], self._land_one, self.cta.config.schedule)

    def _land_one(self) -> bool:
        """Land one operation, preferably one that a warp waits for; False if none is in flight."""
        return self._land_awaited() or self.cta.queue.advance_any()

    def _land_awaited(self) -> bool:
        """Land one operation that a warp waits for; False if there is none."""
        for waits in self._waits:
            for wait in waits:
                if wait.advance is not None and wait.advance():
                    return True
        return False

    def _expire(self) -> None:
        """Let waits that may time out do so, or raise the deadlock."""
        blocked = self._blocked()
        if not self._timeouts.expire(self._progress(), [entry for _, entry in blocked]):
            if self.cta.checker is not None:
                self.cta.checker.on_hang()
            lines = [f"{who} {what}" for who, what in self._describe(blocked)]
            raise _deadlock("the CTA", len(blocked), lines, blocked[0][1] if blocked else None)

    def _progress(self) -> tuple[object, ...]:
        """A value that changes whenever anything happens that a warp could wait for."""
        shared = self.cta.shared
        present = shared.own_phase >= 0
        barriers = tuple((index, use.arrivals) for index, use in sorted(self.cta.barriers.rounds.items()))
        live = sum(state is not WarpState.EXITED for state in self._states)
        words = shared.own_words[present].tobytes()
        return shared.own_phase[present].tobytes(), words, barriers, self.cta.queue.landed, live

    def _describe(self, blocked: list[tuple[int, Blocked]]) -> list[tuple[str, str]]:
        """Who waits in the CTA, and for what: warps that wait for the same together."""
        together: dict[str, list[tuple[int, int]]] = {}
        for index, entry in blocked:
            what = f"for {entry.wait.text()} at {entry.instruction.place}"
            warp = self.warps[index].warp.index, int(entry.lanes.sum())
            together.setdefault(what, []).append(warp)
        found = []
        for what, warps in together.items():
            numbers = sorted({warp for warp, _ in warps})
            who = f"warp {numbers[0]}" if len(numbers) == 1 else f"warps {numbers}"
            lanes = sum(count for _, count in warps)
            found.append((f"{who} ({lanes} lanes) {'waits' if len(numbers) == 1 else 'wait'}", what))
        return found


def _land_until(schedulers: Sequence[Scheduler], land_one: Callable[[], bool], schedule: Schedule) -> bool:
    """Land operations until a warp can run; False if none is in flight. Under `random` only one: the next
    round draws which warps come first."""
    if not land_one():
        return False
    if schedule.kind != "random":
        while not any(one._any_can_run() for one in schedulers) and land_one():
            pass
    return True


class _Timeouts:
    """Counts how often in a row all waits timed out without progress; tells a deadlock."""

    def __init__(self) -> None:
        self._expiries = 0
        self._seen: tuple[object, ...] = ()

    def expire(self, progress: tuple[object, ...], blocked: Sequence[Blocked]) -> bool:
        """Let waits that may time out do so; False if that cannot help any more."""
        self._expiries = self._expiries + 1 if progress == self._seen else 0
        self._seen = progress
        expiring = [entry.wait for entry in blocked if entry.wait.expires]
        if not expiring or self._expiries >= EXPIRIES:
            return False
        for wait in expiring:
            wait.timed_out = True
        return True


def _deadlock(where: str, count: int, lines: list[str], first: Blocked | None) -> KernelFault:
    waits = f"{count} wait{'' if count == 1 else 's'}"
    message = "\n  ".join([f"nothing in {where} can go on: {waits}", *lines])
    return KernelFault(FaultKind.DEADLOCK, message, None if first is None else first.instruction.place)


class ClusterScheduler:
    """Runs the CTAs of a cluster to their end. In a round each CTA has one round of its warps: in the order
    of the ranks under `late`, in reverse under `early`. Under `random` the order is shuffled, and a CTA
    stalls for some rounds, so that it falls far behind the others. When no warp of the cluster can run,
    operations land as in a single CTA."""

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self.left = list(schedulers)
        first = schedulers[0].cta
        self._schedule, self._random = first.config.schedule, first.queue.random
        if self._schedule.kind == "early":
            self.left.reverse()
        self._timeouts = _Timeouts()
        self._stalled: dict[Scheduler, int] = {}  # rounds for which a CTA stalls

    def round(self) -> bool:
        """One round; False once all CTAs have exited."""
        going = self._order()
        all_had_turns = len(going) == len(self.left)
        moved = False
        for scheduler in going:
            moved |= scheduler.turns_of_cluster()
        self.left = [scheduler for scheduler in self.left if not scheduler.finished]
        if not self.left:
            return False
        if moved:
            for scheduler in self.left:
                scheduler.end_round_of_cluster()
        elif not all_had_turns:
            self._stalled.clear()
        elif not self._land():
            self._expire()
        return True

    def _order(self) -> list[Scheduler]:
        if self._schedule.kind != "random":
            return list(self.left)
        for scheduler in self.left:
            if scheduler not in self._stalled and self._random.random() < STALL_CHANCE:
                self._stalled[scheduler] = self._random.choice(STALL_ROUNDS)
        going = [scheduler for scheduler in self.left if scheduler not in self._stalled]
        self._stalled = {scheduler: left - 1 for scheduler, left in self._stalled.items() if left > 1}
        self._random.shuffle(going)
        return going

    def _land(self) -> bool:
        """Land operations until a warp of some CTA can run; False if none is in flight."""
        return _land_until(self.left, self._land_one, self._schedule)

    def _land_one(self) -> bool:
        """Land one operation, preferably one that a warp of some CTA waits for."""
        order = list(self.left)
        if self._schedule.kind == "random":
            self._random.shuffle(order)
        return any(one.guarded(one._land_awaited) for one in order) or any(
            one.guarded(one.cta.queue.advance_any) for one in order
        )

    def _expire(self) -> None:
        blocked = [(scheduler, scheduler._blocked()) for scheduler in self.left]
        waiting = [entry for _, waits in blocked for _, entry in waits]
        progress = tuple(scheduler._progress() for scheduler in self.left)
        cluster = self.left[0].cta.cluster
        assert cluster is not None
        arrived = cluster.barrier.completed, len(cluster.barrier.round.arrived)
        if self._timeouts.expire((*progress, arrived), waiting):
            return
        for scheduler in self.left:
            if scheduler.cta.checker is not None:
                scheduler.cta.checker.on_hang()
        together: dict[tuple[str, str], list[str]] = {}  # CTAs that wait for the same
        for scheduler, waits in blocked:
            for line in scheduler._describe(waits):
                together.setdefault(line, []).append(str(scheduler.cta.ctaid))
        lines = [
            f"CTA {ctas[0]}, {who} {what}"
            if len(ctas) == 1
            else f"CTAs {', '.join(ctas)}, in each {who} {what}"
            for (who, what), ctas in together.items()
        ]
        raise _deadlock("the cluster", len(waiting), lines, waiting[0] if waiting else None)
