# SPDX-License-Identifier: Apache-2.0
"""Makes access tables of ordinary records: index tensors, claims, and digests of the stored rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdnbench.bits import from_bits, logical, to_bits
from gdnbench.digests import Digests, row_digests
from gdnbench.errors import BadInputError, StoreError
from gdnbench.lineage.call_rows import Names, RowForm, call_rows, places_among, row_without_access
from gdnbench.lineage.claims import StoredClaims, claims_of
from gdnbench.lineage.table import AccessTable, Progress, Rows
from gdnbench.ops import operations
from gdnbench.record import Status
from gdnbench.store.access_log import ROW, AccessFlag, AccessKind, kept_writes, know_digests
from gdnbench.store.layout import Location
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench_kernels.contract import Accesses, Call, ContractError, Operation
from gdnbench_kernels.validate import check_conventions, check_tensors

_MOST_ELEMENTS = 1 << 48
"""Of a pool; torch counts bytes in 63 bits."""

_NO_COUNTS = np.zeros(0, dtype=np.int64)

_Pages = tuple[int, tuple[int, ...] | None]
"""`split` and `parts` of accesses."""


@dataclass(frozen=True, slots=True)
class _RecordedCall:
    """A record and its accesses, not digested yet."""

    record: StoredRecord
    accesses: tuple[Accesses, ...]
    operation: Operation
    claims: StoredClaims
    accepted: NDArray[np.int64]  # num_accepted of each sequence; empty if the call has none


def tables_of_records(
    store: Store, without: frozenset[str] = frozenset(), advance: Progress | None = None
) -> Iterator[AccessTable]:
    """A table for each process with records, but those in `without`. Records of unknown operations, and calls
    that did not come back, are left out: their steps count as missing.

    StoreError, with the record's key, for a record that is damaged or does not fit its operation.
    """
    for process, records in itertools.groupby(store.records, lambda record: record.segment.name):
        if process in without:
            continue
        calls = []
        for record in records:
            if (one := _recorded_call(record)) is not None:
                calls.append(one)
            if advance is not None:
                advance(record.number + 1, len(store.records))
        yield _table(process, calls)


def _recorded_call(record: StoredRecord) -> _RecordedCall | None:
    """The record's accesses; None if they are unknown."""
    operation = operations().get(record.info.op)
    if operation is None or record.info.status is not Status.COMPLETE:
        return None
    if operation.accesses is None:
        return _RecordedCall(record, (), operation, StoredClaims(), _NO_COUNTS)
    where = f"record {record.key}"
    # States of several layers in one chain would look overwritten.
    claims = claims_of(record.info.dispatch, where) if record.info.has_layer else StoredClaims()
    try:
        call = _call(record, operation)
        found = operation.accesses(call)
    except (ContractError, BadInputError) as error:
        raise StoreError(f"{where}: {error}") from error
    except KeyError as error:
        raise StoreError(f"{where}: {record.info.op} without the tensor {error}") from error
    accepted = call.tensors.get("num_accepted")
    counts = _NO_COUNTS if accepted is None else accepted.long().flatten().numpy()
    return _RecordedCall(record, found, operation, claims, counts)


def _call(record: StoredRecord, operation: Operation) -> Call:
    """The call in the caller's slots: index tensors are read, all others are shapes without memory."""
    check_conventions(operation.name, operation.conventions, record.info.conventions)
    tensors = {}
    for name, handle in record.before.items():
        meta, pool = handle.meta, record.info.pools.get(name)
        dtype = logical(meta.dtype).torch_dtype
        if pool is not None:
            if not meta.shape or meta.shape[0] != len(pool.rows):
                raise BadInputError(f"{name} has shape {meta.shape}, but {len(pool.rows)} rows were stored")
            if pool.slots < 0 or pool.slots * max(1, np.prod(meta.shape[1:], dtype=object)) > _MOST_ELEMENTS:
                raise BadInputError(f"{name} is a pool of {pool.slots} slots, more than 2**48 elements")
            tensors[name] = torch.empty((pool.slots, *meta.shape[1:]), dtype=dtype, device="meta")
        elif dtype.is_floating_point:
            tensors[name] = torch.empty(meta.shape, dtype=dtype, device="meta")
        else:
            tensors[name] = handle.read()
    conventions = {**operation.default_conventions, **record.info.conventions}
    call = Call(tensors, dict(record.info.scalars), conventions)
    check_tensors(operation.name, operation.tensors, call, partial=True)
    return call


