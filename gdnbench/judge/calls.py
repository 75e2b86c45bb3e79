# SPDX-License-Identifier: Apache-2.0
"""Reconstructs the call of a record on the stored slots, for oracles and comparison.

The pools of such a call contain only the stored slots, and its indices are renumbered to match: the same
computation as the recorded call in less memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench.bits import logical
from gdnbench.errors import BadInputError, StoreError
from gdnbench.record import Pool
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, ContractError, Operation, Ranges
from gdnbench_kernels.validate import check_conventions, check_tensors, first_true

_MOST_ELEMENTS = 1 << 48
"""Of a pool; torch counts bytes in 63 bits."""


def conventions_of(record: StoredRecord, operation: Operation) -> dict[str, str]:
    """The record's conventions, defaults filled in."""
    return {**operation.default_conventions, **record.info.conventions}


def check_record(record: StoredRecord, operation: Operation) -> None:
    """ContractError if the recorded call breaks its contract, in the caller's slot numbers, or has unknown
    pools."""
    check_pools(record, operation)
    tensors = {}
    for name, handle in record.before.items():
        pool = record.info.pools.get(name)
        if pool is None:
            tensors[name] = handle.read()
        else:
            shape, dtype = (pool.slots, *handle.meta.shape[1:]), logical(handle.meta.dtype).torch_dtype
            tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
    operation.validate(call_of(record, operation, tensors))


def check_pools(record: StoredRecord, operation: Operation) -> None:
    """ContractError for a pool of a tensor that is no pool, or with other rows than its tensor."""
    there = [spec.name for spec in operation.tensors if spec.pool_index is not None]
    for name, pool in record.info.pools.items():
        if name not in there:
            raise ContractError(
                f"{operation.name}: the record has a pool {name!r}; pools are {', '.join(there) or 'none'}"
            )
        for handles in (record.before, record.after):
            shape = handles[name].meta.shape if name in handles else (len(pool.rows),)
            if shape[:1] != (len(pool.rows),):
                raise ContractError(
                    f"{operation.name}: {name} has shape {list(shape)}, but {len(pool.rows)} were stored"
                )
            if pool.slots * math.prod(shape[1:]) > _MOST_ELEMENTS:
                raise ContractError(
                    f"{operation.name}: the record has a pool {name} of {pool.slots} slots, more than 2**48"
                    " elements"
                )


def compact_call(record: StoredRecord, operation: Operation, device: torch.device) -> Call:
    """The call on the stored slots only, contiguous, on `device`."""
    tensors = {name: handle.read() for name, handle in record.before.items()}
    renumbered = _renumbered(record, operation, tensors)
    return call_of(record, operation, {name: tensor.to(device) for name, tensor in renumbered.items()})


def outline_call(record: StoredRecord, operation: Operation) -> Call:
    """The compact call with index tensors read and all others as shapes without memory, as `partition` needs.

    ContractError if the stored tensors cannot form a call; KeyError for a missing index tensor.
    """
    check_pools(record, operation)
    check_conventions(operation.name, operation.conventions, record.info.conventions)
    tensors = {}
    for name, handle in record.before.items():
        dtype = logical(handle.meta.dtype).torch_dtype
        if dtype.is_floating_point or name in record.info.pools:
            tensors[name] = torch.empty(handle.meta.shape, dtype=dtype, device="meta")
        else:
            tensors[name] = handle.read()
    call = call_of(record, operation, tensors)
    check_tensors(operation.name, operation.tensors, call, partial=True)
    return call_of(record, operation, _renumbered(record, operation, tensors))


def ranges_of(record: StoredRecord, operation: Operation) -> tuple[Ranges, ...] | None:
    """The ranges of input values of a record that passes `check_record`; None if the operation defines none
    or inputs are missing."""
    if operation.ranges is None:
        return None
    try:
        return operation.ranges(compact_call(record, operation, torch.device("cpu")))
    except (BadInputError, StoreError):
        return None


def slots_of(record: StoredRecord, name: str) -> tuple[int, ...] | None:
    """The slot numbers of the stored rows of tensor `name`; None if it is no pool or is stored whole."""
    pool = record.info.pools.get(name)
    return None if pool is None or is_whole(pool) else pool.rows


def is_whole(pool: Pool) -> bool:
    """Whether every slot of a pool was stored."""
    return len(pool.rows) == pool.slots  # rows are distinct slots; a range may be too long to build


def call_of(record: StoredRecord, operation: Operation, tensors: Mapping[str, Tensor]) -> Call:
    """`tensors` with the scalars and conventions of `record`."""
    return Call(tensors, dict(record.info.scalars), conventions_of(record, operation))


def _renumbered(
    record: StoredRecord, operation: Operation, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """`tensors` with every pool's index tensor pointing at stored rows instead of the caller's slots."""
    found = dict(tensors)
    partial = {name: pool for name, pool in record.info.pools.items() if not is_whole(pool)}
    if operation.renumber is not None:
        # A run has no read-only pools: their bytes are in the capture.
        held = {*record.before, *record.after}
        stored = {name: pool.rows for name, pool in partial.items() if name in held}
        try:
            return found | operation.renumber(call_of(record, operation, tensors), stored)
        except ContractError as error:
            raise BadInputError(f"record {record.number}: {error}") from None
    for name, pool in partial.items():
        index_name = operation.spec(name).pool_index
        if index_name is None:
            continue
        indices = tensors[index_name]
        slots = indices.long()
        if bool((slots >= pool.slots).any()):
            raise BadInputError(
                f"record {record.number}: {index_name} names a slot past the {pool.slots} of {name}"
            )
        rows = torch.tensor(pool.rows, dtype=torch.int64)
        position = torch.searchsorted(rows, slots)
        there = torch.zeros_like(slots, dtype=torch.bool)
        if len(rows):
            there = rows[position.clamp(max=len(rows) - 1)] == slots
        lost = first_true((slots >= 0) & ~there)
        if lost is not None:
            raise BadInputError(
                f"record {record.number}: {index_name} names slot {int(slots[lost])} of {name}, which was not"
                " captured"
            )
        found[index_name] = torch.where(slots < 0, slots, position).to(indices.dtype)
    return found
