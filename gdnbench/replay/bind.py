# SPDX-License-Identifier: Apache-2.0
"""From a record to the call that a kernel gets: exactly what the caller passed.

Pools have all their slots at their own indices, tensors the caller's strides. `gdnbench.judge.calls` makes
the same call on the stored slots alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.judge.calls import call_of, is_whole
from gdnbench.poison import poison
from gdnbench.record import Pool, TensorMeta
from gdnbench.replay.lazy_pool import sparse_pool
from gdnbench.replay.strides import as_held
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation

POISONED_POOL_BYTES = 1 << 30
"""Pools up to this size hold NaN in the slots that were not stored; larger ones zeros."""


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call ready for a kernel, and what of the caller's layout could not be rebuilt."""

    call: Call
    notes: tuple[str, ...]


def exact(record: StoredRecord, operation: Operation, device: torch.device) -> BoundCall:
    """The call as it was made: exact slots and, where memory allows, exact strides."""
    tensors: dict[str, Tensor] = {}
    notes = []
    for name, handle in record.before.items():
        pool = record.info.pools.get(name)
        rows = handle.read()
        if pool is None or is_whole(pool):
            held = as_held(rows, handle.meta, device)
        elif is_poisoned(pool, rows):
            held = as_held(_spread(rows, pool), _pool_meta(handle.meta, pool), device)
        else:
            held = sparse_pool(rows, pool, handle.meta, device)
        tensors[name] = held.tensor
        if held.note:
            notes.append(f"{name}: {held.note}")
    return BoundCall(call_of(record, operation, tensors), tuple(notes))


def is_poisoned(pool: Pool, rows: Tensor) -> bool:
    """Whether the slots that were not stored are poisoned rather than zero."""
    return pool.slots * math.prod(rows.shape[1:]) * rows.element_size() <= POISONED_POOL_BYTES


def _pool_meta(meta: TensorMeta, pool: Pool) -> TensorMeta:
    """Metadata of the whole pool whose rows `meta` describes."""
    shape = (pool.slots, *meta.shape[1:])
    return TensorMeta(
        meta.dtype, shape, meta.axes, meta.caller_shape, meta.caller_strides, meta.caller_offset, meta.device
    )


def _spread(rows: Tensor, pool: Pool) -> Tensor:
    """The whole pool, `rows` where they were; the other slots are poisoned."""
    whole = poison(torch.empty((pool.slots, *rows.shape[1:]), dtype=rows.dtype))
    as_integers(whole)[list(pool.rows)] = as_integers(rows)  # as bits: fp8 cannot be indexed
    return whole
