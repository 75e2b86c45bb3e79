# SPDX-License-Identifier: Apache-2.0
"""A record in the making: inputs copied before the call, outputs after it, then one record of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.claims import LINEAGE, Claims
from gdnbench.capture.device_snapshot import (
    Arriving,
    DevicePool,
    DeviceSnapshot,
    check_rows,
    pool_on_device,
    snapshot_on_device,
)
from gdnbench.capture.kept_states import KEPT, KeptStates
from gdnbench.capture.layers import Layer
from gdnbench.capture.packing import Fill, copy_fill
from gdnbench.capture.snapshot import Copied, Form, is_plain, snapshot
from gdnbench.capture.streams import Streams
from gdnbench.ops import operation
from gdnbench.pools import checksum, digits, mixed, untouched_rows
from gdnbench.record import Pool, RecordDraft, RecordInfo, Status, TensorDraft
from gdnbench_kernels.contract import Call, Operation, Role

# (layer, tensor name, tensor) -> the copy kept from the layer's last call, if its bytes are the same.
Carried = Callable[[str, str, Tensor], Tensor | None]


@dataclass(slots=True)
class PoolRows:
    """Rows of a pool that the call can touch; `rows` is None if the whole pool is kept."""

    slots: int
    numbers: tuple[int, ...]
    rows: Tensor | None = None
    untouched: Tensor | None = None  # rows whose checksum is kept, of a pool that the call writes
    before: Tensor | None = None  # checksums of the untouched rows; may be in flight
    after: Tensor | None = None

    def recorded(self) -> Pool:
        before, after = (None if total is None else digits(total) for total in (self.before, self.after))
        return Pool(self.slots, self.numbers, before, after)


@dataclass(slots=True)
class OnDevice:
    """The parts of a record that are in flight from a device."""

    pools: Mapping[str, DevicePool]
    before: Arriving
    after: Arriving = field(default_factory=Arriving)
    reserved: int = 0  # bytes that the recorder has reserved for it


@dataclass(slots=True)
class PendingRecord:
    observation: Observation
    info: RecordInfo
    axes: Mapping[str, tuple[str, ...]]
    pools: dict[str, PoolRows]
    before: dict[str, Copied]
    after: dict[str, Copied]
    token: int | None = None  # of the journal entry, once the inputs are in it
    begun: bool = False
    device: OnDevice | None = None
    layer: Layer = field(kw_only=True)
    reason: str | None = None  # why it is kept, if a trigger held for it
    claims: Claims | None = None  # while some of them are in flight from the device
    flags: list[Any] = field(default_factory=list)  # non-finite checks in flight from the device
    small_parts: Any = None  # of `gdnbench.capture.lineage_trigger`, in flight from the device

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the record occupies."""
        return self.device.reserved if self.device is not None and self.device.reserved else self.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' elements, including those in flight."""
        here = sum(copied.data.nbytes for some in (self.before, self.after) for copied in some.values())
        return here if self.device is None else here + self.device.before.nbytes + self.device.after.nbytes

    def close(self, seen: Mapping[str, Seen], *, waits: bool = False) -> None:
        """Copy outputs and mutated tensors of a call on the CPU. `waits`: the record is written after the
        caller gets them."""
        for name, tensor in seen.items():
            rows = self.pools.get(name)
            if rows is None:
                self.after[name] = snapshot(tensor, reused=waits)
            else:
                self.after[name], rows.after = _copy_rows(tensor, rows, reused=waits)
        self.close_kept_states(1)
        if waits:
            self.observation = replace(self.observation, tensors={})

    def close_kept_states(self, sample: int) -> None:
        """Digest the states that a call on the CPU kept outside its pool."""
        kept = self.observation.kept_states
        if kept is not None:
            self.after[KEPT] = _form_of(kept).copied(kept.digests(sample))
            self.observation = replace(self.observation, kept_states=None)

    def outputs(self, seen: Mapping[str, Seen], streams: Streams) -> DeviceSnapshot:
        """The snapshot to take of the outputs of a call on a device."""
        assert self.device is not None
        kept = self.observation.kept_states
        # Drop references to the caller's tensors, so that their memory can be reused.
        self.observation = replace(self.observation, tensors={}, kept_states=None)
        return with_kept_states(snapshot_on_device(seen, self.device.pools, streams), kept, 1)

    def close_unfinished(self, error: BaseException) -> None:
        dispatch = {**self.info.dispatch, "raised": type(error).__name__}
        self.info = replace(self.info, status=Status.UNFINISHED, dispatch=dispatch)

    def arrive(self) -> None:
        """Wait on the host for the copies in flight, and pick the rows that the call touches.

        ValueError if the call names rows that are out of range.
        """
        if self.device is None:
            return
        before, after = self.device.before, self.device.after
        for some in (before, after):
            some.begin()
        for some in (before, after):
            some.arrive()
        fresh = before.tensors
        self.before |= fresh
        self.resolve_claims(before.beside)
        if fresh:
            for name, rows in touched_rows(self.info, self.device.pools, before).items():
                pool = self.device.pools[name]
                untouched = before.sums(name)
                self.pools[name] = PoolRows(
                    pool.shape[0], tuple(rows.tolist()), rows, before=_outside(untouched, rows)
                )
                self.before[name] = _picked(self.before[name], before.named(name), rows)
        for name, copied in after.tensors.items():
            touched = self.pools.get(name)
            if name in self.device.pools and touched is not None and touched.rows is not None:
                touched.after = _outside(after.sums(name), touched.rows)
                copied = _picked(copied, before.named(name), touched.rows)
            self.after[name] = copied
        numbers = before.beside  # the row indices are needed again after the call
        self.device.before, self.device.after = Arriving(beside=numbers), Arriving()

    def resolve_claims(self, arrived: Mapping[str, Tensor]) -> None:
        """Add the claims to the call's info, now that those which are tensors have arrived. Idempotent."""
        if self.claims is not None:
            self.claim(self.claims.as_json(arrived))

    def claim(self, claims: Mapping[str, Any] | None) -> None:
        """Add claims as JSON to the call's info."""
        if claims is not None:
            self.info = replace(self.info, dispatch={**self.info.dispatch, LINEAGE: claims})
        self.claims = None

    def finish_info(self) -> RecordInfo:
        """The call's info with pool checksums, and with the digests of states that it kept outside its pool;
        the copies must be complete."""
        self._claim_kept_states()
        if len(self.info.pools) == len(self.pools) and all(r.before is None for r in self.pools.values()):
            return self.info  # whole pools have no checksums
        return replace(self.info, pools={name: rows.recorded() for name, rows in self.pools.items()})

    def _claim_kept_states(self) -> None:
        claims = self.info.dispatch.get(LINEAGE)
        copied = self.after.get(KEPT)
        if copied is None or not claims or not claims.get("kept"):
            return
        words = copied.data.numpy().view(np.uint64)
        by_sequence = words.reshape(-1, len(claims["requests"]), 2).transpose(1, 0, 2)
        digests = [
            [f"{first:016x}{second:016x}" for first, second in by_sequence[number].tolist()]
            for number in claims["kept"]
        ]
        self.claim({**claims, "kept_digests": digests})

    def finish_inputs(self) -> dict[str, TensorDraft]:
        """The inputs as they are stored; their copies must be complete. The adapter's `finish` may add to the
        info."""
        finish = self.observation.finish
        if finish is None:
            return {name: copied.draft(self.axes[name]) for name, copied in self.before.items()}
        tensors, dispatch = finish({name: copied.data for name, copied in self.before.items()})
        self.info = replace(self.info, dispatch={**self.info.dispatch, **dispatch})
        return {name: self.before[name].draft(self.axes[name], data) for name, data in tensors.items()}

    def finish_outputs(self) -> dict[str, TensorDraft]:
        return {name: copied.draft(self.axes[name]) for name, copied in self.after.items() if name != KEPT}

    def draft(self) -> RecordDraft:
        before = self.finish_inputs()
        return RecordDraft(self.finish_info(), before, self.finish_outputs())


