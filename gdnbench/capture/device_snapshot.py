# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a call's tensors at one moment: CPU tensors are copied; device tensors are copied on the
device first.

The caller's own stream copies device tensors into memory of capture. A side stream copies that to the host
when the thread that writes the record asks for it. Tensors of every role need the first copy: the next step
overwrites input buffers, the call writes states in place, and the caller may modify outputs in place. It runs
at the speed of device memory; the device-to-host copy, which takes tens of times as long, then blocks nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gdnbench.capture.adapter import Seen
from gdnbench.capture.packing import Bundle, Fill, copy_fill, pack, packed_bytes
from gdnbench.capture.snapshot import Copied, Form, detached_elements, snapshot
from gdnbench.capture.streams import HostCopy, Streams
from gdnbench.pools import row_sums
from gdnbench_kernels.contract import Call, Operation, Role

ROWS, _SUMS = "/rows", "/sums"  # tensor names have no slash


@dataclass(frozen=True, slots=True)
class DevicePool:
    """Rows of a device pool, gathered before the host knows which rows the call touches.

    All rows that an index tensor names are gathered; indices of padding are clamped into the pool. The host
    picks the touched rows when the indices have arrived. For a pool that the call writes, the sum of every
    row is copied too, for the checksum: 8 bytes a row.
    """

    shape: tuple[int, ...]
    inside: Tensor  # int64 [N] on the device: the gathered rows, ascending
    named: Tensor | None  # int64 [N]: the indices before clamping; None if the host knew `rows`
    rows: Tensor | None
    written: bool

    def fills(self, name: str, pool: Tensor) -> dict[str, Fill]:
        """What to pack for `pool`: the gathered rows, their indices and, if written, the row sums."""
        words = pool.view(torch.uint8) if pool.element_size() == 1 else pool  # fp8 has no index_select
        inside = self.inside

        def gather(view: Tensor) -> None:
            torch.index_select(words, 0, inside, out=view.view(words.dtype))

        shape = (inside.numel(), *pool.shape[1:])
        found = {name: Fill(pool.dtype, shape, pool.device, gather)}
        if self.named is not None:
            found[name + ROWS] = copy_fill(self.named)
        if self.written:
            shape = (pool.shape[0],)
            found[name + _SUMS] = Fill(torch.int64, shape, pool.device, lambda view: row_sums(pool, view))
        return found


Named = dict[tuple[Any, ...], tuple[Tensor, Tensor]]
"""By call and pool: the row indices of the index tensors, ascending, clamped to the pool and unclamped."""


def pool_on_device(
    contract: Operation, name: str, call: Call, streams: Streams, known: Named | None = None
) -> DevicePool:
    """The rows of pool `name` that the call names.

    Waits for the device only if the operation cannot derive the rows from index tensors on the device.
    ValueError if the host knows the rows and one is out of range. `known` saves calls that share index
    tensors from sorting them again; no code of the program may run between such calls.
    """
    pool = call.tensors[name]
    slots, written = pool.shape[0], contract.spec(name).role is Role.MUTATED
    naming = contract.named_rows
    if naming is not None and any(
        streams.holds(call.tensors[n]) for n in naming.tensors if n in call.tensors
    ):
        known = {} if known is None else known
        indices = (call.tensors[one] for one in naming.tensors if one in call.tensors)
        key = (contract.name, name, slots, *((i.data_ptr(), i.dtype, i.shape, i.stride()) for i in indices))
        if key not in known:
            ascending = naming.of(call)[name].long().sort().values
            # Clamp: an index out of range is the kernel's error to report, and must not fail here.
            known[key] = ascending.clamp(0, max(slots - 1, 0)), ascending
        return DevicePool(tuple(pool.shape), *known[key], None, written)
    rows = contract.touched(call)[name].long()
    check_rows(name, rows, slots)
    return DevicePool(tuple(pool.shape), streams.to_device(rows, pool.device), None, rows, written)


