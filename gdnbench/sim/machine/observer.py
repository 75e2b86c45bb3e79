"""Who follows the order of a CTA's events: the seam between machine and engines and the race checker.

A checker changes nothing. It is told what each warp hands to the machine, before and after it is done, what
engines load and store by themselves, and what is set going and lands. Everything is told in the order in
which it happens in this run; what a warp loads and stores comes, at the latest, before its next machine
instruction and at the end of its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.machine.async_queue import QueueChecker
from gdnbench.sim.machine.engine_interface import Argument, Lanes, Results, Wait, Warp
from gdnbench.sim.ptx.ir import Instruction, Register

Masks = npt.NDArray[np.bool_]  # [accesses, 32]
Addresses = npt.NDArray[np.uint64]  # [accesses, 32]


@dataclass(frozen=True, slots=True)
class Writer:
    """An instruction that the warp has not waited for and that writes its registers at some time until then.
    `number` counts the warp's tcgen05.ld before it."""

    ins: Instruction
    number: int = 0


class Checker(QueueChecker, Protocol):
    """One CTA's."""

    def accessed(self, warp: Warp, ins: Instruction, masks: Masks, addresses: Addresses) -> None:
        """Executions of a load, store, atomic or matrix load, in order: which lanes, and the addresses that
        `ins` computed for them, before generic ones are resolved. Only instructions that may touch shared or
        global memory, and accesses that were legal. The arrays do not change afterwards."""
        ...

    def met(self, warp: Warp, ins: Instruction, lanes: Lanes, live: Lanes) -> None:
        """Lanes of a warp execute shfl, vote, match, redux, elect or bar.warp.sync together: those of one
        member mask. `live` have not exited by then."""
        ...

    def begins(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
    ) -> None:
        """`warp` hands `ins` to the machine; `previous` as for `Cta.issue`."""
        ...

    def ends(
        self,
        warp: Warp,
        ins: Instruction,
        lanes: Lanes,
        sources: tuple[Argument, ...],
        previous: Wait | None,
        results: Results | Wait,
    ) -> None:
        """The machine has done so, or has the warp wait."""
        ...

    def used(self, warp: Warp, ins: Instruction, register: Register, writer: Writer | None) -> None:
        """`ins` uses a register that `writer` may not have written yet, or that nothing has written (None).
        Moves are no uses. It may be told again of later uses, before what the warp hands to the machine
        next."""
        ...

    def exited(self, warp: int) -> None:
        """All lanes of a warp have exited."""
        ...

    def stuck(self) -> None:
        """Nothing in the CTA can go on, and nothing is in flight."""
        ...

    def finish(self) -> None:
        """The CTA has ended; what is in flight will still land."""
        ...


class Parts(Protocol):
    """What the checkers of a launch found together, where its CTAs run over several processes."""

    def reset(self) -> None:
        """A process begins its share: what was found before is not its own."""
        ...

    def part(self) -> object:
        """What was found in this process, to be pickled."""
        ...

    def join(self, part: object) -> None:
        """Take over what another process found."""
        ...