R = TypeVar("R", bound=PendingRecord)


@dataclass(frozen=True, slots=True)
class CallName:
    """Identifies a call: the function, its implementation, the layer, and its numbers."""

    target: str
    implementation: str | None
    layer: Layer
    number: int
    step: int


def open_record(
    observation: Observation, name: CallName, full_pools: bool, carried: Carried
) -> PendingRecord:
    """Copy the inputs of a call on the CPU that is about to start, except states that equal the layer's last
    copy."""
    contract = operation(observation.op)
    pools = _touched(contract, observation, full_pools)
    before = {}
    for tensor, seen in observation.tensors.items():
        rows = pools.get(tensor)
        if rows is None:
            before[tensor] = snapshot(seen, reused=True)
        elif rows.rows is None:
            before[tensor] = snapshot(seen, reused=True, kept=_carried(carried, name.layer, tensor, seen))
        else:
            before[tensor], rows.before = _copy_rows(seen, rows, reused=True)
    return pending_record(observation, name, pools, before)


def pending_record(
    observation: Observation,
    name: CallName,
    pools: dict[str, PoolRows],
    before: dict[str, Copied],
    device: OnDevice | None = None,
    *,
    kind: type[R] = PendingRecord,  # type: ignore[assignment]
) -> R:
    dispatch = dict(observation.dispatch)
    if name.implementation is not None:
        dispatch["implementation"] = name.implementation
    claims = observation.claims
    if device is None and claims is not None:
        dispatch[LINEAGE] = claims.as_json(claims.bundled())
    info = RecordInfo(
        op=observation.op,
        target=name.target,
        layer=name.layer.name,
        layer_index=name.layer.index,
        call=name.number,
        step=name.step,
        status=Status.COMPLETE,
        scalars=observation.scalars,
        conventions=observation.conventions,
        pools={name: Pool(rows.slots, rows.numbers) for name, rows in pools.items()},
        dispatch=dispatch,
    )
    axes = axes_of(operation(observation.op), observation.conventions)
    pending = kind(observation, info, axes, pools, before, {}, device=device, layer=name.layer)
    if device is not None:
        pending.claims = claims
    return pending


