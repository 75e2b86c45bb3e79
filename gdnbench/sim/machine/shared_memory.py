# SPDX-License-Identifier: Apache-2.0
"""Shared memory of a CTA, and of the CTAs of a cluster, as bytes with bounds checks.

The shared memories of a cluster are parts of one array: the CTA of rank r has the addresses from
r * CLUSTER_STRIDE on. So a shared address says which CTA it belongs to.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from gdnbench.sim.errors import FaultKind, KernelFault
from gdnbench.sim.machine.engine_interface import CLUSTER_STRIDE, LANES, SHARED_BASE, Lanes, Values
from gdnbench.sim.machine.memory import POISON, Bytes, Shadow, Skip, check_aligned, raise_fault
from gdnbench.sim.machine.shadow_cells import Cells


def lazy_zeros(size: int) -> Bytes:
    """`size` zero bytes, of which only pages that are accessed take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # private: a forked process changes its own copy
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


class ClusterArrays:
    """The bytes of a cluster's shared memories, with their shadows, all indexed by address (`SharedMemory`).
    `alive` has bit r set while the CTA of rank r runs."""

    def __init__(self, ctas: int, size: int) -> None:
        self.ctas = ctas
        self.size = size  # of each CTA
        self.bytes = lazy_zeros(ctas * CLUSTER_STRIDE)
        self.valid: Shadow = lazy_zeros(ctas * CLUSTER_STRIDE).view(np.bool_)
        self.phase: npt.NDArray[np.int64] = lazy_zeros(ctas * CLUSTER_STRIDE).view(np.int64)
        self.shadows: Cells | None = None
        self.alive: npt.NDArray[np.uint64] = np.array([(1 << ctas) - 1], np.uint64)
        self._alive_cell = self.alive.data.cast("B").cast("Q")

    def runs(self, rank: int) -> bool:
        """Whether the CTA of this rank has not exited."""
        return bool(self._alive_cell[0] >> rank & 1)