def _table(process: str, calls: list[_RecordedCall]) -> AccessTable:
    layers, chains, requests = Names[str](), Names[str](), Names[str]()
    forms = _forms(calls)
    digests = _DigestCache()
    parts: list[Rows] = []
    for one in calls:
        info = one.record.info
        first = len(parts)
        for accesses in one.accesses:
            for kind in (AccessKind.READ, AccessKind.WRITE):
                part = call_rows(accesses, kind, one.claims, one.accepted, one.operation, requests)
                if len(part):
                    part["chain"] = chains.number(accesses.chain)
                    form = forms[info.layer, accesses.chain]
                    _fill_digests(part, one.record, accesses, kind, form, digests)
                    parts.append(part)
                    if kind is AccessKind.READ and one.claims.kept and not accesses.window:
                        parts.append(_kept_writes(part, one, accesses, form))
        if len(parts) == first:
            parts.append(row_without_access(one.operation))
        for part in parts[first:]:
            part["call"], part["step"], part["layer"] = info.call, info.step, layers.number(info.layer)
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype=ROW)
    return AccessTable(
        process,
        rows,
        tuple(layers),
        tuple(chains) or ("",),
        tuple(requests),
        elsewhere=any(one.claims.elsewhere for one in calls),
        records={one.record.info.call: one.record.number for one in calls},
    )


def _kept_writes(reads: Rows, call: _RecordedCall, accesses: Accesses, form: RowForm | None) -> Rows:
    """Writes of states that a call keeps outside its pool, with their digests if the record has them: those
    are of rows in the pool's form."""
    writes, token = kept_writes(reads, call.claims.kept)
    digests, handle = call.claims.kept_digests, _handle(call.record, accesses, AccessKind.READ)
    if digests and handle is not None and accesses.split == 1 and _form(handle, accesses) == form:
        for write, number in zip(writes, token.tolist(), strict=True):
            of_sequence = digests[int(write["sequence"])]
            if number < len(of_sequence):
                write["digest"] = of_sequence[number]
                know_digests(write)
    return writes


def _handle(record: StoredRecord, accesses: Accesses, kind: AccessKind) -> TensorHandle | None:
    if kind is AccessKind.READ:
        return record.before.get(accesses.before)
    return None if accesses.after is None else record.after.get(accesses.after)


def _form(handle: TensorHandle, accesses: Accesses) -> RowForm:
    axis = 1 if accesses.split == 1 else 2
    shape = handle.meta.shape[axis:]
    if accesses.columns is not None and shape:
        shape = (*shape[:-1], min(accesses.columns, shape[-1]))
    return RowForm(handle.meta.dtype, handle.meta.axes[axis:], shape)


def _forms(calls: list[_RecordedCall]) -> dict[tuple[str, str], RowForm | None]:
    """The form of each chain's rows, by layer and chain: that of its pool, else the most frequent one."""
    counts: dict[tuple[str, str], Counter[tuple[bool, RowForm]]] = {}
    for one in calls:
        for accesses in one.accesses:
            count = counts.setdefault((one.record.info.layer, accesses.chain), Counter())
            for kind in (AccessKind.READ, AccessKind.WRITE):
                if (handle := _handle(one.record, accesses, kind)) is not None:
                    count[accesses.pooled, _form(handle, accesses)] += 1
    return {
        key: max(count, key=lambda one: (one[0], count[one]))[1] if count else None
        for key, count in counts.items()
    }


