# SPDX-License-Identifier: Apache-2.0
"""Judges mutants by the check of all orders: one wait for an mbarrier, one arrival or one commit is left
out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gdnbench.sim.host.device import described_device
from gdnbench.sim.mutants import KeptLaunch, Mutant, mutants
from gdnbench.sim.mutants.mutant import Kind
from gdnbench.sim.protocol.launch import OrdersOfLaunches
from gdnbench.sim.ptx.forms import Sync
from gdnbench.sim.ptx.parser import parse

COMMIT = "tcgen05.commit"
_LEFT_OUT = (Sync.POLL, Sync.ARRIVE, Sync.ARRIVE_EXPECT, Sync.EXPECT)


class Told(StrEnum):
    """`STOPS`: the recorded run itself hangs or is undefined, so that there is an order that does. `PROVED`:
    no phase depends on it, as of a wait for data alone, whose race the checker finds."""

    BROKEN = "an order is broken"
    STOPS = "the run stops"
    PROVED = "proved"
    OPEN = "not proved"


@dataclass(frozen=True, slots=True)
class Judged:
    mutant: Mutant
    told: Told
    why: str

    def __str__(self) -> str:
        at = self.mutant.place
        where = f"{at.file}:{at.file_line}" if at.file else f"PTX line {at.line}"
        return f"{self.mutant.op} at {where} left out: {self.told}: {self.why}"


def judged(kept: KeptLaunch, sample: int | None = None, seed: int = 0) -> Iterator[Judged]:
    """Each wait, arrival and commit of the launch left out, or `sample` of them, drawn by `seed`. Raises
    ValueError unless all orders of the kernel itself are proved."""
    kernel = kept.module.kernels[kept.request.entry]
    told, why = _told(kept, kept.module.text)
    if told is not Told.PROVED:
        raise ValueError(f"{kept.request.entry} itself: {told.value}, {why}")
    chosen = [
        mutant
        for mutant in mutants(kept.module, kept.request.entry)
        if mutant.kind is Kind.REMOVED
        and (kernel.instructions[mutant.pc].form.sync in _LEFT_OUT or mutant.op == COMMIT)
    ]
    if sample is not None and sample < len(chosen):
        drawn = random.Random(seed).sample(range(len(chosen)), sample)
        chosen = [chosen[index] for index in sorted(drawn)]
    for mutant in chosen:
        yield Judged(mutant, *_told(kept, mutant.ptx(kept.module.text)))


def _told(kept: KeptLaunch, text: str) -> tuple[Told, str]:
    orders = OrdersOfLaunches()
    with described_device(sms=kept.multiprocessors):
        orders(parse(text), kept.request, kept.memory())
    (launch,) = orders.launches
    if launch.refused:
        stops = ", which faults: " in launch.refused
        return (Told.STOPS if stops else Told.OPEN), launch.refused.rpartition(": ")[2]
    for part in launch.parts:
        if part.wrong is not None:
            return Told.BROKEN, f"{part.wrong.what}; {part.wrong.ends}"
    whys = [part.why for part in launch.parts if part.why]
    return (Told.OPEN, whys[0]) if whys else (Told.PROVED, "")
