# SPDX-License-Identifier: Apache-2.0
"""What the warps of a CTA did, in order, with what each waited for: all that the replay against a clock
needs.

    trace.warps[2][:4] == [Entered(0), Accessed(7, ...), Issued(12, 0), Waited(13, (4,))]

Instructions are named by their pc. A *phase* is one generation of anything that threads wait for: a phase of
an mbarrier, a round of a barrier. It is over once all `arrivals[phase]` contributions have come: threads that
arrive, and asynchronous operations that land. Which contribution belongs to which phase is what happened in
the simulator's run, so the replay needs no counts of bytes or parities.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

SECTOR = 32
"""Bytes of the smallest unit that caches and memory move; a line has four sectors."""


class Space(StrEnum):
    SHARED = "shared"
    GLOBAL = "global"
    LOCAL = "local"


class Entered(NamedTuple):
    """The warp entered the block that begins at `pc`."""

    pc: int


class Accessed(NamedTuple):
    """A load, store or atomic of the block entered last. `cycles`: how long shared memory or L1 is busy with
    it, bank conflicts included. `sectors`: those of global memory, address divided by `SECTOR`."""

    pc: int
    space: Space
    cycles: int
    sectors: tuple[int, ...]


class Issued(NamedTuple):
    """The warp issued operations, `CtaTrace.operations[index]` each."""

    pc: int
    operations: tuple[int, ...]


class Arrived(NamedTuple):
    """The warp arrived for these phases."""

    pc: int
    phases: tuple[int, ...]


class Waited(NamedTuple):
    """The warp waited for the end of these phases."""

    pc: int
    phases: tuple[int, ...]


class Finished(NamedTuple):
    """The warp waited for these operations."""

    pc: int
    operations: tuple[int, ...]


class Executed(NamedTuple):
    """The warp executed an instruction of the machine that is none of the above."""

    pc: int


Step = Entered | Accessed | Issued | Arrived | Waited | Finished | Executed


class Kind(StrEnum):
    """The kind of an asynchronous operation."""

    COPY_IN = "copy in"  # global to shared memory
    COPY_OUT = "copy out"  # shared to global memory
    PRODUCT = "product"  # an MMA: tcgen05.mma, wgmma
    TENSOR_MEMORY = "tensor memory"  # tcgen05.ld, .st
    TENSOR_COPY = "tensor copy"  # tcgen05.cp
    SIGNAL = "signal"  # tcgen05.commit, cp.async.mbarrier.arrive


class Shape(NamedTuple):
    """The shape of a product: rows and columns of D, and whether A is in shared memory. A row of A has 32
    bytes, `products.K_BYTES`."""

    m: int
    n: int
    a_in_shared: bool


@dataclass(slots=True)
class Operation:
    """An asynchronous operation. `size`: the bytes that it moves; `sectors`: those of global memory among
    them. When it lands it contributes to `phases`; the operations `after` land before it. `issuers` warps
    issue it together. Operations of one `stream` run one after the other."""

    kind: Kind
    pc: int
    size: int = 0
    sectors: tuple[int, ...] = ()
    shape: Shape | None = None
    stream: Hashable = None
    phases: list[int] = field(default_factory=list)
    after: tuple[int, ...] = ()
    issuers: int = 1


@dataclass(slots=True)
class CtaTrace:
    """The steps of each warp of CTA `index`, and the warps' roles (`warp_groups.group_names`). `arrivals`: by
    phase, how many contributions end it."""

    index: int
    warps: list[list[Step]]
    roles: list[str]
    operations: list[Operation]
    arrivals: list[int]
