# SPDX-License-Identifier: Apache-2.0
"""The interface of a compiled warp, for the modules that execute what compiled code does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gdnbench.sim.compiler.layout import Layout
from gdnbench.sim.compiler.runtime_calls import Read, Service
from gdnbench.sim.machine.cta import Cta
from gdnbench.sim.machine.engine_interface import Lanes, Warp
from gdnbench.sim.ptx.ir import Instruction, Kernel


class CompiledKernel(Protocol):
    """A kernel ready to run. By block index: `services` are the instructions that Python executes, `masks`
    the member masks of collectives."""

    @property
    def services(self) -> Mapping[int, Service]: ...

    @property
    def masks(self) -> Mapping[int, Read]: ...

    def instruction(self, block: int) -> Instruction:
        """The first instruction of a block."""
        ...


class CompiledWarp(Protocol):
    """`state` is the memory that compiled code reads and writes, as uint8; `cells` is the same as uint32,
    `longs` as int64. `places` is the block of each lane, int32[32]."""

    cta: Cta
    warp: Warp
    state: npt.NDArray[np.uint8]
    cells: memoryview
    longs: memoryview
    places: npt.NDArray[np.int32]

    @property
    def engine(self) -> CompiledKernel: ...

    @property
    def kernel(self) -> Kernel: ...

    @property
    def layout(self) -> Layout: ...

    def report_collective(self, ins: Instruction, lanes: Lanes) -> None:
        """Report to the checker, if there is one, lanes that arrived at a collective while no compiled code
        ran."""
        ...

    def complete(self, block: int, mask: int) -> None:
        """The lanes of `mask` have executed the instruction at `block` outside of compiled code."""
        ...
