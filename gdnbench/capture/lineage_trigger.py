# SPDX-License-Identifier: Apache-2.0
"""The trigger `--on-lineage`: keeps calls that read another state than the one their request last wrote.

Digests of a call's states are computed from capture's own copies, on the device if they are there, and sent
to the host ahead of the copies, which stay where they are unless the call is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gdnbench.capture.access_collector import writes_elsewhere
from gdnbench.capture.access_rows import AccessRows, Chain
from gdnbench.capture.adapter import Observation, Reduced
from gdnbench.capture.device_snapshot import ROWS, Arriving
from gdnbench.capture.digest_record import DigestRecord, digests_of_copy, is_paged, row_form
from gdnbench.capture.inflight import PendingRecord
from gdnbench.capture.kept_states import KEPT
from gdnbench.capture.packing import Bundle, Fill, copy_fill, pack
from gdnbench.capture.snapshot import Copied
from gdnbench.capture.streams import HostCopy, Streams
from gdnbench.lineage.online import OnlineLineage
from gdnbench.lineage.table import Access, access_of
from gdnbench.ops import operation
from gdnbench.store.access_log import AccessFlag, AccessKind

_REQUESTS = 100_000  # names that are remembered
_RENEWED = 4096  # names after which templates of rows begin anew


@dataclass(frozen=True, slots=True)
class Sent:
    """Digests and index tensors on their way to the host."""

    bundle: Bundle
    way: HostCopy

    def arrived(self) -> dict[str, Tensor]:
        return self.bundle.views(self.way.arrived())


@dataclass(slots=True)
class SmallParts:
    """Of a record on a device: what its access rows are made of, before and after the call."""

    before: list[Sent] = field(default_factory=list)
    after: list[Sent] = field(default_factory=list)


def small_parts(record: PendingRecord, streams: Streams) -> SmallParts:
    """Send to the host what the trigger needs of a record on a device: index tensors, claims, and digests
    int64 [rows, 2] of capture's own copies of its states. The current stream does it; nothing waits.
    """
    assert record.device is not None
    watched = record.observation.watched
    assert watched is not None
    found = SmallParts()
    for arriving, sent, states in (
        (record.device.before, found.before, watched.before),
        (record.device.after, found.after, watched.after),
    ):
        for parcel in arriving.coming:
            views = parcel.bundle.views(parcel.bundle.memory)
            fills = {
                name: fill
                for name, view in views.items()
                if (fill := _fill(record, name, view, states)) is not None
            }
            sent += [Sent(bundle, streams.to_host(bundle.memory)) for bundle in pack(fills)]
    return found


def _fill(record: PendingRecord, name: str, view: Tensor, states: frozenset[str]) -> Fill | None:
    if name in states:
        return copy_fill(digests_of_copy(record.observation, name, view))
    integer = not (view.is_floating_point() or view.is_complex())
    state_rows = name.endswith(ROWS) and name.removesuffix(ROWS) in states
    if state_rows or "/" not in name or name == KEPT or name.startswith("claims/"):
        return copy_fill(view) if integer else None
    return None


class LineageTrigger:
    """Follows the calls of this process to decide which records `--on-lineage` keeps. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = AccessRows()
        self._online = OnlineLineage()
        self._names: OrderedDict[str, int] = OrderedDict()
        self._named = 0
        self._forms: dict[tuple[str, str], tuple[object, bool]] = {}
        """By layer and chain, the form of the rows that are compared, and whether it is the pool's: until a
        call has used the pool itself it is that of the first gathered rows."""

    def reason(self, record: PendingRecord, parts: SmallParts | None) -> str | None:
        """Why a complete record is kept: `lineage:` and the kinds of breaks; None if it is right.

        Waits for `parts`. Raises what the adapter's `Finish` raises.
        """
        with self._lock:
            digested = _digest_record(record, parts)
            by_chain = self._accesses(digested)
            apart = operation(record.info.op).counted_apart
            found = self._online.add_call(
                record.info.layer, record.info.step, by_chain, apart, writes_elsewhere(digested)
            )
        kinds = list(dict.fromkeys(finding.kind.value for finding in found))
        return f"lineage:{','.join(kinds)}" if kinds else None

    def unfollowed(self) -> list[str]:
        """Names of layers that are not checked any more, since their calls came out of order."""
        with self._lock:
            return self._online.out_of_order()

    def _accesses(self, record: DigestRecord) -> Mapping[str, list[Access]]:
        rows = self._rows.rows(record)
        names = self._rows.dictionary
        requests, chains = list(names.requests), list(names.chains)
        found: dict[str, list[Access]] = {}
        for row in rows:
            if row["kind"] == AccessKind.NONE or row["flags"] & AccessFlag.WINDOW:
                continue
            access = access_of(row)
            if access.request >= 0:
                access = access._replace(request=self._number(requests[access.request]))
            chain = chains[row["chain"]]
            if not self._is_comparable(record.info.layer, chain):
                access = access._replace(flags=access.flags | AccessFlag.DIGEST_UNKNOWN)
            found.setdefault(chain.name, []).append(access)
        if len(requests) > _RENEWED:
            self._rows.renew()
        return found

    def _is_comparable(self, layer: str, chain: Chain) -> bool:
        """Whether digests of these rows can be compared with those of the chain's others. The first rows of
        the pool itself decide that; if the rows before them have another form, those are forgotten."""
        if chain.form is None:
            return False
        known, of_pool = self._forms.get((layer, chain.name), (None, False))
        if known is None or (chain.pooled and not of_pool):
            if known is not None and known != chain.form:
                self._online.forget(layer, chain.name)
            self._forms[layer, chain.name] = known, of_pool = chain.form, chain.pooled
        return known == chain.form

    def _number(self, request: str) -> int:
        """A number of the request for as long as it is used."""
        number = self._names.pop(request, None)
        if number is None:
            number = self._named
            self._named += 1
            if len(self._names) >= _REQUESTS:
                self._names.popitem(last=False)
        self._names[request] = number
        return number


