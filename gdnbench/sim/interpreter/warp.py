# SPDX-License-Identifier: Apache-2.0
"""One warp: groups of lanes, each with its own pc, and the order in which they run.

A divergent branch splits a group. The group at the lowest pc runs first, and groups that reach the same pc
join. That is enough to reconverge after structured control flow, since compilers lay out blocks in that
order. A group that waits for the machine does not block the others. An instruction that needs several lanes
waits until they have joined. If the other lanes can never arrive, that is a divergence fault.
"""

from __future__ import annotations

import numpy as np

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.interpreter.collectives import lanes_of, sets
from gdnbench.sim.interpreter.operation import Fetch, require
from gdnbench.sim.interpreter.program import (
    Branch,
    Collective,
    Entry,
    Exit,
    Machine,
    Plain,
    Program,
    Switch,
    result_bits,
)
from gdnbench.sim.interpreter.registers import Array, Flight, RegisterFile
from gdnbench.sim.interpreter.special import SpecialRegisters
from gdnbench.sim.interpreter.warpgroup import InterpretedRegisters
from gdnbench.sim.machine.counters import counted_as
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import (
    LANES,
    WRITTEN,
    Blocked,
    Lanes,
    Results,
    Values,
    Wait,
    Warp,
    WarpState,
)
from gdnbench.sim.machine.observer import Writer
from gdnbench.sim.ptx.forms import Sync, Until
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register

# A group that ran this long while others could have is passed over once: lanes may spin on what others do.
PATIENCE = 4096


class Group:
    """Lanes at one place. `wait` is the machine's, `missing` the lanes that a collective still needs."""

    __slots__ = ("lanes", "missing", "pc", "ran", "wait")

    def __init__(self, pc: int, lanes: Lanes) -> None:
        self.pc = pc
        self.lanes = lanes
        self.wait: Wait | None = None
        self.missing: Lanes | None = None
        self.ran = 0

    def ready(self) -> bool:
        if self.wait is not None:
            return self.wait.over()
        return self.missing is None


def _arrival(missing: Lanes) -> Wait:
    """A collective's wait for lanes of its own warp, which nothing outside the warp can end."""
    lanes = np.flatnonzero(missing).tolist()
    return Wait(ready=lambda: False, text=lambda: f"lanes {lanes} of its warp to arrive")


