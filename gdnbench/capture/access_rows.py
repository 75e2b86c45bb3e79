# SPDX-License-Identifier: Apache-2.0
"""Rows of the access log, made of calls that are kept as digests.

The layers of a step share index tensors and claims, so everything but layer, call and digests is worked out
once and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gdnbench.capture.adapter import OnlyPadding
from gdnbench.capture.claims import LINEAGE
from gdnbench.capture.digest_record import DigestRecord
from gdnbench.capture.graph_digests import AlikeDigests, DigestBatch, EagerBatch
from gdnbench.capture.kept_states import KEPT
from gdnbench.lineage.call_rows import (
    Names,
    RowForm,
    call_rows,
    places_among,
    positions_at,
    prefixes_at,
    row_without_access,
)
from gdnbench.lineage.claims import StoredClaims, claims_of
from gdnbench.ops import operation
from gdnbench.record import Status
from gdnbench.store.access_log import UNKNOWN, AccessFlag, AccessKind, kept_writes, know_digests
from gdnbench_kernels.contract import Accesses, Operation

_TEMPLATES = 64

Rows = NDArray[np.void]
"""Of dtype ROW."""


class Chain(NamedTuple):
    """A pool of a layer as calls use it: rows whose forms differ cannot be compared."""

    name: str
    form: RowForm | None
    pooled: bool  # rows of a pool itself; False: rows that the caller gathered or will put back


@dataclass(slots=True)
class Dictionary:
    """The names that rows refer to."""

    layers: Names[str] = field(default_factory=Names)
    chains: Names[Chain] = field(default_factory=Names)
    requests: Names[str] = field(default_factory=Names)


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of a template that have their digests from one tensor: from its rows `places`."""

    start: int
    stop: int
    kind: AccessKind
    tensor: str
    places: NDArray[np.int64]

    def in_order(self, count: int) -> bool:
        """Whether these are the tensor's `count` rows one after another."""
        return len(self.places) == count and bool((self.places == np.arange(count)).all())


@dataclass(frozen=True, slots=True)
class _Template:
    rows: Rows  # with positions and prefixes of the first call that had it, which change from step to step
    sources: tuple[_Source, ...]
    offsets: (
        NDArray[np.int64] | None
    )  # of each row's position from its sequence's first token; None: as it is
    prefixed: NDArray[np.bool_] | None  # whether the row has its sequence's prefix

    def placed(self, claims: Mapping[str, Any]) -> Rows:
        """A copy of the rows with positions and prefixes."""
        rows = self.rows.copy()
        if self.offsets is None or self.prefixed is None:
            return rows
        sequence = rows["sequence"]
        positions = [UNKNOWN if one is None else one for one in claims.get("positions", ())]
        rows["position"] = positions_at(positions, sequence, self.offsets)
        prefixes = [0 if one is None else int(one, 16) for one in claims.get("prefixes") or ()]
        rows["prefix"] = np.where(self.prefixed, prefixes_at(prefixes, sequence), np.uint64(0))
        return rows


class AccessRows:
    """Makes the rows of calls. One dictionary belongs to all rows between two calls of `renew`. Not thread
    safe."""

    def __init__(self) -> None:
        self.dictionary = Dictionary()
        self._templates: dict[Any, _Template] = {}

    def renew(self) -> Dictionary:
        """Begin a new dictionary; returns the old one."""
        old, self.dictionary = self.dictionary, Dictionary()
        self._templates.clear()
        return old

    def rows(self, record: DigestRecord) -> Rows:
        """The accesses of a call, reads first: dtype ROW. A call without any has one row of kind NONE."""
        info = record.info
        template = self._template(_key(record), lambda: record)
        rows = template.placed(info.dispatch.get(LINEAGE) or {})
        rows["call"], rows["step"] = info.call, info.step
        rows["layer"] = self.dictionary.layers.number(info.layer)
        for source in template.sources:
            tensors = record.before if source.kind is AccessKind.READ else record.after
            found = tensors[source.tensor].data.numpy().view(np.uint64)
            rows["digest"][source.start : source.stop] = found[source.places]
        return rows

    def rows_of_batch(self, batch: DigestBatch | EagerBatch) -> list[Rows]:
        """The same of the calls of a replay, group by group."""
        found = []
        for alike in batch.calls_alike():
            claims = alike.claims or {}
            template = self._template(_key_of_alike(alike), alike.record)
            rows = np.tile(template.placed(claims), (len(alike.numbers), 1))
            rows["call"] = np.array(alike.numbers)[:, None]
            rows["step"] = np.array(alike.steps)[:, None]
            layers = [self.dictionary.layers.number(layer.name) for layer in alike.layers]
            rows["layer"] = np.array(layers)[:, None]
            for source in template.sources:
                digests = alike.digests_of(source.tensor, is_read=source.kind is AccessKind.READ)
                rows["digest"][:, source.start : source.stop] = (
                    digests if source.in_order(digests.shape[1]) else digests[:, source.places]
                )
            found.append(rows.reshape(-1))
        return found

    def _template(self, key: tuple[Any, ...], record: Callable[[], DigestRecord]) -> _Template:
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            found = self._templates[key] = _made(record(), self.dictionary)
        return found


