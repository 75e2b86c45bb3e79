# SPDX-License-Identifier: Apache-2.0
"""Checks what a kernel must not change: its inputs, and every pool slot that the call does not own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from gdnbench.bits import as_integers
from gdnbench.judge.calls import is_whole, outline_call
from gdnbench.poison import poison_bits, same_bits
from gdnbench.replay.bind import is_poisoned
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation, Role

_ROWS_BYTES = 64 << 20


def inputs_of(record: StoredRecord, call: Call, operation: Operation) -> dict[str, Tensor]:
    """Copies of the inputs of `call`, to be compared after it, but for pools too large to copy."""
    names = {spec.name for spec in operation.tensors if spec.role is Role.INPUT}
    names -= _large_pools(record, call)
    return {name: tensor.clone() for name, tensor in call.tensors.items() if name in names}


def _large_pools(record: StoredRecord, call: Call) -> set[str]:
    """Pools whose slots were not all stored and that are not poisoned."""
    return {
        name
        for name, pool in record.info.pools.items()
        if name in call.tensors and not is_whole(pool) and not is_poisoned(pool, call.tensors[name])
    }


def written_pools(record: StoredRecord, operation: Operation, call: Call) -> list[str]:
    """One line for each large pool among the inputs that no longer has the bits it was bound with."""
    faults = []
    for name in sorted(_large_pools(record, call)):
        if operation.spec(name).role is not Role.INPUT:
            continue  # see `written_slots`
        wrong = _changed(record, name, call.tensors[name], record.info.pools[name].rows, set())
        if wrong:
            faults.append(f"input {name} was written to: {len(wrong)} slots, first slot {wrong[0]}")
    return faults


def written_inputs(call: Call, before: Mapping[str, Tensor]) -> list[str]:
    """One line for each input of `call` that no longer has the bits it had in `before`."""
    faults = []
    for name, tensor in before.items():
        if not same_bits(call.tensors[name], tensor):
            wrong = torch.nonzero(as_integers(call.tensors[name]) != as_integers(tensor))
            faults.append(f"input {name} was written to: {len(wrong)} elements, first {wrong[0].tolist()}")
    return faults


def written_slots(
    record: StoredRecord, operation: Operation, call: Call, results: Mapping[str, Tensor]
) -> list[str]:
    """One line for each pool in which a slot that `call` may not touch has changed.

    `results` holds the pools after the call, whole, in the record's conventions.
    """
    faults = []
    for name, touched in operation.touched(call).items():
        if operation.spec(name).role is not Role.MUTATED:
            continue  # an input: see `written_inputs` and `written_pools`
        pool = results[name]
        stored = record.info.pools[name].rows if name in record.info.pools else tuple(range(len(pool)))
        wrong = _changed(record, name, pool, stored, set(touched.tolist()))
        if wrong:
            faults.append(
                f"{name}: {len(wrong)} slots were written that the call must not touch, first slot {wrong[0]}"
            )
    return faults


def recorded_faults(record: StoredRecord, operation: Operation) -> list[str]:
    """One line for each pool in which the recorded call itself changed a slot that it may not touch."""
    faults = []
    for name, pool in record.info.pools.items():
        if name not in record.after:
            continue
        what = f"recorded {name}: slots that the call must not touch changed during it"
        if pool.untouched_before != pool.untouched_after:
            faults.append(f"{what} (checksum {pool.untouched_before} before, {pool.untouched_after} after)")
        touched = operation.touched(outline_call(record, operation))[name].tolist()
        idle = sorted(set(range(len(pool.rows))) - set(touched))  # positions: the outline renumbers slots
        if not idle:
            continue
        before, after = record.before[name].read(), record.after[name].read()
        if wrong := [pool.rows[i] for i in idle if not same_bits(before[i], after[i])]:
            faults.append(f"{what}, first slot {wrong[0]}")
    return faults


def _changed(
    record: StoredRecord, name: str, pool: Tensor, stored: tuple[int, ...], touched: set[int]
) -> list[int]:
    """Untouched slots whose bits differ from what they were bound with, in order."""
    wrong = []
    idle = [(position, slot) for position, slot in enumerate(stored) if slot not in touched]
    if idle:
        before = record.before[name].read()
        wrong += [slot for position, slot in idle if not same_bits(pool[slot].cpu(), before[position])]
    filling = 0
    if name in record.info.pools and is_poisoned(record.info.pools[name], pool):
        filling = poison_bits(pool.dtype)
    rows = max(1, _ROWS_BYTES // max(1, pool[:1].nbytes))
    ends = (-1, *sorted(stored), len(pool))
    for before_run, after_run in pairwise(ends):
        for start in range(before_run + 1, after_run, rows):
            bits = as_integers(pool[start : min(start + rows, after_run)])
            # The common answer without a copy: a pool may be most of the memory there is.
            if bool(bits.any() if filling == 0 else (bits != filling).any()):
                differs = (bits != filling).flatten(1).any(1)
                wrong += [start + int(row) for row in torch.nonzero(differs)]
    return sorted(wrong)
