# SPDX-License-Identifier: Apache-2.0
"""Calls that are kept as digests: index tensors, and digests of the rows that the call reads and writes.

An observation is reduced to integer tensors and states before anything is copied. A state's rows are replaced
by their digests, computed where the state is: before the call, and after it if the call writes them. What
else records do (streams, CUDA graphs, transfers) works on these as on other tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from gdnbench.capture.adapter import NotCaptured, Observation, Reduced, Seen
from gdnbench.capture.claims import Claims
from gdnbench.capture.device_snapshot import ROWS, Arriving, DeviceSnapshot, snapshot_on_device
from gdnbench.capture.inflight import (
    CallName,
    OnDevice,
    PendingRecord,
    as_call,
    pending_record,
    with_claims,
    with_kept_states,
)
from gdnbench.capture.packing import Fill, copy_fill
from gdnbench.capture.snapshot import Copied, Form, detached_elements, snapshot
from gdnbench.capture.streams import Streams
from gdnbench.digests import indexed_digests
from gdnbench.lineage.call_rows import RowForm
from gdnbench.ops import operation
from gdnbench_kernels.contract import Call, Operation, Role, TensorSpec

COMPRESSED = "extra_block_size"
PAGE_AXES = ("block_size", COMPRESSED)
"""Pools with one of these axes have pages; their index tensors have numbers of tokens, not of pages."""


@dataclass(frozen=True, slots=True)
class DigestRows:
    """The rows of a tensor to digest. `index`: their numbers, with repeats and numbers that are no row; None
    for all rows. `order`: how the axes are permuted first; None if they are not. `columns`: of a window of
    the last axis; the digests of all rows' first windows come first, then those of the windows a column
    later, and so on, as only the call's index tensors say which windows it reads. None for whole rows."""

    index: Tensor | None
    paged: bool
    order: tuple[int, ...] | None
    sample: int
    columns: int | None = None

    def view(self, tensor: Tensor) -> Tensor:
        """`tensor` with a row for each row that has a digest. NotCaptured for pages that lie apart."""
        tensor = detached_elements(tensor)
        if not self.paged:
            return tensor if self.order is None else tensor.permute(self.order)
        try:
            return tensor.view(-1, *tensor.shape[2:])
        except RuntimeError:
            raise NotCaptured("digests of pages that do not follow each other in memory") from None

    def digests(self, tensor: Tensor) -> Tensor:
        """int64 [n, 2]; [windows * n, 2] with `columns`."""
        found = [
            indexed_digests(rows, self.index, self.sample)
            for rows in windows(self.view(tensor), self.columns)
        ]
        return found[0] if self.columns is None else torch.cat(found)

    def fills(self, name: str, tensor: Tensor) -> dict[str, Fill]:
        """What to pack for `tensor`: the digests, and the rows' numbers."""
        index, sample = self.index, self.sample
        parts = windows(self.view(tensor), self.columns)
        count = parts[0].shape[0] if index is None else index.numel()

        def fill(view: Tensor) -> None:
            for rows, out in zip(parts, view.view(len(parts), count, 2), strict=True):
                indexed_digests(rows, index, sample, out)

        found = {name: Fill(torch.int64, (len(parts) * count, 2), tensor.device, fill)}
        if index is not None:
            found[name + ROWS] = copy_fill(index)
        return found


def windows(rows: Tensor, columns: int | None) -> list[Tensor]:
    """Views of `rows` [n, ..., L]: each window of `columns` columns of the last axis; with None, the rows."""
    if columns is None:
        return [rows]
    return list(rows.unfold(-1, columns, 1).unbind(-2))


_orders: dict[frozenset[str], tuple[str, ...]] = {}
"""The order of axes in the rows of pools, by the set of axes: rows that a caller gathered from a pool have
their digests in this order, so that they can be compared with the pool's."""


def reduced(observation: Observation, sample: int, claims: Claims | None) -> Observation:
    """The observation with these claims, without tensors that a digest does not need. Reads no element."""
    contract = operation(observation.op)
    if contract.accesses is None:
        nothing = Reduced(sample, {}, frozenset(), frozenset())
        return replace(observation, tensors={}, finish=None, claims=claims, reduced=nothing)
    before, after, pools = _state_names(contract.name)
    states = {name for name in before if name in observation.tensors}
    for name in states:
        spec = contract.spec(name)
        if spec.pool_index is not None and not has_pages(spec):
            axes = spec.axes_in(observation.conventions)[1:]
            _orders[frozenset(axes)] = axes
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    kept: dict[str, Seen] = {}
    for name, seen in observation.tensors.items():
        dtype = seen.tensor.dtype
        shapes[name] = (_shape(seen), dtype)
        is_integer = not (dtype.is_floating_point or dtype.is_complex)
        if name in states or (is_integer and name not in pools):
            kept[name] = seen
    found = Reduced(sample, shapes, frozenset(states), after, _columns(contract, shapes))
    return observation.with_only(kept, claims, found, observation.kept_states)


