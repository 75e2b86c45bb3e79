"""From a record to the call that a kernel gets.

Two forms of the same call. `exact` is what the caller passed: pools of all their slots at their own indices,
the caller's strides. `compact` keeps only the slots that were stored and renumbers the indices: the same
mathematics in less memory, which is what oracles run on and what outputs are compared in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.bits import logical
from gdnbench.diff.ulp import as_integers
from gdnbench.errors import BadInputError
from gdnbench.record import Pool, TensorMeta
from gdnbench.replay.poison import poison
from gdnbench.replay.strides import as_held
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation

POISONED_POOL_BYTES = 1 << 30
"""Pools up to this size hold NaN in the slots that were not stored; larger ones leave those untouched."""


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call ready for a kernel, and what of the caller's layout could not be rebuilt."""

    call: Call
    notes: tuple[str, ...]


def conventions_of(record: StoredRecord, operation: Operation) -> dict[str, str]:
    """The record's conventions, defaults filled in."""
    return {**operation.default_conventions, **record.info.conventions}


def exact(record: StoredRecord, operation: Operation, device: torch.device) -> BoundCall:
    """The call as it was made: exact slots and, where memory allows, exact strides."""
    tensors: dict[str, Tensor] = {}
    notes = []
    for name, handle in record.before.items():
        pool = record.info.pools.get(name)
        if pool is not None and not _is_whole(pool):
            held = as_held(_spread(handle.read(), pool), _pool_meta(handle.meta, pool), device)
        else:
            held = as_held(handle.read(), handle.meta, device)
        tensors[name] = held.tensor
        if held.note:
            notes.append(f"{name}: {held.note}")
    return BoundCall(_call(record, operation, tensors), tuple(notes))


def compact(record: StoredRecord, operation: Operation, device: torch.device) -> Call:
    """The call on the stored slots alone, contiguous."""
    tensors = {name: handle.read() for name, handle in record.before.items()}
    renumbered = _renumbered(record, operation, tensors)
    return _call(record, operation, {name: tensor.to(device) for name, tensor in renumbered.items()})


def outline(record: StoredRecord, operation: Operation) -> Call:
    """The compact call with index tensors read, others as shapes without memory: enough for `partition`."""
    tensors = {}
    for name, handle in record.before.items():
        dtype = logical(handle.meta.dtype).torch_dtype
        if dtype.is_floating_point:
            tensors[name] = torch.empty(handle.meta.shape, dtype=dtype, device="meta")
        else:
            tensors[name] = handle.read()
    return _call(record, operation, _renumbered(record, operation, tensors))


def check(record: StoredRecord, operation: Operation) -> None:
    """Raises ContractError if the recorded call breaks its contract, in the caller's own slot numbers."""
    tensors = {}
    for name, handle in record.before.items():
        pool = record.info.pools.get(name)
        if pool is None:
            tensors[name] = handle.read()
        else:
            shape, dtype = (pool.slots, *handle.meta.shape[1:]), logical(handle.meta.dtype).torch_dtype
            tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
    operation.validate(_call(record, operation, tensors))


def slots_of(record: StoredRecord, name: str) -> tuple[int, ...] | None:
    """The slots that the stored rows of tensor `name` are; None where it is no pool or whole."""
    pool = record.info.pools.get(name)
    return None if pool is None or _is_whole(pool) else pool.rows


def _call(record: StoredRecord, operation: Operation, tensors: Mapping[str, Tensor]) -> Call:
    return Call(tensors, dict(record.info.scalars), conventions_of(record, operation))


def is_poisoned(pool: Pool, rows: Tensor) -> bool:
    """Whether the slots that were not stored are poisoned rather than zero."""
    return pool.slots * math.prod(rows.shape[1:]) * rows.element_size() <= POISONED_POOL_BYTES


def _is_whole(pool: Pool) -> bool:
    return pool.rows == tuple(range(pool.slots))


def _pool_meta(meta: TensorMeta, pool: Pool) -> TensorMeta:
    """Metadata of the whole pool whose rows `meta` describes."""
    shape = (pool.slots, *meta.shape[1:])
    return TensorMeta(
        meta.dtype, shape, meta.axes, meta.caller_shape, meta.caller_strides, meta.caller_offset, meta.device
    )


def _spread(rows: Tensor, pool: Pool) -> Tensor:
    """The whole pool, `rows` where they were; the other slots are poisoned, or zero in a large pool."""
    shape = (pool.slots, *rows.shape[1:])
    if is_poisoned(pool, rows):
        whole = poison(torch.empty(shape, dtype=rows.dtype))
    else:
        whole = torch.zeros(shape, dtype=rows.dtype)
    as_integers(whole)[list(pool.rows)] = as_integers(rows)  # as bits: fp8 cannot be indexed
    return whole


def _renumbered(
    record: StoredRecord, operation: Operation, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """`tensors` with every pool's index tensor pointing at stored rows instead of the caller's slots."""
    found = dict(tensors)
    for name, pool in record.info.pools.items():
        index_name = operation.spec(name).pool_index
        if index_name is None or _is_whole(pool):
            continue
        indices = tensors[index_name]
        if bool((indices >= pool.slots).any()):
            raise BadInputError(
                f"record {record.number}: {index_name} names a slot past the {pool.slots} of {name}"
            )
        position = torch.full((pool.slots,), -1, dtype=indices.dtype)
        position[list(pool.rows)] = torch.arange(len(pool.rows), dtype=indices.dtype)
        renumbered = torch.where(indices < 0, indices, position[indices.clamp(min=0).long()])
        if bool(((indices >= 0) & (renumbered < 0)).any()):
            lost = int(indices[(indices >= 0) & (renumbered < 0)][0])
            raise BadInputError(
                f"record {record.number}: {index_name} names slot {lost} of {name}, which was not captured"
            )
        found[index_name] = renumbered
    return found