def inputs_on_device(
    observation: Observation, full_pools: bool, streams: Streams
) -> tuple[DeviceSnapshot, dict[str, PoolRows], dict[str, DevicePool]]:
    """The snapshot to take of a call's inputs; the pools kept whole; and the pools whose rows are picked
    later."""
    contract = operation(observation.op)
    whole: dict[str, PoolRows] = {}
    some: dict[str, DevicePool] = {}
    call = as_call(observation)
    for name in pool_names(contract, observation):
        if full_pools or name in observation.whole_pools:
            whole[name] = whole_pool(observation.tensors[name])
        else:
            some[name] = pool_on_device(contract, name, call, streams)
    found = snapshot_on_device(observation.tensors, some, streams)
    return with_claims(found, observation.claims), whole, some


def with_claims(found: DeviceSnapshot, claims: Claims | None) -> DeviceSnapshot:
    """`found`, with the claims that are tensors."""
    tensors = {} if claims is None else claims.bundled()
    if not tensors:
        return found
    fills = {name: copy_fill(tensor) for name, tensor in tensors.items()}
    return replace(found, fills={**found.fills, **fills})


def with_kept_states(found: DeviceSnapshot, kept: KeptStates | None, sample: int) -> DeviceSnapshot:
    """`found`, with the digests of the states that a call kept outside its pool."""
    if kept is None:
        return found
    fill = Fill(torch.int64, kept.shape, kept.buffer.device, lambda view: kept.digests(sample, view))
    return replace(found, forms={**found.forms, KEPT: _form_of(kept)}, fills={**found.fills, KEPT: fill})


def _form_of(kept: KeptStates) -> Form:
    return Form(kept.shape, torch.Size(kept.shape), (2, 1), 0, "cpu")


def whole_pool(seen: Seen) -> PoolRows:
    slots = seen.tensor.shape[0]
    return PoolRows(slots, tuple(range(slots)))


def pool_names(contract: Operation, observation: Observation) -> list[str]:
    return [s.name for s in contract.tensors if s.pool_index is not None and s.name in observation.tensors]


def as_call(observation: Observation) -> Call:
    """The tensors of the operation; an adapter may have others beside them, whose names have a dot."""
    tensors = {
        name: seen.tensor if seen.shape is None else seen.tensor.reshape(seen.shape)
        for name, seen in observation.tensors.items()
        if "." not in name
    }
    return Call(tensors, observation.scalars, observation.conventions)


def touched_rows(info: RecordInfo, pools: Mapping[str, DevicePool], before: Arriving) -> dict[str, Tensor]:
    """The rows of each pool that a call touches, from its index tensors, which have arrived.

    ValueError if a row is out of range, or if other rows were copied.
    """
    found = {name: pool.rows for name, pool in pools.items() if pool.rows is not None}
    if len(found) == len(pools):
        return found
    key = _numbers_of(info, pools, before)
    known = _rows_known.get(key)
    if known is None:
        known = _rows_of_call(info, pools, before)
        if len(_rows_known) >= _ROWS_KNOWN:
            _rows_known.clear()  # not pop(): threads of other captures use it too
        _rows_known[key] = known
    for name in pools.keys() - found.keys():
        arrived, (touched, named) = before.named(name), known[name]
        assert arrived is not None
        if not torch.equal(named, arrived):
            # Only in a CUDA graph: rows are copied before its replay, index tensors at the call.
            raise ValueError(f"the graph changes the rows of {name} that the call names before it gets there")
        check_rows(name, touched, pools[name].shape[0])
        found[name] = touched
    return found