def _digest_record(record: PendingRecord, parts: SmallParts | None) -> DigestRecord:
    """The record as `--digests` would keep it."""
    watched = record.observation.watched
    assert watched is not None
    observation = replace(record.observation, tensors={}, reduced=watched)
    found = DigestRecord(
        observation, record.info, record.axes, {}, {}, {}, layer=record.layer, claims=record.claims
    )
    beside: dict[str, Tensor] = {}
    for moment, kept, states in (
        ("before", found.before, watched.before),
        ("after", found.after, watched.after),
    ):
        for name, tensor in _small(record, parts, moment, states):
            if name.endswith(ROWS):
                found.numbers.setdefault(name.removesuffix(ROWS), tensor)
            elif "/" in name and name != KEPT:
                beside[name] = tensor
            else:
                kept[name] = Copied(tensor, tensor.shape, tensor.stride(), 0, "cpu")
        for name in states & kept.keys():
            if name in watched.shapes:
                shape, dtype = watched.shapes[name]
                found.forms.setdefault(name, row_form(observation, name, dtype, shape))
    _note_written(record, found, watched)
    for name, numbers in found.numbers.items():
        found.numbers[name] = _in_pages(numbers, name, observation, watched)
    found.resolve_claims(beside)
    return found


def _small(
    record: PendingRecord, parts: SmallParts | None, moment: str, states: frozenset[str]
) -> Iterator[tuple[str, Tensor]]:
    """Index tensors, claims, and of states digests and the numbers of their rows."""
    here: Mapping[str, Copied] = getattr(record, moment)
    if record.device is not None:
        assert parts is not None
        for sent in getattr(parts, moment):
            yield from sent.arrived().items()
        arriving: Arriving = getattr(record.device, moment)
        here = arriving.tensors
        for name, pool in record.device.pools.items():
            if pool.rows is not None and moment == "before":
                yield name + ROWS, pool.rows
    for name, copied in here.items():
        if name in states:
            yield name, digests_of_copy(record.observation, name, copied.data)
            pool_rows = record.pools.get(name)
            if pool_rows is not None and pool_rows.rows is not None:
                yield name + ROWS, pool_rows.rows
        elif not (copied.data.is_floating_point() or copied.data.is_complex()):
            yield name, copied.data


def _note_written(record: PendingRecord, found: DigestRecord, watched: Reduced) -> None:
    """The forms of states that the call makes, such as final_state."""
    for name in watched.after & found.after.keys():
        if name in found.forms:
            continue
        form = _made_form(record, name)
        if form is not None:
            shape, dtype = form
            found.forms[name] = row_form(found.observation, name, dtype, shape)


def _made_form(record: PendingRecord, name: str) -> tuple[tuple[int, ...], torch.dtype] | None:
    if name in record.after:
        data = record.after[name].data
        return tuple(data.shape), data.dtype
    if record.device is not None:
        for parcel in record.device.after.coming:
            if name in parcel.bundle.parts:
                part = parcel.bundle.parts[name]
                return part.shape, part.dtype
    return None


def _in_pages(numbers: Tensor, name: str, observation: Observation, watched: Reduced) -> Tensor:
    """Of numbers of pages, the numbers of the rows in them."""
    if not is_paged(observation, name):
        return numbers
    size = watched.shapes[name][0][1]
    return (numbers.long().unsqueeze(1) * size + torch.arange(size)).reshape(-1)