@cache
def _state_names(op: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The tensors whose rows a call reads, those whose rows it leaves, and all pools."""
    contract = operation(op)
    pools = [
        spec
        for spec in contract.tensors
        # The log leaves out rows of a selection (`Accesses.compressed`).
        if spec.pool_index is not None and len(spec.axes) > 1 and COMPRESSED not in spec.axes
    ]
    before = {spec.name for spec in pools}
    after = {spec.name for spec in pools if spec.role is Role.MUTATED}
    if contract.carries is not None:
        before.add(contract.carries[0])
        after.add(contract.carries[1])
    pooled = frozenset(spec.name for spec in contract.tensors if spec.pool_index is not None)
    return frozenset(before), frozenset(after), pooled


def _columns(
    contract: Operation, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
) -> dict[str, int]:
    """Of inputs whose rows keep several windows, the columns of one."""
    if contract.columns is None:
        return {}
    named = contract.columns({name: shape for name, (shape, _) in shapes.items()})
    return {name: one for name, one in named.items() if name in shapes and 0 < one < shapes[name][0][-1]}


def _columns_of(observation: Observation, name: str) -> int | None:
    kept = observation.reduced or observation.watched
    return None if kept is None else kept.columns.get(name)


def _shape(seen: Seen) -> tuple[int, ...]:
    return tuple(seen.tensor.shape) if seen.shape is None else seen.shape


def digest_rows(
    observation: Observation, names: Iterable[str], call: Call | None, streams: Streams | None = None
) -> dict[str, DigestRows]:
    """How to digest the states `names` of a reduced observation.

    `call`: of the observation, for pools whose rows it names; None if there are none in `names`. `streams`
    takes index tensors of the host to the device.
    """
    contract, kept = operation(observation.op), observation.reduced
    assert kept is not None
    found = {}
    for name in names:
        spec = contract.spec(name)
        index, paged, order = None, has_pages(spec), None
        if spec.pool_index is not None and name not in observation.whole_pools:
            assert call is not None
            named = contract.named_rows
            index = named.of(call)[name] if named is not None else call.tensors[spec.pool_index]
            index = index.reshape(-1)
            device = call.tensors[name].device
            if streams is not None and index.device != device:
                index = streams.to_device(index, device)
        if spec.pool_index is None:
            order = _order(spec.axes_in(observation.conventions))
        found[name] = DigestRows(index, paged, order, kept.sample, kept.columns.get(name))
    return found


def has_pages(spec: TensorSpec) -> bool:
    """Whether a tensor is a pool of pages."""
    return any(axis in PAGE_AXES for axis in spec.axes)


def is_paged(observation: Observation, name: str) -> bool:
    """Whether the rows of state `name` are in pages."""
    return has_pages(operation(observation.op).spec(name))


def digests_of_copy(observation: Observation, name: str, rows: Tensor) -> Tensor:
    """Digests of copied rows of state `name`: int64 [n, 2]; of pages, one for each row in them; of rows that
    keep windows, as `DigestRows.digests`."""
    spec = operation(observation.op).spec(name)
    order = _order(spec.axes_in(observation.conventions)) if spec.pool_index is None else None
    columns = _columns_of(observation, name)
    return DigestRows(None, has_pages(spec), order, 1, columns).digests(rows)


def _order(axes: tuple[str, ...]) -> tuple[int, ...] | None:
    """The permutation that brings gathered rows into the order of their pool's."""
    wanted = _orders.get(frozenset(axes[1:]))
    if wanted is None or wanted == axes[1:]:
        return None
    return (0, *(axes.index(axis) for axis in wanted))


def row_form(observation: Observation, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> RowForm:
    """The form of what has a digest of state `name`, whose tensor has `dtype` and `shape`."""
    spec = operation(observation.op).spec(name)
    axes = spec.axes_in(observation.conventions)
    if has_pages(spec):
        axes, shape = axes[1:], shape[1:]
    order = _order(axes) if spec.pool_index is None else None
    if order is not None:
        axes, shape = tuple(axes[i] for i in order), tuple(shape[i] for i in order)
    if (columns := _columns_of(observation, name)) is not None:
        shape = (*shape[:-1], columns)
    return RowForm(str(dtype).removeprefix("torch."), axes[1:], tuple(shape[1:]))


@dataclass(slots=True)
class DigestRecord(PendingRecord):
    """A call that is kept as digests. `before` and `after` have digests [n, 2] in the place of states."""

    numbers: dict[str, Tensor] = field(default_factory=dict)  # of rows by state; a state without: all rows
    forms: dict[str, RowForm] = field(default_factory=dict)  # by state
    rows_of: dict[str, DigestRows] = field(default_factory=dict)

    def close(self, seen: Mapping[str, Seen], *, waits: bool = False) -> None:
        """Digest the states that a call on the CPU left."""
        for name, one in self._states(seen).items():
            self.after[name] = Form.from_seen(one).rows(self.rows_of[name].digests(one.tensor))
        self.close_kept_states(self._sample)
        self.observation = replace(self.observation, tensors={})

    @property
    def _sample(self) -> int:
        assert self.observation.reduced is not None
        return self.observation.reduced.sample

    def outputs(self, seen: Mapping[str, Seen], streams: Streams) -> DeviceSnapshot:
        """The digests to take of the states that a call on a device left."""
        states, kept = self._states(seen), self.observation.kept_states
        self.observation = replace(self.observation, tensors={}, kept_states=None)
        found = snapshot_on_device(states, {name: self.rows_of[name] for name in states}, streams)
        return with_kept_states(found, kept, self._sample)

    def _states(self, seen: Mapping[str, Seen]) -> dict[str, Seen]:
        states = written_states(self.observation, seen)
        fresh = states.keys() - self.rows_of.keys()
        self.rows_of |= digest_rows(self.observation, fresh, None)
        self.note_forms(states)
        return states

    def note_forms(self, states: Mapping[str, Seen]) -> None:
        for name, one in states.items():
            self.forms[name] = row_form(self.observation, name, one.tensor.dtype, tuple(one.tensor.shape))

    def arrive(self) -> None:
        """Wait on the host for the copies in flight."""
        if self.device is None:
            return
        before, after = self.device.before, self.device.after
        for some in (before, after):
            some.begin()
        for some in (before, after):
            some.arrive()
        self.before |= before.tensors
        self.after |= after.tensors
        for name in before.tensors:
            if (named := before.named(name)) is not None:
                self.numbers[name] = named
        self.resolve_claims(before.beside)
        self.device.before, self.device.after = Arriving(), Arriving()

    def call(self) -> Call:
        """The call as the adapter finishes it, with its index tensors; all others are without elements.

        Raises what `Finish` raises.
        """
        kept = self.observation.reduced
        assert kept is not None
        tensors = {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, (shape, dtype) in kept.shapes.items()
        }
        tensors |= {name: one.data for name, one in self.before.items() if name not in kept.before}
        if self.observation.finish is not None:
            tensors, _ = self.observation.finish(tensors)
        return Call(tensors, self.info.scalars, self.info.conventions)


def written_states(observation: Observation, seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """Of a call's outputs and mutated tensors, the states that it leaves."""
    kept = observation.reduced
    assert kept is not None
    return {name: one for name, one in seen.items() if name in kept.after}


def digest_record(
    observation: Observation,
    name: CallName,
    rows_of: Mapping[str, DigestRows],
    *,
    before: Mapping[str, Copied] | None = None,
    device: OnDevice | None = None,
) -> DigestRecord:
    """The record of a call that is about to start, or that a graph replays."""
    found = pending_record(observation, name, {}, dict(before or {}), device, kind=DigestRecord)
    found.rows_of = dict(rows_of)
    return found


def digests_on_device(
    observation: Observation, streams: Streams
) -> tuple[DeviceSnapshot, dict[str, DigestRows]]:
    """The snapshot to take of a call on a device that is about to start."""
    kept = observation.reduced
    assert kept is not None
    rows_of = digest_rows(observation, kept.before, as_call(observation), streams)
    found = snapshot_on_device(observation.tensors, rows_of, streams)
    return with_claims(found, observation.claims), rows_of


def open_on_host(observation: Observation, name: CallName) -> DigestRecord:
    """The record of a call on the CPU that is about to start."""
    kept = observation.reduced
    assert kept is not None
    rows_of = digest_rows(observation, kept.before, as_call(observation))
    before: dict[str, Copied] = {}
    for tensor, seen in observation.tensors.items():
        rows = rows_of.get(tensor)
        if rows is None:
            before[tensor] = snapshot(seen, reused=True)
        else:
            before[tensor] = Form.from_seen(seen).rows(rows.digests(seen.tensor))
    found = digest_record(observation, name, rows_of, before=before)
    found.note_forms({state: observation.tensors[state] for state in kept.before})
    found.numbers = {state: rows.index.clone() for state, rows in rows_of.items() if rows.index is not None}
    return found
