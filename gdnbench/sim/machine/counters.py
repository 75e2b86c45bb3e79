# SPDX-License-Identifier: Apache-2.0
"""The counters of a launch, from which `--profile` is computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gdnbench.sim.ptx.ir import Instruction

MOST_PRINTED = 10_000  # texts of a launch that its report keeps


def counted_as(ins: Instruction) -> str:
    """The counter name of an instruction: its opcode, with the type if the engine executes it."""
    if not ins.types or ins.form.by_machine or ins.form.cls == "mma.sync":
        return ins.op
    return f"{ins.op}.{ins.types[0]}"


@dataclass(slots=True)
class Counters:
    """Sums over CTAs. `instructions` by `counted_as`; `traffic` in bytes by path ("global to shared");
    `waits` by (warp, opcode): how often the warp could not continue. `mbarriers` are those that exist when
    their CTA ends, `mbarriers_used` those of them that completed a phase; `most_phases` are the phases of the
    one that completed most. `most_tiles` are the tiles of the CTA that took most, `busy_ctas` the CTAs that
    took one, as far as `Launch.tile_steps` counts them. `printed` are (CTA index, text) of the kernel's
    printf, at most MOST_PRINTED."""

    warp_instructions: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    traffic: Counter[str] = field(default_factory=Counter)
    waits: Counter[tuple[int, str]] = field(default_factory=Counter)
    mma_macs: int = 0
    mbarriers: int = 0
    mbarriers_used: int = 0
    most_phases: int = 0
    most_tiles: int = 0
    busy_ctas: int = 0
    printed: list[tuple[int, str]] = field(default_factory=list)

    def count_tiles(self, tiles: int) -> None:
        """Count the tiles of a CTA."""
        self.most_tiles = max(self.most_tiles, tiles)
        self.busy_ctas += tiles > 0

    def count_phases(self, phases: npt.NDArray[np.int64]) -> None:
        """Count the mbarriers of a CTA. `phases` is its `SharedMemory.phase`."""
        live = phases[phases >= 0]
        self.mbarriers += live.size
        self.mbarriers_used += int(np.count_nonzero(live))
        self.most_phases = max(self.most_phases, int(live.max(initial=0)))

    def merge(self, other: Counters) -> None:
        """Add the counters of another CTA."""
        self.warp_instructions += other.warp_instructions
        self.instructions.update(other.instructions)
        self.traffic.update(other.traffic)
        self.waits.update(other.waits)
        self.mma_macs += other.mma_macs
        self.mbarriers += other.mbarriers
        self.mbarriers_used += other.mbarriers_used
        self.most_phases = max(self.most_phases, other.most_phases)
        self.most_tiles = max(self.most_tiles, other.most_tiles)
        self.busy_ctas += other.busy_ctas
        self.printed += other.printed[: MOST_PRINTED - len(self.printed)]
