# SPDX-License-Identifier: Apache-2.0
"""The observer protocol: how the machine and the engines report a CTA's events to the race checker.

A checker changes nothing. It receives what each warp hands to the machine, before and after the machine
executes it; what engines load and store by themselves; and asynchronous operations when they are issued and
when they land. Reports arrive in the order of this run. A warp's loads and stores arrive, at the latest,
before its next machine instruction and at the end of its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.async_queue import QueueChecker
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp, Words
from gdnbench.sim.ptx.ir import Instruction, Register

Masks = npt.NDArray[np.bool_]  # [accesses, 32]
Addresses = npt.NDArray[np.uint64]  # [accesses, 32]
Pcs = npt.NDArray[np.uint32]  # [entries]


@dataclass(frozen=True, slots=True)
class Writer:
    """An instruction in flight that will write registers of its warp before the warp's wait for it ends.
    `number` counts the warp's earlier tcgen05.ld."""

    ins: Instruction
    number: int = 0


class Checker(QueueChecker, Protocol):
    """The checker of one CTA. A class that derives from it ignores what it does not override."""

    def on_accesses(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        """Executions of a load, store, atomic or matrix load, in order: the lanes, and the addresses that
        `ins` computed for them, before generic ones are resolved. Only instructions that may access shared or
        global memory, and only legal accesses. The arrays do not change afterwards."""
        return

    def on_warp_collective(self, warp: Warp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        """Lanes of a warp execute shfl, vote, match, redux, elect or bar.warp.sync together: the lanes of one
        member mask. `live` are the lanes that have not exited."""
        return

    def before_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """`warp` hands `ins` to the machine; `previous` as for `Cta.issue`."""
        return

    def after_instruction(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        """The machine has executed `ins`, or makes the warp wait."""
        return

    def on_register_use(
        self,
        warp: Warp,
        ins: Instruction,
        register: Register,
        writer: Writer | None,
        *,
        computed: bool = False,
    ) -> None:
        """`ins` uses a register that `writer` may not have written yet, or that nothing has written (None),
        or that was `computed` from a register that nothing has written. Moves are not uses, but `selp` is one
        of what a tcgen05.ld writes, nor is arithmetic a use of the latter two. Later uses may be reported
        again, until the warp hands the next instruction to the machine."""
        return

    def on_warp_exit(self, warp: int) -> None:
        """All lanes of a warp have exited."""
        return

    def on_hang(self) -> None:
        """No warp of the CTA can continue, and nothing is in flight."""
        return

    def on_cta_end(self) -> None:
        """The CTA has ended. Operations in flight will still land."""
        return


class PathObserver(Checker, Protocol):
    """The observer of one CTA of a launch with `MachineConfig.path`. The engine reports the path of each
    warp to it, and calls neither `on_accesses` nor `on_warp_collective`."""

    def on_path(self, warp: Warp, pcs: Pcs, lanes: Words, addresses: Addresses) -> None:
        """What the warp did since the last report, in order: blocks that it entered, as the pc of their first
        instruction with the bit `access_log_entry.BLOCK`, accesses and meetings of lanes, as their pc, with
        the lanes as bits; for an access also their addresses. The arrays do not change afterwards."""
        ...


class Parts(Protocol):
    """The findings of a launch's checkers, where its CTAs run in several processes."""

    def reset(self) -> None:
        """A process begins its share: forget the findings of the process that forked it."""
        ...

    def part(self) -> object:
        """The findings of this process, to be pickled."""
        ...

    def join(self, part: object) -> None:
        """Add the findings of another process."""
        ...