def _joined(pages: NDArray[Any], parts: Sequence[int]) -> NDArray[Any]:
    """Pages [pages, rows, elements] that hold `parts` of all their rows one after another, as rows."""
    count, rows, elements = pages.shape
    if sum(parts) != elements:
        raise StoreError(f"rows of {elements} elements have no parts of {', '.join(map(str, parts))}")
    flat, found, start = pages.reshape(count, -1), [], 0
    for part in parts:
        found.append(flat[:, start : start + rows * part].reshape(count, rows, part))
        start += rows * part
    return np.concatenate(found, axis=2)


class _DigestCache:
    """Digests of the rows of stored tensors, by location and form: a record often has the pool that the one
    before it left."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._found: dict[tuple[Location, _Pages, tuple[int, int] | None, RowForm], Digests] = {}

    def rows(
        self, handle: TensorHandle, accesses: Accesses, columns: tuple[int, int] | None, form: RowForm
    ) -> Digests:
        """The digests of all rows, or of some of their columns."""
        pages = accesses.split, accesses.parts
        key = (handle.location, pages, columns, form)
        if key not in self._found:
            if len(self._found) >= self._most:
                del self._found[next(iter(self._found))]
            self._found[key] = self._digest(handle, pages, columns, form)
        return self._found[key]

    def _digest(
        self, handle: TensorHandle, pages: _Pages, columns: tuple[int, int] | None, form: RowForm
    ) -> Digests:
        bits = handle.bits()
        axis = 1
        split, parts = pages
        if parts is not None:
            bits = _joined(bits, parts)
        if split != 1:
            bits, axis = bits.reshape(-1, *bits.shape[2:]), 2
        if columns is not None:
            bits = np.ascontiguousarray(bits[..., slice(*columns)])
        axes = handle.meta.axes[axis:]
        if axes != form.axes or handle.meta.dtype != form.dtype:
            tensor = from_bits(bits, handle.meta.dtype)
            tensor = tensor.permute(0, *(1 + axes.index(name) for name in form.axes))
            bits = to_bits(tensor.to(logical(form.dtype).torch_dtype).contiguous())
        return row_digests(bits)


def _fill_digests(
    part: Rows,
    record: StoredRecord,
    accesses: Accesses,
    kind: AccessKind,
    form: RowForm | None,
    cache: _DigestCache,
) -> None:
    """The digests of one call's reads or writes. Rows in another dtype than the chain's have the digest of
    the converted rows: equal digests say that the values are the same, others nothing."""
    handle = _handle(record, accesses, kind)
    if handle is None or form is None or not _fits(handle, accesses, form):
        part["flags"] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
        return
    row = (accesses.reads if kind is AccessKind.READ else accesses.writes).numpy()[:, 1]
    name = accesses.before if kind is AccessKind.READ else accesses.after
    pool = record.info.pools.get(str(name))
    stored = np.arange(handle.meta.shape[0]) if pool is None else np.asarray(pool.rows, dtype=np.int64)
    place, there = places_among(row // accesses.split, stored)
    place = place * accesses.split + row % accesses.split
    starts = accesses.read_columns if kind is AccessKind.READ else accesses.write_columns
    if accesses.columns is None or starts is None:
        part["digest"][there] = cache.rows(handle, accesses, None, form)[place[there]]
    else:
        first = starts.numpy()
        there &= (first >= 0) & (first + accesses.columns <= handle.meta.shape[-1])
        for start in np.unique(first[there]).tolist():
            chosen = there & (first == start)
            columns = (start, start + accesses.columns)
            part["digest"][chosen] = cache.rows(handle, accesses, columns, form)[place[chosen]]
    part["flags"][~there] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
    if handle.meta.dtype != form.dtype:
        part["flags"] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)


def _fits(handle: TensorHandle, accesses: Accesses, form: RowForm) -> bool:
    """Whether rows of the tensor can be brought into `form`."""
    meta = handle.meta
    if accesses.split != 1 and (len(meta.shape) < 2 or meta.shape[1] != accesses.split):
        return False
    found = _form(handle, accesses)
    sizes, wanted = (dict(zip(one.axes, one.shape, strict=True)) for one in (found, form))
    return len(sizes) == len(found.axes) and sizes == wanted
