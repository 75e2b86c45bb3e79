# SPDX-License-Identifier: Apache-2.0
"""What a micro-kernel is: PTX text, its parameters in order, and which buffers hold its answer.

One description serves the recording on a GPU (`scripts/sim_silicon.py --record`) and the replay in the
simulator, so both run the same text on the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.sim.silicon.tensormap import TensorMap

# The PTX version that introduced the newest instruction used here (sub-byte conversions aside).
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Global memory with its initial contents; `labels` makes it an answer, one name per row to report by.

    One that is no `argument` is reached through a tensor map only.
    """

    name: str
    data: Array
    labels: tuple[str, ...] = ()
    argument: bool = True

    @property
    def is_result(self) -> bool:
        return bool(self.labels)


@dataclass(frozen=True, slots=True)
class TensorMapOf:
    """A 128-byte `.param` that describes the named buffer to the TMA unit."""

    name: str
    buffer: str
    map: TensorMap


Parameter = Buffer | TensorMapOf
Dim3 = tuple[int, int, int]


def shape(extent: int | Dim3) -> Dim3:
    return (extent, 1, 1) if isinstance(extent, int) else extent


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """A launch: a pointer per Buffer that is an argument, 128 bytes per TensorMapOf, in their order; in
    clusters of `cluster` CTAs, each with `smem` bytes of dynamic shared memory.

    `name` is the entry, unless `entry` names another. `dependent` is an entry that is launched after it with
    programmatic stream serialisation and the same arguments.
    """

    name: str
    ptx: str
    params: tuple[Parameter, ...]
    grid: int | Dim3
    block: int
    cluster: int | Dim3 = 1
    smem: int = 0
    entry: str = ""
    dependent: str = ""

    @property
    def grid_shape(self) -> Dim3:
        return shape(self.grid)

    @property
    def cluster_shape(self) -> Dim3:
        return shape(self.cluster)

    @property
    def entries(self) -> tuple[str, ...]:
        """In the order of their launches."""
        return (self.entry or self.name, *((self.dependent,) if self.dependent else ()))

    def buffers(self) -> Iterator[Buffer]:
        return (p for p in self.params if isinstance(p, Buffer))

    def results(self) -> Iterator[Buffer]:
        return (p for p in self.buffers() if p.is_result)

    def tensor_maps(self) -> Iterator[TensorMapOf]:
        return (p for p in self.params if isinstance(p, TensorMapOf))

    def fingerprint(self) -> str:
        """Of all that the answer depends on: a recording of another text or other inputs is no evidence."""
        clusters = "" if self.cluster == 1 else f" {self.cluster}"
        more = (self.smem, self.entry, self.dependent)
        others = f" {more}" if any(more) else ""
        digest = hashlib.sha256(f"{self.grid} {self.block}{clusters}{others}\n{self.ptx}".encode())
        for param in self.params:
            if isinstance(param, Buffer):
                digest.update(np.ascontiguousarray(param.data).tobytes())
            else:
                digest.update(repr(param).encode())
        return digest.hexdigest()


def entry(name: str, params: str, body: str) -> str:
    """A PTX module with one kernel; registers of every width are declared once, by count."""
    return f"{HEADER}\n.visible .entry {name}({params})\n{{\n{body}}}\n"
