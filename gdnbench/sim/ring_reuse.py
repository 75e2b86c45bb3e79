"""Says of a checked launch when it could not show what goes wrong as a pipeline's stages are used again.

A persistent kernel takes one work tile after another. On a GPU with more multiprocessors than there are tiles
each of its CTAs takes one, and a missing wait before a stage's second use never matters. So it is in a
simulated launch, which then passes a kernel that is wrong for larger inputs.

The rule is meant to say nothing that is not so. A stage that is used twice completes two phases of its
mbarriers: if no mbarrier of the launch did, no stage was used twice. Fewer multiprocessors change that only
if the number of CTAs follows from them, so the program must have asked for it, the kernel must read the
number of CTAs (`%nctaid`), which is how far it advances from tile to tile, and the CTAs must fit the device.
"""

from __future__ import annotations

from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.ptx.ir import Kernel

RING_REUSE = "ring reuse"
"""The kind of the finding."""


def advance(kernel: Kernel) -> bool:
    """Whether a kernel can advance by its grid: whether it reads the number of CTAs."""
    return any("nctaid." in str(ins.place.text) for ins in kernel.instructions)


def without_reuse(kernel: Kernel, counters: Counters, ctas: int, resident: int) -> str | None:
    """The note for a launch of `ctas` CTAs in which no pipeline stage was used a second time, on a device
    that runs `resident` CTAs at once; None if there was one, or if it is not known."""
    if counters.most_phases != 1 or not 1 < ctas <= resident or not advance(kernel):
        return None
    if any(ins.op == "mbarrier.inval" for ins in kernel.instructions):  # their phases are not counted
        return None
    # A ring with stages that no tile has used yet takes more tiles than one to come round.
    tiles = counters.mbarriers // counters.mbarriers_used + 1
    fewer = max(1, ctas // tiles)
    return (
        f"no pipeline stage was used a second time by any of {ctas} CTAs: ring reuse was not exercised; "
        f"fewer SMs would: --sms {fewer}"
    )