class InterpretedWarp:
    """Runs a program for one warp. Seam: `WarpEngine`."""

    def __init__(self, program: Program, cta: Cta, warp: Warp) -> None:
        self.program = program
        self.cta = cta
        self.warp = warp
        self.kernel: Kernel = program.kernel
        self.registers = RegisterFile(program.kernel.registers, warp.exists.copy(), self._unready)
        warp.registers = InterpretedRegisters(self.registers)
        self.carry: Array = np.zeros(LANES, np.bool_)
        self.groups: list[Group] = [Group(0, warp.exists.copy())] if warp.exists.any() else []
        self.executed = 0
        self._group: Group | None = None  # what runs
        self._counted = {pc: 0 for pcs in cta.launch.tile_steps for pc in pcs}
        self._loads = 0
        self.special = SpecialRegisters(cta, warp, lambda: self.executed)

    def run_turn(self, quantum: int) -> WarpState:
        """Execute at most `quantum` instructions; stop early when no group can go on."""
        end = self.executed + quantum
        with np.errstate(all="ignore"):
            while self.executed < end:
                group = self._next()
                if group is None:
                    return self._stopped()
                try:
                    self._advance(group, end)
                except KernelFault as fault:
                    if fault.place is None:
                        fault.place = self._entry(group).ins.place
                        fault.thread = self.cta.thread(self.warp, group.lanes)
                    raise
                except UnsupportedError as error:
                    if error.place is None:
                        raise UnsupportedError(error.what, self._entry(group).ins.place) from error
                    raise
        return WarpState.RUNNING if self.groups else WarpState.EXITED

    def blocked(self) -> tuple[Blocked, ...]:
        """The groups that wait."""
        found = []
        for group in self.groups:
            wait = group.wait
            if wait is None and group.missing is not None:
                wait = _arrival(group.missing)
            if wait is not None:
                found.append(Blocked(self._entry(group).ins, group.lanes, wait))
        return tuple(found)

    def executions(self, pc: int) -> int:
        return self._counted[pc]

    def position(self) -> Instruction:
        """The instruction at which the warp is."""
        return self.program.entries[min((group.pc for group in self.groups), default=0)].ins

    def _entry(self, group: Group) -> Entry:
        return self.program.entries[group.pc]

    def _next(self) -> Group | None:
        """The group to run: one that only has to exit, else that at the lowest pc, patience allowing."""
        if len(self.groups) == 1:
            only = self.groups[0]
            return only if only.ready() else None
        ready = [group for group in self.groups if group.ready()]
        for group in ready:
            if isinstance(self._entry(group), Exit):
                return group
        return min(ready, key=lambda group: (group.ran // PATIENCE, group.pc), default=None)

    def _stopped(self) -> WarpState:
        """No group can go on: the warp has exited, or waits for the machine, or diverged for good."""
        if not self.groups:
            return WarpState.EXITED
        if any(group.wait is not None for group in self.groups):
            return WarpState.BLOCKED
        group = min(self.groups, key=lambda group: group.pc)
        raise self._diverged(group, "are elsewhere for good")

    def _diverged(self, group: Group, why: str) -> KernelFault:
        ins = self._entry(group).ins
        missing = group.missing if group.missing is not None else self.warp.exists & ~group.lanes
        return KernelFault(
            FaultKind.DIVERGENCE,
            f"{ins.name}: lanes {np.flatnonzero(missing).tolist()}, which it needs, {why}",
            ins.place,
            self.cta.thread(self.warp, group.lanes),
        )

    def _advance(self, group: Group, end: int) -> None:
        """Run `group` to the next place where another group may have to go on."""
        self._group = group
        if self.cta.config.keep_going:
            self.cta.execute(self.warp, self._entry(group).ins, group.lanes)
        alone = len(self.groups) == 1
        stop = min((other.pc for other in self.groups if other.pc > group.pc), default=-1)
        if not alone:
            end = min(end, self.executed + PATIENCE)
        entries, guards = self.program.entries, self.program.guards
        profile, counted = self.cta.config.profile, self._counted
        lanes = group.lanes
        while self.executed < end:
            entry = entries[group.pc]
            if type(entry) is not Plain:
                break
            self.executed += 1
            if profile:
                self.cta.counters.instructions[counted_as(entry.ins)] += 1
            if counted and group.pc in counted:
                counted[group.pc] += 1
            guard = guards[group.pc]
            if guard is None:
                entry.step(self, lanes)
            else:
                active = guard(self, lanes)
                if active.any():
                    entry.step(self, active)
            group.pc += 1
            group.ran += 1
            if group.pc == stop:
                self._join(group)
                return
        else:
            return
        self._flow(group, entry)

    def _flow(self, group: Group, entry: Entry) -> None:
        """An instruction that may end, split or hold up the group."""
        guard = self.program.guards[group.pc]
        active = group.lanes if guard is None or group.wait is not None else guard(self, group.lanes)
        group.ran += 1
        if isinstance(entry, Branch):
            self._count(entry)
            self._branch(group, entry, active)
            return
        if isinstance(entry, Switch):
            self._count(entry)
            self._switch(group, entry, active)
            return
        if not active.any():
            self._count(entry)
            self._step_on(group)
            return
        if isinstance(entry, Machine) and not entry.aligned:
            self._issue(group, entry, active)
            return
        if not np.array_equal(active, group.lanes):
            self._split(group, active)
        if isinstance(entry, Exit):
            if entry.counts:
                self._count(entry)
            self._exit(group)
        elif isinstance(entry, Machine):
            if group.wait is not None or self._gathered(group, self.warp.exists):
                self._issue(group, entry, active)
        else:
            assert isinstance(entry, Collective)
            self._collective(group, entry)

    def _count(self, entry: Entry) -> None:
        self.executed += 1
        if self.cta.config.profile and not isinstance(entry, Machine):
            self.cta.counters.instructions[counted_as(entry.ins)] += 1

    def _step_on(self, group: Group) -> None:
        group.pc += 1
        self._join(group)

    def _join(self, group: Group) -> None:
        """Take in the groups that are at the same place and have not been issued to the machine."""
        for other in [g for g in self.groups if g is not group and g.pc == group.pc and g.wait is None]:
            group.lanes = group.lanes | other.lanes
            group.missing = None
            group.ran = 0
            self.groups.remove(other)

    def _split(self, group: Group, active: Lanes) -> None:
        """The lanes whose guard is false go on to the next instruction."""
        rest = Group(group.pc + 1, group.lanes & ~active)
        group.lanes = active
        group.ran = 0
        self.groups.append(rest)
        self._join(rest)

    def _branch(self, group: Group, entry: Branch, taken: Lanes) -> None:
        staying = group.lanes & ~taken
        if not staying.any():
            group.pc = entry.target
        elif not taken.any():
            group.pc += 1
        else:
            group.lanes, group.ran = staying, 0
            group.pc += 1
            leaving = Group(entry.target, taken)
            self.groups.append(leaving)
            self._join(leaving)
        if group in self.groups:
            self._join(group)

    def _switch(self, group: Group, entry: Switch, taken: Lanes) -> None:
        """Lanes that take the branch go where their index says; the PTX ISA leaves an index beyond the table
        undefined ("brx.idx")."""
        require(self, entry.used, taken)
        index = entry.index(self)
        outside = taken & (index >= len(entry.targets))
        if outside.any():
            lane = int(outside.argmax())
            raise KernelFault(
                FaultKind.BRANCH,
                f"{entry.ins.name}: index {int(index[lane])} of lane {lane}; "
                f"the table has {len(entry.targets)}",
            )
        going = np.full(LANES, group.pc + 1)
        for number, pc in enumerate(entry.targets):
            going[taken & (index == number)] = pc
        pcs = np.unique(going[group.lanes]).tolist()
        others = [Group(pc, group.lanes & (going == pc)) for pc in pcs[1:]]
        group.lanes, group.pc, group.ran = group.lanes & (going == pcs[0]), pcs[0], 0
        self.groups += others
        for each in (group, *others):
            if each in self.groups:
                self._join(each)

    def _exit(self, group: Group) -> None:
        self.warp.exists[group.lanes] = False
        self.groups.remove(group)
        for other in self.groups:
            if other.missing is not None:
                other.missing = other.missing & self.warp.exists
                if not other.missing.any():
                    self._left_alone(other)

    def _left_alone(self, group: Group) -> None:
        """The lanes that a group waited for have exited. `.sync` waits for lanes that have not; `.aligned`
        says that all threads of the warp execute the instruction, and these never did."""
        entry = self._entry(group)
        if entry.ins.has("aligned") or isinstance(entry, Machine):
            group.missing = None
            raise KernelFault(
                FaultKind.DIVERGENCE,
                f"{entry.ins.name}: the other lanes of the warp exited without it",
                entry.ins.place,
                self.cta.thread(self.warp, group.lanes),
            )
        group.missing = None

    def _gathered(self, group: Group, needed: Lanes) -> bool:
        """True if all lanes that are needed are here; the group waits for them if not."""
        missing = needed & self.warp.exists & ~group.lanes
        if missing.any():
            group.missing = missing
            return False
        group.missing = None
        return True

    def _collective(self, group: Group, entry: Collective) -> None:
        needed = self.warp.exists
        if entry.members is not None:
            require(self, entry.mask_registers, group.lanes)
            named = entry.members(self)[group.lanes]
            needed = lanes_of(int(np.bitwise_or.reduce(named)))
        if not self._gathered(group, needed):
            if entry.ins.form.sync is Sync.WARP_BARRIER:
                self._meet(group, needed)
            return
        self._count(entry)
        entry.step(self, group.lanes)
        if entry.members is not None:
            self._tell_met(entry, entry.members, group.lanes)
        self._step_on(group)

    def _tell_met(self, entry: Collective, members: Fetch, lanes: Lanes) -> None:
        """Tell the checker, if there is one."""
        checker = self.cta.checker
        if checker is not None:
            for together in sets(self, lanes, members):
                checker.on_warp_collective(self.warp, entry.ins, together, self.warp.exists)

    def _meet(self, group: Group, needed: Lanes) -> None:
        """`bar.warp.sync` with one mask may stand at several places: lanes meet wherever they wait in one."""
        met = [
            other
            for other in self.groups
            if other.missing is not None
            and self._entry(other).ins.form.sync is Sync.WARP_BARRIER
            and np.array_equal((other.lanes | other.missing), needed & self.warp.exists)
        ]
        here = np.logical_or.reduce([other.lanes for other in met])
        if (needed & self.warp.exists & ~here).any():
            return
        for other in met:
            entry = self._entry(other)
            assert isinstance(entry, Collective)
            entry.step(self, other.lanes)
            other.missing = None
            self._count(entry)
        if self.cta.checker is not None:
            self.cta.checker.on_warp_collective(self.warp, self._entry(group).ins, here, self.warp.exists)
        for other in met:
            if other in self.groups:
                self._step_on(other)

    def _issue(self, group: Group, entry: Machine, active: Lanes) -> None:
        """Hand an instruction to the machine. Lanes that do not issue it go on if the others must wait."""
        previous = group.wait
        if previous is None:
            require(self, entry.used, active)
        result = self.cta.issue(self.warp, entry.ins, active, entry.arguments(self), previous)
        if previous is None:
            self._count(entry)
        if isinstance(result, Wait):
            if not np.array_equal(active, group.lanes):
                self._split(group, active)
            group.wait = result
            return
        group.wait = None
        self._write(entry, active, result)
        self._step_on(group)

    def skip(self, fault: KernelFault) -> None:
        """Record a fault of the instruction that runs, and return if the launch goes on after it."""
        assert self._group is not None
        fault.place = self._entry(self._group).ins.place
        fault.thread = self.cta.thread(self.warp, self._group.lanes)
        self.cta.skip(fault)

    def _unready(self, register: Register, lanes: Lanes, flight: Flight | None, computed: bool) -> None:
        """The instruction that runs uses a register without a value; see `registers.Unready`."""
        assert self._group is not None
        ins, cta = self._entry(self._group).ins, self.cta
        if cta.checker is not None:
            writer = None if flight is None else Writer(flight.ins, flight.number)
            cta.checker.on_register_use(self.warp, ins, register, writer, computed=computed)
        elif flight is None:
            lane = int(lanes.argmax())
            message = f"register {register.name} was never written in lane {lane}"
            if computed:
                message = f"register {register.name} was computed in lane {lane} from one never written"
            self.skip(KernelFault(FaultKind.UNINITIALISED, message))
        elif flight.owner is None and not ins.form.chooses:
            cta.note(
                f"{ins.name} uses a register that tcgen05.ld loads, before tcgen05.wait::ld: its value is"
                " there, and no access to memory is ordered (PTX ISA 9.7.16.6.4.5)",
                ins,
            )
        elif flight.owner is not None:
            message = (
                f"register {register.name} is used before wgmma.wait_group; a product in flight writes it, "
                f"at {flight.ins.place}"
            )
            self.skip(KernelFault(FaultKind.UNINITIALISED, message))

    def _write(self, entry: Machine, lanes: Lanes, results: Results) -> None:
        if results is WRITTEN:
            return
        registers = self.registers
        for dest, value in zip(entry.dests, results, strict=True):
            if isinstance(dest, Register):
                bits: Values = result_bits(value, dest)
                np.copyto(registers.bits[dest.index], bits, where=lanes)
                if not registers.clean[dest.index]:
                    registers.mark(dest.index, lanes)
        if entry.ins.form.until is Until.TENSOR_LOAD:
            indices = [dest.index for dest in entry.dests if isinstance(dest, Register)]
            registers.load(indices, lanes, Flight(entry.ins, self._loads))
            self._loads += 1
        elif entry.ins.form.ends is Until.TENSOR_LOAD:
            registers.deliver()
