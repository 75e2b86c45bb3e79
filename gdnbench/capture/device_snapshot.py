"""A call's tensors as they were at one moment: those of the CPU copied, those of a device on their way.

On a device they are copied into memory of ours by the caller's own stream, and from there to the host on a
side stream, at the bidding of the thread that writes the record. The first copy is needed for every role:
inputs are buffers that the next step fills, states are written in place by the call itself, and outputs may
be worked on in place by whoever gets them. It runs at the speed of the device's memory; the way to the host,
which takes tens of times as long, is then no one's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gdnbench.capture.adapter import Seen
from gdnbench.capture.packing import Bundle, Fill, copied, pack, packed_bytes
from gdnbench.capture.snapshot import Copied, Form, elements, snapshot
from gdnbench.capture.streams import Streams, Way
from gdnbench.pools import row_sums
from gdnbench_kernels.contract import Call, Operation, Role

_ROWS, _SUMS = "/rows", "/sums"  # no tensor's name has a slash


@dataclass(frozen=True, slots=True)
class DevicePool:
    """Rows of a pool on a device, copied before anyone on the host knows which the call touches.

    All rows that an index tensor names are gathered, those of padding from wherever the clamped number falls;
    the host picks the touched ones when the numbers have arrived. Of a pool that is written to, every row's
    sum for the checksum goes along: 8 bytes a row.
    """

    shape: tuple[int, ...]
    inside: Tensor  # int64 [N], on the device: the rows gathered, ascending
    named: Tensor | None  # int64 [N]: their numbers before clamping; None where the host knew `rows`
    rows: Tensor | None
    written: bool

    def fills(self, name: str, pool: Tensor) -> dict[str, Fill]:
        """What to pack of `pool`, and beside it under names of our own."""
        words = pool.view(torch.uint8) if pool.element_size() == 1 else pool  # fp8 has no index_select
        inside = self.inside

        def gather(view: Tensor) -> None:
            torch.index_select(words, 0, inside, out=view.view(words.dtype))

        shape = (inside.numel(), *pool.shape[1:])
        found = {name: Fill(pool.dtype, shape, pool.device, gather)}
        if self.named is not None:
            found[name + _ROWS] = copied(self.named)
        if self.written:
            shape = (pool.shape[0],)
            found[name + _SUMS] = Fill(torch.int64, shape, pool.device, lambda view: row_sums(pool, view))
        return found


Named = dict[tuple[Any, ...], tuple[Tensor, Tensor]]
"""Rows that index tensors name, ascending, clamped to the pool and as they are."""


def pool_on_device(
    contract: Operation, name: str, call: Call, streams: Streams, known: Named | None = None
) -> DevicePool:
    """The rows of pool `name` that the call names. Waits for the device only if the operation cannot say them
    without. ValueError if the host knows the rows and one is not there.

    `known` spares calls that share index tensors from sorting them again; nothing of the program's may run
    between such calls.
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
            # A bad number is the call's to stumble over. Ours would be counted as the program's fault.
            known[key] = ascending.clamp(0, max(slots - 1, 0)), ascending
        return DevicePool(tuple(pool.shape), *known[key], None, written)
    rows = contract.touched(call)[name].long()
    check_rows(name, rows, slots)
    return DevicePool(tuple(pool.shape), streams.to_device(rows, pool.device), None, rows, written)


def check_rows(name: str, rows: Tensor, slots: int) -> None:
    """ValueError if one of `rows`, ascending on the CPU, is not there: a GPU would stop the program at it."""
    if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < slots:
        raise ValueError(f"the call names row {int(rows[0])} to {int(rows[-1])} of {name}; it has {slots}")


@dataclass(frozen=True, slots=True)
class Moment:
    """`here` is complete; what `fills` says is to be packed, by whoever has seen that there is room."""

    here: Mapping[str, Copied]
    forms: Mapping[str, Form]
    pools: frozenset[str]  # of which rows are packed
    fills: Mapping[str, Fill]

    @property
    def nbytes(self) -> int:
        """Bytes of ours on the device."""
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
        """Bytes of ours on the device."""
        return sum(bundle.memory.nbytes for bundle in self.bundles)

    def clone(self) -> Packed:
        """Copies, queued on the current stream."""
        return Packed(self.here, self.forms, self.pools, [bundle.clone() for bundle in self.bundles])

    def send(self, streams: Streams) -> Arriving:
        """The way to the host, behind what the current stream has been given so far."""
        sent = [Parcel(streams.to_host(bundle.memory), bundle, self) for bundle in self.bundles]
        return Arriving(dict(self.here), {}, sent)


@dataclass(frozen=True, slots=True)
class Parcel:
    way: Way
    bundle: Bundle
    packed: Packed

    @property
    def nbytes(self) -> int:
        """Of the elements of tensors."""
        parts = ((name, part) for name, part in self.bundle.parts.items() if name in self.packed.forms)
        return sum(part.dtype.itemsize * math.prod(part.shape) for _, part in parts)

    def open(self, found: Arriving) -> None:
        """Wait for the copy and put what is in it into `found`."""
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
    """Tensors that are here or on their way. `beside`: rows' numbers and sums."""

    tensors: dict[str, Copied] = field(default_factory=dict)
    beside: dict[str, Tensor] = field(default_factory=dict)
    coming: list[Parcel] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Of the elements of tensors, here or not."""
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
        """Wait on the host until all are here."""
        for parcel in self.coming:
            parcel.open(self)
        self.coming = []

    def named(self, pool: str) -> Tensor | None:
        return self.beside.get(pool + _ROWS)

    def sums(self, pool: str) -> Tensor | None:
        return self.beside.get(pool + _SUMS)


def moment(seen: Mapping[str, Seen], pools: Mapping[str, DevicePool], streams: Streams) -> Moment:
    """What is to be copied of `seen`. TypeError for tensors whose elements are not here."""
    here: dict[str, Copied] = {}
    forms: dict[str, Form] = {}
    fills: dict[str, Fill] = {}
    for name, one in seen.items():
        if not streams.holds(one.tensor):
            # The record is written behind the device's, when the caller may long have used it again.
            here[name] = snapshot(one, reused=True)
            continue
        tensor, forms[name] = elements(one.tensor), Form.of(one)
        fills |= pools[name].fills(name, tensor) if name in pools else {name: copied(tensor)}
    return Moment(here, forms, frozenset(pools), fills)
