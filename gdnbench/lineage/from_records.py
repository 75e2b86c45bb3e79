"""Makes access tables of ordinary records: index tensors, claims, and digests of the stored rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdnbench.bits import from_bits, logical, to_bits
from gdnbench.digests import Digests, row_digests
from gdnbench.errors import BadInputError, StoreError
from gdnbench.lineage.claims import Claims, claims_of
from gdnbench.lineage.table import AccessTable, Rows
from gdnbench.ops import operations
from gdnbench.record import Status
from gdnbench.store.access_log import ROW, UNKNOWN, AccessFlag, AccessKind, kept_writes
from gdnbench.store.layout import Location
from gdnbench.store.reader import Store, StoredRecord, TensorHandle
from gdnbench_kernels.contract import Accesses, Call, ContractError, Operation
from gdnbench_kernels.validate import check_conventions, check_tensors

Progress = Callable[[int, int], None]

_MOST_ELEMENTS = 1 << 48
"""Of a pool; torch counts bytes in 63 bits."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """What a digest depends on besides the values: two rows of equal values and forms have equal digests."""

    dtype: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(slots=True)
class _Names:
    """Names by number, numbered as they come."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record and its accesses, not digested yet."""

    record: StoredRecord
    accesses: tuple[Accesses, ...]
    decodes: bool
    claims: Claims
    accepted: NDArray[np.int64] | None


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
        seen = []
        for record in records:
            if (one := _see(record)) is not None:
                seen.append(one)
            if advance is not None:
                advance(record.number + 1, len(store.records))
        yield _table(process, seen)


def _see(record: StoredRecord) -> _Seen | None:
    """The record's accesses; None if they are unknown."""
    operation = operations().get(record.info.op)
    if operation is None or record.info.status is not Status.COMPLETE:
        return None
    if operation.accesses is None:
        return _Seen(record, (), False, Claims(), None)
    where = f"record {record.key}"
    # States of several layers in one chain would look overwritten.
    claims = claims_of(record.info.dispatch, where) if record.info.has_layer else Claims()
    try:
        call = _call(record, operation)
        found = operation.accesses(call)
    except (ContractError, BadInputError) as error:
        raise StoreError(f"{where}: {error}") from error
    except KeyError as error:
        raise StoreError(f"{where}: {record.info.op} without the tensor {error}") from error
    accepted = call.tensors.get("num_accepted")
    counts = None if accepted is None else accepted.long().flatten().numpy()
    return _Seen(record, found, operation.decodes, claims, counts)


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


def _table(process: str, seen: list[_Seen]) -> AccessTable:
    layers, chains, requests = _Names(), _Names(), _Names()
    forms = _forms(seen)
    digests = _DigestCache()
    parts: list[Rows] = []
    for one in seen:
        info = one.record.info
        first = len(parts)
        for accesses in one.accesses:
            for kind in (AccessKind.READ, AccessKind.WRITE):
                part = _rows(one, accesses, kind, requests)
                if len(part):
                    part["chain"] = chains.number(accesses.chain)
                    form = forms[info.layer, accesses.chain]
                    _fill_digests(part, one.record, accesses, kind, form, digests)
                    parts.append(part)
                    if kind is AccessKind.READ and one.claims.kept and not accesses.window:
                        parts.append(kept_writes(part, one.claims.kept))
        if len(parts) == first:
            none = np.zeros(1, dtype=ROW)
            none["kind"] = AccessKind.NONE
            for name in ("request", "position", "slot", "accepted"):
                none[name] = UNKNOWN
            parts.append(none)
        for part in parts[first:]:
            part["call"], part["step"], part["layer"] = info.call, info.step, layers.number(info.layer)
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype=ROW)
    return AccessTable(
        process,
        rows,
        tuple(layers.numbers),
        tuple(chains.numbers),
        tuple(requests.numbers),
        records={one.record.info.call: one.record.number for one in seen},
    )


