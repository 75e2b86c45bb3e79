# SPDX-License-Identifier: Apache-2.0
"""Loads, stores and atomics: which cells an instruction accesses and how (read, write, strong, acquire,
release), from its opcode, its suffixes and its lanes' addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gdnbench.sim.checker.events import Access, is_strong
from gdnbench.sim.checker.lanes import MANY
from gdnbench.sim.checker.vector_clocks import SPACES
from gdnbench.sim.machine.engine_interface import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_SIZE
from gdnbench.sim.machine.observer import Addresses, Masks
from gdnbench.sim.ptx import forms, wmma
from gdnbench.sim.ptx.ir import Instruction, Kernel
from gdnbench.sim.ptx.literals import width_of

Bytes = npt.NDArray[np.int64]
ByLane = npt.NDArray[np.int32]

_SHARED = ("shared", "shared::cta", "shared::cluster")
ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class AccessForm:
    """How an instruction accesses memory: `width` bytes by each of `lanes` lanes, in `space`, which is empty
    if addresses are generic. `acquires`, `releases`: by itself, without a fence. `strong`: it can be part of
    a release or acquire pattern; `cluster_scope`: with threads of other CTAs of the cluster too; `gpu_scope`:
    with those of all CTAs. `updates`: it is an atomic
    read-modify-write. `collective`: the warp executes it as one."""

    access: Access
    width: int
    lanes: int
    space: str
    strong: bool = False
    reads: bool = True
    writes: bool = False
    acquires: bool = False
    releases: bool = False
    collective: bool = False
    gpu_scope: bool = False
    cluster_scope: bool = False
    updates: bool = False


def has_gpu_scope(ins: Instruction) -> bool:
    """Whether the scope of a strong access or a fence includes other CTAs. So does an instruction that names
    no scope (PTX ISA, "Scope", "atom", "ld")."""
    return not ins.has("cta", "cluster")


def has_cluster_scope(ins: Instruction) -> bool:
    """The same for the CTAs of the cluster."""
    return not ins.has("cta")


def access_form(ins: Instruction) -> AccessForm | None:
    """The form of an instruction; None if it accesses neither shared nor global memory."""
    if not ins.form.in_engine or ins.has("local", "param", "param::entry"):
        return None
    space = "shared" if ins.has(*_SHARED) else "global" if ins.has("global", "const") else ""
    reads = ins.form.access in (forms.Access.READ, forms.Access.UPDATE)
    if ins.form.by_rows:
        matrices = int(next(mod for mod in ins.mods if mod in ("x1", "x2", "x4"))[1:])
        access = Access.READ if reads else Access.WRITE
        return AccessForm(access, ROW_BYTES, 8 * matrices, space, collective=True)
    if ins.form.fragment:  # the elements belong to the warp, whichever lane moves them
        access = Access.READ if reads else Access.WRITE
        return AccessForm(
            access, wmma.unit_bytes(ins), 32, space, reads=reads, writes=not reads, collective=True
        )
    width = width_of(ins.types[-1]) // 8 * ins.vec
    if ins.form.atomic:
        return AccessForm(
            Access.ATOMIC,
            width,
            32,
            space,
            strong=True,
            reads=reads,
            writes=True,
            acquires=reads and ins.has("acquire", "acq_rel"),
            releases=ins.has("release", "acq_rel"),
            gpu_scope=has_gpu_scope(ins),
            cluster_scope=has_cluster_scope(ins),
            updates=True,
        )
    strong = is_strong(ins)
    access = Access.READ if reads else Access.WRITE
    return AccessForm(
        access,
        width,
        32,
        space,
        strong,
        reads,
        not reads,
        ins.has("acquire"),
        ins.has("release"),
        gpu_scope=strong and has_gpu_scope(ins),
        cluster_scope=strong and has_cluster_scope(ins),
    )


class KernelAccesses:
    """The forms of a kernel's instructions, by pc. `cell_bytes`, by memory, is the size of a shadow cell: the
    smallest access of the kernel, at most 4 bytes, so that no access covers a part of a cell."""

    def __init__(self, kernel: Kernel) -> None:
        self.by_pc = [access_form(ins) for ins in kernel.instructions]
        self.cell_bytes = {space: self._size(space) for space in SPACES}

    def _size(self, space: str) -> int:
        forms = (form for form in self.by_pc if form is not None)
        return min([4, *(form.width for form in forms if form.space in ("", space))])


def split_by_space(
    form: AccessForm, masks: Masks, addresses: Addresses
) -> Iterator[tuple[str, Bytes, ByLane]]:
    """Yields (memory, byte addresses in it, the lane of each address) for some executions of an instruction.
    The row of a matrix belongs to all lanes (MANY)."""
    if form.lanes < masks.shape[1]:
        masks, addresses = masks[:, : form.lanes], addresses[:, : form.lanes]
    there = np.flatnonzero(masks)
    if not there.size:
        return
    found, lanes = addresses.reshape(-1)[there].astype(np.int64), (there % masks.shape[1]).astype(np.int32)
    if form.collective:
        lanes = np.full_like(lanes, MANY)
    if form.space:
        yield form.space, found, lanes
        return
    in_shared = (found >= SHARED_WINDOW) & (found < SHARED_WINDOW + WINDOW_SIZE)
    if in_shared.any():
        yield "shared", found[in_shared] - SHARED_WINDOW, lanes[in_shared]
    elsewhere = in_shared.copy()
    for window in (LOCAL_WINDOW, PARAM_WINDOW):
        elsewhere |= (found >= window) & (found < window + WINDOW_SIZE)
    if not elsewhere.all():
        yield "global", found[~elsewhere], lanes[~elsewhere]


def addresses_collide(masks: Masks, addresses: Addresses) -> bool:
    """Whether two of the accesses have the same address."""
    found = addresses[masks]
    return np.unique(found).size < found.size


def single_lane(lanes: ByLane) -> int:
    """The lane if all accesses are of one lane, else MANY."""
    first = int(lanes[0])
    return first if (lanes == first).all() else MANY


def lanes_of_cells(lanes: ByLane, cells: int) -> ByLane:
    """The lane of each of `cells` cells; every access covers equally many."""
    return lanes if len(lanes) == cells else np.repeat(lanes, cells // len(lanes))


def cells_of_accesses(starts: Bytes, width: int, size: int) -> Bytes:
    """The cells, of `size` bytes, of accesses of `width` bytes at the addresses `starts`."""
    if width <= size:
        return starts // size
    return (starts[:, None] // size + np.arange(width // size)).reshape(-1)


def cells_of_bytes(found: Bytes, size: int) -> Bytes:
    """The cells, of `size` bytes, that contain some of the byte addresses `found`. Fast for runs of whole
    cells."""
    if size == 1 or not found.size:
        return found
    if found.size % size == 0:
        first, last = found[::size], found[size - 1 :: size]
        if ((last - first == size - 1) & (first % size == 0)).all():
            return first // size
    return np.unique(found // size)
