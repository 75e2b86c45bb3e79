# SPDX-License-Identifier: Apache-2.0
"""Detects NaN and infinity in the inputs, outputs and states of a call.

The first test is the minimum and maximum of each tensor: both are NaN if any element is. On a device this
takes one reduction and sends 16 bytes to the host. If the minimum or maximum is not finite, the host looks at
the elements that count: not rows of padding sequences, whose content is undefined, nor slots that the call
does not touch, nor stale columns of an indexer's logits.

-inf is legal where the contract allows it: gates in log space, attention sinks, the logarithm of an empty
sum. Pools that are only read are not checked: pages hold stale rows, and non-finite rows that are attended to
show in o.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gdnbench.capture.device_snapshot import Parcel
from gdnbench.capture.inflight import PendingRecord
from gdnbench.capture.snapshot import Copied
from gdnbench.capture.streams import HostCopy, Streams
from gdnbench.ops import operation
from gdnbench_kernels.contract import Call, Operation, Role, TensorSpec


@dataclass(frozen=True, slots=True)
class Flags:
    """Minima and maxima on their way from a device: float64 [n, 2] for n tensors."""

    specs: tuple[TensorSpec, ...]
    way: HostCopy

    def raised(self) -> bool:
        """Wait for them; whether one is not finite."""
        found = self.way.arrived().view(torch.float64).view(-1, 2).tolist()
        return any(_odd(spec, *pair) for spec, pair in zip(self.specs, found, strict=True))


def flags_on_device(record: PendingRecord, streams: Streams) -> list[Flags]:
    """Queue, on the current stream, the minima and maxima of capture's own copies of a record's tensors."""
    assert record.device is not None
    contract = operation(record.info.op)
    parcels = (*record.device.before.coming, *record.device.after.coming)
    return [flags for parcel in parcels if (flags := _of_parcel(contract, parcel, streams)) is not None]


def _of_parcel(contract: Operation, parcel: Parcel, streams: Streams) -> Flags | None:
    views = parcel.bundle.views(parcel.bundle.memory)
    found = [(spec, view) for name, view in views.items() if (spec := _spec(contract, name, view))]
    if not found:
        return None
    extremes = torch.stack([_extremes(view) for _, view in found])
    return Flags(tuple(spec for spec, _ in found), streams.to_host(extremes.view(torch.uint8).view(-1)))


def nonfinite(record: PendingRecord, flags: Iterable[Flags]) -> tuple[str, ...]:
    """Names of the tensors with NaN or infinity, in the contract's order.

    If the `flags` of a record on a device are raised, this waits for its copies and raises ValueError as
    `PendingRecord.arrive` does. NotCaptured if the adapter's `finish` refuses the record.
    """
    device = record.device
    if device is None:
        raised = any(_raised(record.info.op, some) for some in (record.before, record.after))
    else:
        here = (device.before, device.after)
        raised = any(one.raised() for one in flags)
        raised = raised or any(_raised(record.info.op, some.tensors) for some in here)
    if not raised:
        return ()
    record.arrive()
    contract = operation(record.info.op)
    call = Call(_settled(record), record.info.scalars, record.info.conventions)
    moments = (record.before, record.after)
    return tuple(
        spec.name
        for spec in contract.tensors
        if any(spec.name in some and _in(contract, call, record, spec, some[spec.name]) for some in moments)
    )


def _settled(record: PendingRecord) -> dict[str, Tensor]:
    """The inputs, with index tensors as they will be stored: an engine's null slot becomes padding."""
    given = {name: copied.data for name, copied in record.before.items()}
    finish = record.observation.finish
    finished = given if finish is None else finish(dict(given))[0]
    settled = given | {name: data for name, data in finished.items() if not data.is_floating_point()}
    return {name: data for name, data in settled.items() if "." not in name}  # without an adapter's others


def _raised(op: str, some: Mapping[str, Copied]) -> bool:
    contract = operation(op)
    return any(
        _has_odd(spec, copied.data)
        for name, copied in some.items()
        if (spec := _spec(contract, name, copied.data)) is not None
    )


def _spec(contract: Operation, name: str, data: Tensor) -> TensorSpec | None:
    """The tensor's spec if the tensor is checked; else None."""
    if not data.is_floating_point() or not data.numel():
        return None
    return _looked_at(contract.name).get(name)


@cache
def _looked_at(op: str) -> dict[str, TensorSpec]:
    stale = {spec.name for spec in operation(op).tensors if spec.pool_index and spec.role is Role.INPUT}
    return {spec.name: spec for spec in operation(op).tensors if spec.name not in stale}


def _extremes(data: Tensor) -> Tensor:
    """float64 [2]: minimum and maximum of a contiguous tensor; both NaN if any element is."""
    least, most = _wide(data).aminmax()
    return torch.stack((least, most)).double()


def _has_odd(spec: TensorSpec, data: Tensor) -> bool:
    """Whether a CPU tensor has a value that is not finite and not legal."""
    least, most = _wide(data).aminmax()
    return _odd(spec, least.item(), most.item())


def _wide(data: Tensor) -> Tensor:
    return data.float() if data.element_size() == 1 else data  # torch has no aminmax for fp8


def _odd(spec: TensorSpec, least: float, most: float) -> bool:
    return math.isnan(least) or most == math.inf or (least == -math.inf and not spec.minus_infinity)


def _in(contract: Operation, call: Call, record: PendingRecord, spec: TensorSpec, copied: Copied) -> bool:
    """Whether such a value is in a row that counts."""
    if _spec(contract, spec.name, copied.data) is None:
        return False
    data = _wide(copied.data)
    stale = _stale_elements(contract, call, spec, data)
    if stale is not None:
        data = data.masked_fill(stale, 0)
    rows = _rows(contract, call, record, spec)
    if rows is not None:
        data = data.index_select(0, rows)
    return bool(data.numel()) and _has_odd(spec, data)


def _stale_elements(contract: Operation, call: Call, spec: TensorSpec, data: Tensor) -> Tensor | None:
    """bool, of the shape of `data`: elements that may hold anything, of an output or of what a set is
    selected from; None if there are none."""
    if spec.role is Role.OUTPUT:
        return contract.stale(call, spec.name, tuple(data.shape))
    for select in contract.selections.values():
        chosen = select(call)
        if chosen.values is call.tensors.get(spec.name):
            column = torch.arange(data.shape[1])
            first = chosen.first.unsqueeze(1)
            return (column < first) | (column >= first + chosen.count.unsqueeze(1))
    return None


def _rows(contract: Operation, call: Call, record: PendingRecord, spec: TensorSpec) -> Tensor | None:
    """Rows of axis 0 that count; None: all of them."""
    if spec.pool_index is not None:
        kept, touched = record.pools[spec.name].rows, contract.touched(call)[spec.name].long()
        return touched if kept is None else torch.searchsorted(kept.long(), touched)
    axis = spec.axes_in(call.conventions)[0]
    for output in contract.tensors:
        if output.role is Role.OUTPUT and output.axes_in(call.conventions)[0] == axis:
            rows = [
                torch.arange(one.start, one.stop) for one in contract.partition(call, output.name).regions
            ]
            return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
    return None