def _rows(one: _Seen, accesses: Accesses, kind: AccessKind, requests: _Names) -> Rows:
    """The reads or writes of a call; all but layer, chain and digest."""
    reads = kind is AccessKind.READ
    found = (accesses.reads if reads else accesses.writes).numpy()
    part = np.zeros(len(found), dtype=ROW)
    if not len(found):
        return part
    sequence, row, offset = found.T
    claims = one.claims
    part["kind"], part["sequence"] = kind, sequence
    names = [UNKNOWN if name is None else requests.number(name) for name in claims.requests]
    part["request"] = _by_sequence(names, sequence, UNKNOWN)
    first = _by_sequence(claims.positions, sequence, UNKNOWN)
    part["position"] = np.where(first < 0, UNKNOWN, np.maximum(first + offset, UNKNOWN))
    own_numbers = accesses.pooled and not claims.slots
    part["slot"] = row if own_numbers else _by_sequence(claims.slots, sequence, UNKNOWN)
    part["accepted"] = UNKNOWN if one.accepted is None else _by_sequence(one.accepted, sequence, UNKNOWN)
    part["tokens"] = _by_sequence(accesses.tokens.numpy(), sequence, 0)
    if reads and not accesses.window:
        part["prefix"] = _by_sequence(claims.prefixes, sequence, 0, np.uint64)
    flags = np.zeros(len(found), dtype=np.uint8)
    flags[np.isin(sequence, list(claims.padding))] |= np.uint8(AccessFlag.PADDING)
    if accesses.window:
        flags |= np.uint8(AccessFlag.WINDOW)
    if not reads and one.decodes:
        flags[offset > 1] |= np.uint8(AccessFlag.DRAFT)
    part["flags"] = flags
    return part


def _by_sequence(
    values: Any, sequence: NDArray[np.int64], missing: int, dtype: type[np.generic] = np.int64
) -> NDArray[Any]:
    """values[sequence], `missing` past the end."""
    known = np.asarray(values, dtype=dtype)
    found = np.full(len(sequence), missing, dtype=dtype)
    there = (sequence >= 0) & (sequence < len(known))
    found[there] = known[sequence[there]]
    return found


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


def _forms(seen: list[_Seen]) -> dict[tuple[str, str], RowForm | None]:
    """The form of each chain's rows, by layer and chain: that of its pool, else the most frequent one."""
    counts: dict[tuple[str, str], Counter[tuple[bool, RowForm]]] = {}
    for one in seen:
        for accesses in one.accesses:
            count = counts.setdefault((one.record.info.layer, accesses.chain), Counter())
            for kind in (AccessKind.READ, AccessKind.WRITE):
                if (handle := _handle(one.record, accesses, kind)) is not None:
                    count[accesses.pooled, _form(handle, accesses)] += 1
    return {
        key: max(count, key=lambda one: (one[0], count[one]))[1] if count else None
        for key, count in counts.items()
    }


class _DigestCache:
    """Digests of the rows of stored tensors, by location and form: a record often has the pool that the one
    before it left."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._found: dict[tuple[Location, int, tuple[int, int] | None, RowForm], Digests] = {}

    def rows(
        self, handle: TensorHandle, split: int, columns: tuple[int, int] | None, form: RowForm
    ) -> Digests:
        """The digests of all rows, or of some of their columns."""
        key = (handle.location, split, columns, form)
        if key not in self._found:
            if len(self._found) >= self._most:
                del self._found[next(iter(self._found))]
            self._found[key] = self._digest(handle, split, columns, form)
        return self._found[key]

    def _digest(
        self, handle: TensorHandle, split: int, columns: tuple[int, int] | None, form: RowForm
    ) -> Digests:
        bits = handle.bits()
        axis = 1
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
    place, there = _places(row, accesses.split, stored)
    starts = accesses.read_columns if kind is AccessKind.READ else accesses.write_columns
    if accesses.columns is None or starts is None:
        part["digest"][there] = cache.rows(handle, accesses.split, None, form)[place[there]]
    else:
        first = starts.numpy()
        there &= (first >= 0) & (first + accesses.columns <= handle.meta.shape[-1])
        for start in np.unique(first[there]).tolist():
            chosen = there & (first == start)
            columns = (start, start + accesses.columns)
            part["digest"][chosen] = cache.rows(handle, accesses.split, columns, form)[place[chosen]]
    part["flags"][~there] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)
    if handle.meta.dtype != form.dtype:
        part["flags"] |= np.uint8(AccessFlag.DIGEST_UNKNOWN)


def _places(
    row: NDArray[np.int64], split: int, stored: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each row is among the rows of `stored`, each split in `split`, and whether it is there."""
    outer = row // split
    order = np.argsort(stored, kind="stable")
    found = np.searchsorted(stored, outer, sorter=order)
    there = (found < len(stored)) & (row >= 0)
    place = order[np.where(there, found, 0)] if len(stored) else np.zeros_like(row)
    if len(stored):
        there &= stored[place] == outer
    return place * split + row % split, there


def _fits(handle: TensorHandle, accesses: Accesses, form: RowForm) -> bool:
    """Whether rows of the tensor can be brought into `form`."""
    meta = handle.meta
    if accesses.split != 1 and (len(meta.shape) < 2 or meta.shape[1] != accesses.split):
        return False
    found = _form(handle, accesses)
    sizes, wanted = (dict(zip(one.axes, one.shape, strict=True)) for one in (found, form))
    return len(sizes) == len(found.axes) and sizes == wanted