class SharedMemory:
    """The shared memory of one CTA. `bytes[address]` is the byte at `address`; the system owns the first
    kilobyte.

    `valid` marks the bytes that were written. `track` says whether the engine maintains it and reads check
    it: the interpreter does, compiled code does not. mbarriers are stored in these bytes too: `phase[address
    // 8]` is the number of phases that the mbarrier there has completed, -1 where there is none.

    The CTAs of a cluster share the arrays. The CTA of rank r has those from `origin`, r * CLUSTER_STRIDE, on:
    its accesses are legal from `first` to `end`. `own_words` and `own_phase` are its parts.
    """

    def __init__(
        self,
        size: int,
        *,
        track: bool,
        skip: Skip | None = None,
        cluster: ClusterArrays | None = None,
        rank: int = 0,
    ) -> None:
        self.size = size
        self.origin = rank * CLUSTER_STRIDE
        self.first = self.origin + SHARED_BASE
        self.end = self.first + size
        self.track = track
        self.skip = raise_fault if skip is None else skip
        room = -(-(SHARED_BASE + size) // 128) * 128
        own = slice(self.origin, self.origin + room)
        self.bytes: Bytes = np.empty(room, np.uint8) if cluster is None else cluster.bytes
        self.valid: Shadow = np.zeros(room, np.bool_) if cluster is None else cluster.valid
        self.phase: npt.NDArray[np.int64] = (
            np.empty(room // 8, np.int64) if cluster is None else cluster.phase
        )
        self.units = self.bytes.view("V16")
        self.words: npt.NDArray[np.uint64] = self.bytes.view(np.uint64)
        self.own_words = self.bytes[own].view(np.uint64)
        self.own_phase = self.phase[own.start // 8 : own.stop // 8]
        self.bytes[own] = POISON
        self.own_phase[:] = -1
        # The same cells as a memoryview, which is several times as fast to read one by one.
        self.word_cells = self.bytes.data.cast("Q")
        self.phase_cells = self.phase.data.cast("B").cast("q")
        self.shadows: Cells | None = None
        self._cluster = cluster

    def add_shadows(self) -> None:
        """Have a cell for each of `bytes`, which the CTAs of a cluster share too."""
        cluster = self._cluster
        if cluster is None:
            self.shadows = np.zeros(len(self.bytes), np.complex128)
            return
        if cluster.shadows is None:
            cluster.shadows = lazy_zeros(16 * len(self.bytes)).view(np.complex128)
        self.shadows = cluster.shadows

    def check(self, address: int, size: int) -> None:
        """Raises KernelFault unless [address, address + size) is inside the CTA's shared memory."""
        if address < self.first or address + size > self.end:
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, self._describe(address, size))

    def view(self, address: int, size: int) -> Bytes:
        """The bytes [address, address + size) as a writable view; a writer marks them with `written`."""
        self.check(address, size)
        return self.bytes[address : address + size]

    def written(self, address: int, size: int) -> None:
        """Mark bytes as initialised."""
        if self.track:
            self.valid[address : address + size] = True

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        check_aligned(addresses, lanes, width)
        wanted = addresses[lanes]
        bad = (wanted < np.uint64(self.first)) | (wanted > np.uint64(max(self.end - width, 0)))
        if bad.any():
            raise KernelFault(FaultKind.OUT_OF_BOUNDS, self._describe(int(wanted[bad.argmax()]), width))
        return wanted.astype(np.intp)[:, None] + np.arange(width)

    def load(self, addresses: Values, lanes: Lanes, width: int) -> Bytes:
        out = np.zeros((LANES, width), np.uint8)
        if lanes.any():
            where = self._locate(addresses, lanes, width)
            if self.track and not self.valid[where].all():
                message = f"shared address {int(where[~self.valid[where]][0]):#x} was never written"
                self.skip(KernelFault(FaultKind.UNINITIALISED, message))
            out[lanes] = self.bytes[where]
        return out

    def store(self, addresses: Values, lanes: Lanes, data: Bytes) -> None:
        if lanes.any():
            where = self._locate(addresses, lanes, data.shape[1])
            self.bytes[where] = data[lanes]
            if self.track:
                self.valid[where] = True

    def check_lanes(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Raises the faults of `store`."""
        if lanes.any():
            self._locate(addresses, lanes, width)

    def poison(self, addresses: Values, lanes: Lanes, width: int) -> None:
        """Fill the destination of an asynchronous copy in flight with poison. Raises the faults of
        `store`."""
        if lanes.any():
            self.bytes[self._locate(addresses, lanes, width)] = POISON

    def _describe(self, address: int, size: int) -> str:
        return (
            f"{size} bytes at shared address {address:#x}: the CTA has {self.size} bytes, "
            f"{self.first:#x} to {self.end:#x}"
        )


def rank_of(address: int) -> int:
    """The rank of the CTA that a shared address belongs to; 0 without a cluster."""
    return address // CLUSTER_STRIDE


def in_cta(address: int, rank: int) -> int:
    """The address in the CTA of `rank` that corresponds to a shared address (PTX ISA, "mapa")."""
    return address % CLUSTER_STRIDE + rank * CLUSTER_STRIDE


class ClusterMemory(SharedMemory):
    """The shared memory of all CTAs of a cluster, the window shared::cluster, as one of them accesses it.
    Raises KernelFault for an access to a CTA that has exited."""

    def __init__(self, own: SharedMemory, cluster: ClusterArrays) -> None:
        # The arrays of `own`, without filling them again.
        self.__dict__.update(own.__dict__)
        self.cluster = cluster

    def check(self, address: int, size: int) -> None:
        """Raises KernelFault unless the bytes are inside the shared memory of one CTA that runs."""
        rank, offset = rank_of(address), address % CLUSTER_STRIDE
        if not SHARED_BASE <= offset <= SHARED_BASE + self.size - size or not self.cluster.runs(rank):
            raise self._fault(address, size)

    def _locate(self, addresses: Values, lanes: Lanes, width: int) -> npt.NDArray[np.intp]:
        check_aligned(addresses, lanes, width)
        wanted = addresses[lanes]
        for rank in np.unique(wanted // np.uint64(CLUSTER_STRIDE)).tolist():
            if not self.cluster.runs(rank):
                raise self._fault(int(wanted[wanted // np.uint64(CLUSTER_STRIDE) == rank][0]), width)
        offset = wanted % np.uint64(CLUSTER_STRIDE)
        last = max(SHARED_BASE + self.size - width, 0)
        bad = (offset < np.uint64(SHARED_BASE)) | (offset > np.uint64(last))
        if bad.any():
            raise self._fault(int(wanted[bad.argmax()]), width)
        return wanted.astype(np.intp)[:, None] + np.arange(width)

    def _fault(self, address: int, size: int) -> KernelFault:
        rank = rank_of(address)
        what = f"{size} bytes at shared address {address:#x}"
        if rank >= self.cluster.ctas:
            ctas = self.cluster.ctas
            return KernelFault(
                FaultKind.OUT_OF_BOUNDS, f"{what}, of a CTA of rank {rank}: the cluster has {ctas} CTAs"
            )
        if not self.cluster.runs(rank):
            return KernelFault(FaultKind.EXITED, f"{what}: the CTA of rank {rank} in the cluster has exited")
        first = rank * CLUSTER_STRIDE + SHARED_BASE
        has = f"that CTA has {self.size} bytes, {first:#x} to {first + self.size:#x}"
        return KernelFault(FaultKind.OUT_OF_BOUNDS, f"{what} of the CTA of rank {rank}: {has}")
