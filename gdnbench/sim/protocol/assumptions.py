# SPDX-License-Identifier: Apache-2.0
"""What the check of all orders takes from the recorded run, beside the branches: answers that the GPU may
give otherwise."""

from __future__ import annotations

from gdnbench.sim.protocol.recorder import ProtocolRecorder, where
from gdnbench.sim.ptx.flow import registers_of
from gdnbench.sim.ptx.forms import Access, Flow
from gdnbench.sim.ptx.ir import Instruction, Kernel, Register

SHARED = ("shared", "shared::cta", "shared::cluster")


def assumed(recorder: ProtocolRecorder) -> tuple[str, ...]:
    """A line for each such answer."""
    found = []
    if recorder.resizes and not recorder.registers_known:
        found.append("no setmaxnreg waits: the registers of the launch are not known")
    if recorder.requests:
        answers = f"{recorder.cancelled} of {recorder.requests} cancel a cluster"
        found.append(f"requests to cancel a cluster have the answers of the run: {answers}")
    for place, seen in recorder.answered.items():
        words = " or ".join(str(one).lower() for one in sorted(seen, reverse=True))
        found.append(f"the poll at {place}, which no loop repeats, answers {words} as in the run")
    found += [f"the poll at {place} orders nothing: both answers go on alike" for place in recorder.ignored]
    atomics = dict.fromkeys(map(where, deciding_atomics(recorder.kernel)))
    if atomics:
        found.append(f"branches on what atomics return go as in the run: {', '.join(atomics)}")
    return tuple(found)


def deciding_atomics(kernel: Kernel) -> list[Instruction]:
    """The atomics whose results may reach the condition of a branch, through registers and shared memory;
    none if no branch depends on any. Which value a register has where is not followed."""
    atomics = [ins for ins in kernel.instructions if ins.form.access is Access.UPDATE]
    return [ins for ins in atomics if _decides(kernel, ins)]


def _decides(kernel: Kernel, atomic: Instruction) -> bool:
    derived = {one.index for one in atomic.written() if isinstance(one, Register)}
    stored, changed = False, bool(derived)
    while changed:
        changed = False
        for ins in kernel.instructions:
            named = [one.index for source in ins.sources for one in registers_of(source)]
            named += [ins.guard.register.index] if ins.guard else []
            depends = not derived.isdisjoint(named)
            if depends and (ins.form.flow is Flow.BRANCH or ins.form.ends_thread):
                return True
            shared = ins.has(*SHARED)
            if depends and shared and ins.form.access is Access.WRITE and not stored:
                stored = changed = True
            if depends or (stored and shared and ins.form.access is Access.READ):
                written = {one.index for one in ins.written() if isinstance(one, Register)}
                changed |= not written <= derived
                derived |= written
    return False
