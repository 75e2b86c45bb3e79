# SPDX-License-Identifier: Apache-2.0
"""Fences, cache policies, prefetches, griddepcontrol and nanosleep, which change no value here, and
`discard`, which does.

Every memory access is visible to all threads at once, so a fence does nothing. The race checker finds missing
fences; it observes them at `Cta.issue`. A grid has no predecessor or successor, so griddepcontrol never
waits.
"""

from __future__ import annotations

from gdnbench.sim.errors import FaultKind, KernelFault, UnsupportedError
from gdnbench.sim.machine.cta import Cta, Handler
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.machine.memory import POISON
from gdnbench.sim.machine.operands import active_lanes, same_in_all_lanes, scalar_operand
from gdnbench.sim.ptx.ir import Instruction

# The only size that the PTX ISA ("discard") allows.
DISCARD_BYTES = 128


def _nothing(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    return ()


def _policy(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """A cache policy, whose bits only the hardware reads."""
    return (same_in_all_lanes(0),)


def _fence(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """Accept a form that the PTX ISA lists ("membar, fence"); raise UnsupportedError for any other."""
    orders = [mod for mod in ins.mods if mod in ("sc", "acq_rel", "acquire", "release")]
    scopes = [mod for mod in ins.mods if mod in ("cta", "cluster", "gpu", "sys")]
    if len(orders) > 1 or len(scopes) != 1:
        raise UnsupportedError(ins.name)
    return ()


def _discard(
    cta: Cta, warp: Warp, ins: Instruction, lanes: Lanes, sources: tuple[Argument, ...], previous: Wait | None
) -> Results:
    """The bytes lose their value without write-back. Reading them is undefined, so they are poisoned."""
    addresses = scalar_operand(sources[0])
    for lane in active_lanes(lanes):
        address = int(addresses[lane])
        if address % DISCARD_BYTES:
            raise KernelFault(
                FaultKind.MISALIGNED, f"{ins.name} at {address:#x}, no multiple of {DISCARD_BYTES}"
            )
        cta.memory.view(address, DISCARD_BYTES)[:] = POISON
    return ()


WITHOUT_EFFECT = (
    *("membar", "membar.proxy", "fence.mbarrier_init", "fence.proxy.alias", "fence.proxy.async"),
    *("fence.proxy.async::generic", "prefetch", "prefetchu", "applypriority", "nanosleep"),
    *("griddepcontrol.wait", "griddepcontrol.launch_dependents"),
)
"""Orders and hints that change nothing here: every access is visible to all threads at once."""

HANDLERS: dict[str, Handler] = {
    "createpolicy.fractional": _policy,
    **dict.fromkeys(WITHOUT_EFFECT, _nothing),
    "fence": _fence,
    "discard": _discard,
}