def _claimed(claims: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a template depends on of a call's claims."""
    if claims.get("kept"):
        return tuple((name, repr(values)) for name, values in claims.items())
    return tuple((name, *claims[name]) for name in ("requests", "padding", "slots") if name in claims)


def _key_of_alike(alike: AlikeDigests) -> tuple[Any, ...]:
    """Everything that the rows of alike calls depend on but layer, call, digests, positions and prefixes."""
    inputs = ((name, one.numpy().tobytes()) for name, one in alike.inputs.items())
    return (alike.group.kind, _claimed(alike.claims or {}), alike.rows.numpy().tobytes(), *inputs)


def _key(record: DigestRecord) -> tuple[Any, ...]:
    """The same of a record."""
    info = record.info
    kept = record.observation.reduced
    assert kept is not None
    claims = info.dispatch.get(LINEAGE) or {}
    integers = (
        (name, one.data.dtype, one.data.numpy().tobytes())
        for name, one in record.before.items()
        if name not in kept.before
    )
    numbers = ((name, one.numpy().tobytes()) for name, one in record.numbers.items())
    return (
        info.op,
        info.has_layer,
        info.status,
        tuple(info.scalars.items()),
        tuple(info.conventions.items()),
        tuple(kept.shapes.items()),
        _claimed(claims),
        tuple(integers),
        tuple(numbers),
        tuple(record.forms.items()),
        frozenset(record.after),
    )


def _made(record: DigestRecord, names: Dictionary) -> _Template:
    contract = operation(record.info.op)
    parts: list[Rows] = []
    offsets: list[NDArray[np.int64]] = []
    prefixed: list[NDArray[np.bool_]] = []
    sources: list[_Source] = []
    start = 0
    kept = (record.info.dispatch.get(LINEAGE) or {}).get("kept", ())
    for accesses in _accesses(record, contract):
        for kind in (AccessKind.READ, AccessKind.WRITE):
            part, found = _part(record, contract, accesses, kind, names)
            if len(part):
                if found is not None:
                    sources.append(_Source(start, start + len(part), kind, *found))
                parts.append(part)
                offsets.append((accesses.reads if kind is AccessKind.READ else accesses.writes).numpy()[:, 2])
                prefixed.append(np.full(len(part), kind is AccessKind.READ and not accesses.window))
                start += len(part)
                if kind is AccessKind.READ and kept and not accesses.window:
                    writes, token = kept_writes(part, kept)
                    if KEPT in record.after and found is not None:
                        know_digests(writes)
                        places = token * len(accesses.tokens) + writes["sequence"]
                        sources.append(_Source(start, start + len(writes), AccessKind.WRITE, KEPT, places))
                    parts.append(writes)
                    start += len(writes)
    if not parts:
        return _Template(row_without_access(contract), (), None, None)
    rows = np.concatenate(parts)
    if kept or not record.info.has_layer:
        return _Template(rows, tuple(sources), None, None)
    return _Template(rows, tuple(sources), np.concatenate(offsets), np.concatenate(prefixed))


def _accesses(record: DigestRecord, contract: Operation) -> tuple[Accesses, ...]:
    if contract.accesses is None or record.info.status is not Status.COMPLETE:
        return ()
    try:
        found = contract.accesses(record.call())
    except OnlyPadding:
        return ()
    # A selection of 512 rows a query would be most of a log: they are followed in records alone.
    return tuple(one for one in found if not one.compressed)


def _part(
    record: DigestRecord, contract: Operation, accesses: Accesses, kind: AccessKind, names: Dictionary
) -> tuple[Rows, tuple[str, NDArray[np.int64]] | None]:
    """The reads or writes of one pool by a call, without their digests; and the tensor with those, and where
    in it. StoreError if an adapter's claims have another form than `lineage.claims.claims_of` reads."""
    is_read = kind is AccessKind.READ
    # States of several layers in one chain would look overwritten.
    claims = (
        claims_of(record.info.dispatch, f"call {record.info.call}")
        if record.info.has_layer
        else StoredClaims()
    )
    accepted = record.before.get("num_accepted")
    counts = () if accepted is None else accepted.data.long().flatten().numpy()
    part = call_rows(accesses, kind, claims, counts, contract, names.requests)
    if not len(part):
        return part, None
    tensor = accesses.before if is_read else accesses.after
    digested = None if tensor is None else (record.before if is_read else record.after).get(tensor)
    source = None
    form = None if tensor is None else record.forms.get(tensor)
    # Digests of a page's rows are of consecutive elements.
    fits = accesses.parts is None and (
        accesses.columns is None or form is None or accesses.columns == form.shape[-1]
    )
    if tensor is None or digested is None or form is None or not fits:
        part["flags"] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
    else:
        row = (accesses.reads if is_read else accesses.writes).numpy()[:, 1]
        starts = accesses.read_columns if is_read else accesses.write_columns
        windows = _windows(record, tensor)
        each = len(digested.data) // windows
        named = record.numbers.get(tensor)
        digests_of = np.arange(each) if named is None else named.numpy().astype(np.int64)
        places, there = places_among(row, digests_of)
        if starts is not None:
            first = starts.numpy()
            there &= (first >= 0) & (first < windows)
            places = np.where(there, first * each + places, 0)
        elif windows > 1:
            there[:] = False
        part["flags"][~there] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
        source = (tensor, places)
    part["chain"] = names.chains.number(Chain(accesses.chain, form, accesses.pooled))
    return part, source


def _windows(record: DigestRecord, tensor: str) -> int:
    """How many digests each row of a state has: one for each of its windows, if it keeps several."""
    kept = record.observation.reduced
    assert kept is not None
    columns = kept.columns.get(tensor)
    return 1 if columns is None else kept.shapes[tensor][0][-1] - columns + 1
