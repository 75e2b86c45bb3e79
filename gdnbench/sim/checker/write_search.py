# SPDX-License-Identifier: Apache-2.0
"""Finds the instructions that write one byte of global memory in a launch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gdnbench.sim.checker.load_store import KernelAccesses, split_by_space
from gdnbench.sim.errors import Place
from gdnbench.sim.machine.async_queue import AsyncOperation
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Wait, Warp
from gdnbench.sim.machine.observer import Addresses, Checker, Masks
from gdnbench.sim.ptx.ir import Instruction, Kernel


@dataclass(slots=True)
class WriteSearch:
    """Looks for writes of the byte at `address` in a launch of `kernel`, whose CTAs must run in this process.
    `places` are those of the instructions, each once, in the order of their first write."""

    kernel: Kernel
    address: int
    _found: dict[int, Place] = field(default_factory=dict)  # by pc
    _forms: KernelAccesses = field(init=False)

    def __post_init__(self) -> None:
        self._forms = KernelAccesses(self.kernel)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(self._found.values())

    def begin(self, cta: Cta) -> _CtaWrites:
        """The observer of a CTA that begins."""
        return _CtaWrites(self)

    def note(self, ins: Instruction) -> None:
        """`ins` wrote the byte."""
        self._found.setdefault(ins.pc, ins.place)

    def note_stores(self, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        """Executions of a load or store; the latter count."""
        form = self._forms.by_pc[ins.pc]
        if form is None or not form.writes:
            return
        for space, starts, _ in split_by_space(form, masks, addresses):
            if space == "global" and bool(
                ((starts <= self.address) & (self.address < starts + form.width)).any()
            ):
                self.note(ins)


class _CtaWrites(Checker):
    """The observer of one CTA. It uses stores and operations, and ignores all other events of a checker."""

    def __init__(self, search: WriteSearch) -> None:
        self._search = search
        self._issuing: Instruction | None = None

    def on_accesses(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        """See `Checker`."""
        self._search.note_stores(ins, masks, addresses)

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """See `Checker`."""
        self._issuing = ins

    def on_submit(self, operation: AsyncOperation) -> None:
        """See `Checker`."""
        for where in operation.writes:
            if where.space == "global" and bool((where.cells() == np.int64(self._search.address)).any()):
                assert self._issuing is not None
                self._search.note(self._issuing)
