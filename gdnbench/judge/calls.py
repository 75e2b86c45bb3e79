"""From a record to the call it holds: on the slots that were stored, for oracles and for comparison.

The pools of such a call have only the stored slots, and its indices are renumbered to match: the same
mathematics as the call that was made, in less memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gdnbench.bits import logical
from gdnbench.errors import BadInputError
from gdnbench.record import Pool
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, ContractError, Operation


def conventions_of(record: StoredRecord, operation: Operation) -> dict[str, str]:
    """The record's conventions, defaults filled in."""
    return {**operation.default_conventions, **record.info.conventions}


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
    operation.validate(call_of(record, operation, tensors))


def compact(record: StoredRecord, operation: Operation, device: torch.device) -> Call:
    """The call on the stored slots alone, contiguous."""
    tensors = {name: handle.read() for name, handle in record.before.items()}
    renumbered = _renumbered(record, operation, tensors)
    return call_of(record, operation, {name: tensor.to(device) for name, tensor in renumbered.items()})


def outline(record: StoredRecord, operation: Operation) -> Call:
    """The compact call with index tensors read, pools and others as shapes without memory: enough for
    `partition`."""
    tensors = {}
    for name, handle in record.before.items():
        dtype = logical(handle.meta.dtype).torch_dtype
        if dtype.is_floating_point or name in record.info.pools:
            tensors[name] = torch.empty(handle.meta.shape, dtype=dtype, device="meta")
        else:
            tensors[name] = handle.read()
    return call_of(record, operation, _renumbered(record, operation, tensors))


def slots_of(record: StoredRecord, name: str) -> tuple[int, ...] | None:
    """The slots that the stored rows of tensor `name` are; None where it is no pool or whole."""
    pool = record.info.pools.get(name)
    return None if pool is None or is_whole(pool) else pool.rows


def is_whole(pool: Pool) -> bool:
    """Whether every slot of a pool was stored."""
    return pool.rows == tuple(range(pool.slots))


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
        # A run holds no pools: their bytes are those of the capture.
        stored = {name: pool.rows for name, pool in partial.items() if name in tensors}
        try:
            return found | operation.renumber(call_of(record, operation, tensors), stored)
        except ContractError as error:
            raise BadInputError(f"record {record.number}: {error}") from None
    for name, pool in partial.items():
        index_name = operation.spec(name).pool_index
        if index_name is None:
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