_ROWS_KNOWN = 64
_rows_known: dict[tuple[Any, ...], dict[str, tuple[Tensor, Tensor]]] = {}
"""Touched and named rows, ascending, by pool, for recent index tensors.

All layers of a step share them, and computing them in Python blocks the program's thread.
"""


def _numbers_of(info: RecordInfo, pools: Mapping[str, DevicePool], before: Arriving) -> tuple[Any, ...]:
    """Everything that the rows of a call can depend on: integer tensors, shapes, scalars and conventions."""
    tensors = (
        (name, one.data.shape, one.data.dtype, one.data.numpy().tobytes() if _is_integer(one.data) else b"")
        for name, one in before.tensors.items()
        if name not in pools
    )
    shapes = ((name, pool.shape) for name, pool in pools.items())
    said = (*info.scalars.items(), *info.conventions.items())
    return (info.op, *shapes, *tensors, *((name, type(value), value) for name, value in said))


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _rows_of_call(
    info: RecordInfo, pools: Mapping[str, DevicePool], before: Arriving
) -> dict[str, tuple[Tensor, Tensor]]:
    contract = operation(info.op)
    tensors = {
        name: torch.empty(pools[name].shape, device="meta") if name in pools else copied.data
        for name, copied in before.tensors.items()
    }
    call = Call(tensors, info.scalars, info.conventions)
    touched = contract.touched(call)
    assert contract.named_rows is not None
    named = contract.named_rows.of(call)
    return {
        name: (touched[name], named[name].long().sort().values)
        for name, pool in pools.items()
        if pool.rows is None
    }


def _picked(copied: Copied, named: Tensor | None, rows: Tensor) -> Copied:
    """From copied rows with indices `named`, those in `rows`; both ascending."""
    if named is None or torch.equal(named, rows):
        return copied
    places = torch.searchsorted(named, rows)
    first = int(places[0]) if len(places) else 0
    if torch.equal(places, torch.arange(first, first + len(rows))):
        return copied._replace(data=copied.data[first : first + len(rows)])
    words = copied.data.view(torch.uint8) if copied.data.element_size() == 1 else copied.data
    return copied._replace(data=torch.index_select(words, 0, places).view(copied.data.dtype))


def _outside(sums: Tensor | None, rows: Tensor) -> Tensor | None:
    """The checksum of all rows except `rows`, from the sums of all rows."""
    if sums is None:
        return None
    others = untouched_rows(len(sums), rows)
    return mixed(sums[others], others).sum()


def _carried(carried: Carried, layer: Layer, name: str, seen: Seen) -> Tensor | None:
    tensor = seen.tensor
    usable = is_plain(tensor) and tensor.is_cpu and tensor.is_contiguous()
    return carried(layer.name, name, tensor) if usable else None


_axes_known: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}


def axes_of(contract: Operation, conventions: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    key = (contract.name, *conventions.values())
    if key not in _axes_known:
        _axes_known[key] = {spec.name: spec.axes_in(conventions) for spec in contract.tensors}
    return _axes_known[key]


def _touched(contract: Operation, observation: Observation, full_pools: bool) -> dict[str, PoolRows]:
    names = pool_names(contract, observation)
    pools = {
        name: whole_pool(observation.tensors[name])
        for name in names
        if full_pools or name in observation.whole_pools
    }
    if len(pools) == len(names):
        return pools
    call = as_call(observation)
    tensors, touched = call.tensors, contract.touched(call)
    for name in names:
        if name not in pools:
            slots, rows = tensors[name].shape[0], touched[name]
            check_rows(name, rows, slots)
            pools[name] = PoolRows(slots, tuple(rows.tolist()), rows)
            if contract.spec(name).role is Role.MUTATED:
                pools[name].untouched = untouched_rows(slots, rows)
    return pools


def _copy_rows(seen: Seen, pool: PoolRows, *, reused: bool) -> tuple[Copied, Tensor | None]:
    """The kept rows of a pool, and a checksum of the others if the call writes the pool."""
    if pool.rows is None:
        return snapshot(seen, reused=reused), None
    tensor = seen.tensor.detach()
    words = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor  # fp8 has no index_select
    some = torch.index_select(words, 0, pool.rows).view(tensor.dtype)
    # The gather already made a copy.
    copied = snapshot(Seen(some, None, seen.caller if seen.caller is not None else seen.tensor), reused=False)
    if pool.untouched is None:
        return copied, None
    return copied, snapshot(Seen(checksum(tensor, pool.untouched)), reused=False).data