def check_rows(name: str, rows: Tensor, slots: int) -> None:
    """ValueError if one of `rows`, ascending on the CPU, is out of range; on a GPU that would end the
    program."""
    if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < slots:
        raise ValueError(f"the call names row {int(rows[0])} to {int(rows[-1])} of {name}; it has {slots}")


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """A snapshot before packing: `here` is complete on the CPU; `fills` is packed once there is room."""

    here: Mapping[str, Copied]
    forms: Mapping[str, Form]
    pools: frozenset[str]  # pools of which rows are packed
    fills: Mapping[str, Fill]

    @property
    def nbytes(self) -> int:
        """Bytes that packing takes on the device."""
        return packed_bytes(self.fills)

    def pack(self) -> Packed:
        return Packed(self.here, self.forms, self.pools, pack(self.fills))


@dataclass(frozen=True, slots=True)
class Packed:
    here: Mapping[str, Copied]
    forms: Mapping[str, Form]
    pools: frozenset[str]
    bundles: list[Bundle]

    @property
    def nbytes(self) -> int:
        """Bytes of capture's copies on the device."""
        return sum(bundle.memory.nbytes for bundle in self.bundles)

    def clone(self) -> Packed:
        """Copies, queued on the current stream."""
        return Packed(self.here, self.forms, self.pools, [bundle.clone() for bundle in self.bundles])

    def send(self, streams: Streams) -> Arriving:
        """Start the device-to-host copies, ordered behind the work queued on the current stream so far."""
        sent = [Parcel(streams.to_host(bundle.memory), bundle, self) for bundle in self.bundles]
        return Arriving(dict(self.here), {}, sent)


@dataclass(frozen=True, slots=True)
class Parcel:
    way: HostCopy
    bundle: Bundle
    packed: Packed

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' elements."""
        parts = ((name, part) for name, part in self.bundle.parts.items() if name in self.packed.forms)
        return sum(part.dtype.itemsize * math.prod(part.shape) for _, part in parts)

    def open(self, found: Arriving) -> None:
        """Wait for the copy and add its tensors to `found`."""
        forms = self.packed.forms
        for name, data in self.bundle.views(self.way.arrived()).items():
            if name not in forms:
                found.beside[name] = data
            elif name in self.packed.pools:
                found.tensors[name] = forms[name].rows(data)
            else:
                found.tensors[name] = forms[name].copied(data)


@dataclass(slots=True)
class Arriving:
    """Tensors on the host or being copied to it. `beside`: indices and sums of pool rows."""

    tensors: dict[str, Copied] = field(default_factory=dict)
    beside: dict[str, Tensor] = field(default_factory=dict)
    coming: list[Parcel] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' elements, including those not yet arrived."""
        here = sum(copied.data.nbytes for copied in self.tensors.values())
        return here + sum(parcel.nbytes for parcel in self.coming)

    def join(self, other: Arriving) -> None:
        self.tensors |= other.tensors
        self.beside |= other.beside
        self.coming += other.coming

    def begin(self) -> None:
        """Queue the copies."""
        for parcel in self.coming:
            parcel.way.begin()

    def arrive(self) -> None:
        """Wait on the host until all copies are complete."""
        for parcel in self.coming:
            parcel.open(self)
        self.coming = []

    def named(self, pool: str) -> Tensor | None:
        return self.beside.get(pool + ROWS)

    def sums(self, pool: str) -> Tensor | None:
        return self.beside.get(pool + _SUMS)


class PoolFills(Protocol):
    """How the rows of a pool are packed."""

    def fills(self, name: str, pool: Tensor) -> dict[str, Fill]: ...


def snapshot_on_device(
    seen: Mapping[str, Seen], pools: Mapping[str, PoolFills], streams: Streams
) -> DeviceSnapshot:
    """A snapshot of `seen`. TypeError for tensors whose elements are not in this process."""
    here: dict[str, Copied] = {}
    forms: dict[str, Form] = {}
    fills: dict[str, Fill] = {}
    for name, one in seen.items():
        if not streams.holds(one.tensor):
            # Copy: the record is written after the device copies, when the caller may have reused the tensor.
            here[name] = snapshot(one, reused=True)
            continue
        tensor, forms[name] = detached_elements(one.tensor), Form.from_seen(one)
        fills |= pools[name].fills(name, tensor) if name in pools else {name: copy_fill(tensor)}
    return DeviceSnapshot(here, forms, frozenset(pools), fills)
