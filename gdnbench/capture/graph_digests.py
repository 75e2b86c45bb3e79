# SPDX-License-Identifier: Apache-2.0
"""Digests of all calls of a CUDA graph at once: a kernel before a replay and one after it, which write into
the block of memory that `gdnbench.capture.digest_buffer` sends to the host now and then.

What they read is in a table on the device, made at the first replay. Calls whose index tensors are the same
share the graph's copy of them, and a replay of calls that are alike has its rows worked out once. So what a
replay costs hardly depends on the number of layers. An eager call is a graph of one call, as it were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.claims import Claims
from gdnbench.capture.device_snapshot import Arriving
from gdnbench.capture.digest_buffer import DigestBuffer, Slice
from gdnbench.capture.digest_record import DigestRecord, digest_record, has_pages, row_form
from gdnbench.capture.inflight import CallName, OnDevice
from gdnbench.capture.kept_states import KEPT, KeptStates
from gdnbench.capture.layers import Layer
from gdnbench.capture.packing import Bundle, Part, copy_fill, lay_out, pack, views
from gdnbench.capture.snapshot import Copied, Form
from gdnbench.capture.streams import Streams
from gdnbench.digests import CopyJob, Digests, Jobs, RowsJob
from gdnbench.lineage.call_rows import RowForm
from gdnbench.ops import operation


@dataclass(slots=True)
class SharedCopies:
    """A graph's copies of index tensors: layers that get the same tensor share its copy."""

    held: dict[tuple[Any, ...], tuple[Tensor, Bundle]] = field(default_factory=dict)

    def copy(self, name: str, seen: Seen) -> Bundle:
        """The copy, which a node of the graph that is being captured makes unless there is one.

        The tensor is held, so that no other has its address while the graph is captured, and its version
        tells whether it was written in between.
        """
        tensor = seen.tensor
        key = (name, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor._version)
        if key not in self.held:
            self.held[key] = (tensor, pack({name: copy_fill(tensor)})[0])
        return self.held[key][1]


@dataclass(frozen=True, eq=False, slots=True)
class AlikeCalls:
    """Calls of a graph that differ in nothing but layer and pool; or one eager call. Holds no tensor of an
    eager call.

    `at`: their places among the graph's calls. `kind`: the same object for all groups whose rows differ in
    nothing but what the device says.
    """

    at: tuple[int, ...]
    layers: tuple[Layer, ...]
    target: str
    implementation: str | None
    pool: str
    observation: Observation
    visible: Observation  # as adapters get it, to tell whose sequences these are
    form: RowForm
    forms: Mapping[str, Form]  # of the index tensors
    kind: object


@dataclass(frozen=True, slots=True)
class _Sources:
    """The tensors of alike calls: pools, numbers of their rows, and index tensors where they can be copied
    from, after the call in a graph, which has copies of them."""

    pools: tuple[Tensor, ...]
    rows: Tensor
    inputs: Mapping[str, Tensor]
    kept: tuple[KeptStates, ...] = ()  # states that the calls keep outside their pools


@dataclass(frozen=True, slots=True)
class GraphDigests:
    """What a replay of a graph writes into a block of memory, and where."""

    groups: tuple[AlikeCalls, ...]
    layers: tuple[Layer, ...]  # of the graph's calls
    device: torch.device
    parts: Mapping[str, Part]
    nbytes: int
    before: Jobs
    after: Jobs


def graph_digests(calls: Sequence[Any], streams: Streams) -> GraphDigests | None:
    """The calls of a graph in groups that are alike; None if one of them has to be digested by itself: it has
    several pools, gathered states, rows that keep several windows, or slots that are made of several index
    tensors."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, call in enumerate(calls):
        observation = call.observation
        if call.outputs is None or observation is None or observation.reduced is None:
            return None
        kept = observation.reduced
        if len(call.static) != 1 or kept.before != call.static.keys() or len(call.indices) != 1:
            return None
        if observation.claims is not None or call.inputs.here or kept.columns:
            return None
        pool = next(iter(call.static.values())).tensor
        index = next(iter(call.indices.values())).tensor
        if not index.is_contiguous() or index.dtype not in (torch.int32, torch.int64):
            return None
        if kept.after & call.static.keys() != kept.before:
            return None  # a pool that is only read needs no digest after the call
        if call.kept_states is not None and not _has_jobs(call.kept_states):
            return None
        shared = tuple(id(bundle) for bundle in call.inputs.bundles)
        where = (pool.device, pool.dtype, tuple(pool.shape), tuple(pool.stride()), index.data_ptr())
        key = (
            call.target,
            call.implementation,
            call.layer.index is None and call.layer.name,  # it may stand for layers that are not known
            observation.op,
            tuple(observation.scalars.items()),
            tuple(observation.conventions.items()),
            tuple(kept.shapes.items()),
            shared,
            where,
            _place_of_kept(call.kept_states, with_buffer=False),
        )
        groups.setdefault(key, []).append(number)
    found = [_alike(calls, at) for at in groups.values()]
    devices = {sources.rows.device for _, sources in found}
    if len(devices) != 1:
        return None
    layers = tuple(call.layer for call in calls)
    return _laid_out(found, layers, devices.pop(), streams, eager=False)


def _alike(calls: Sequence[Any], at: list[int]) -> tuple[AlikeCalls, _Sources]:
    first = calls[at[0]]
    pool, index = next(iter(first.static)), next(iter(first.indices.values())).tensor
    group = AlikeCalls(
        tuple(at),
        tuple(calls[number].layer for number in at),
        first.target,
        first.implementation,
        pool,
        first.observation,
        replace(first.observation, tensors={**first.indices, **first.static}),
        first.row_forms[pool],
        first.inputs.forms,
        object(),
    )
    inputs: dict[str, Tensor] = {}
    for bundle in first.inputs.bundles:
        inputs |= bundle.views(bundle.memory)
    pools = tuple(calls[number].static[pool].tensor for number in at)
    kept = tuple(one for number in at if (one := calls[number].kept_states) is not None)
    return group, _Sources(pools, index.reshape(-1), inputs, kept)


def _has_jobs(kept: KeptStates) -> bool:
    return kept.rows.is_contiguous() and kept.rows.dtype in (torch.int32, torch.int64)


def _place_of_kept(kept: KeptStates | None, *, with_buffer: bool) -> tuple[Any, ...]:
    """What the jobs of digesting kept states depend on."""
    if kept is None:
        return ()
    buffer, rows = kept.buffer, kept.rows
    found = (buffer.dtype, buffer.shape, buffer.stride(), rows.data_ptr(), rows.dtype, rows.shape)
    return (*found, buffer.data_ptr(), rows.stride()) if with_buffer else found


def eager_digests(observation: Observation, name: CallName, streams: Streams) -> GraphDigests | None:
    """The same of one eager call; None if it has to be digested by `gdnbench.capture.digest_record`."""
    kept = observation.reduced
    assert kept is not None
    contract = operation(observation.op)
    if len(kept.before) != 1 or kept.after != kept.before or observation.whole_pools or kept.columns:
        return None
    (pool,) = kept.before
    spec = contract.spec(pool)
    if spec.pool_index is None or has_pages(spec):
        return None
    naming = (spec.pool_index,) if contract.named_rows is None else contract.named_rows.tensors
    given = [one for one in naming if one in observation.tensors]
    if len(given) != 1 or any(one.shape is not None for one in observation.tensors.values()):
        return None
    tensors = {one: seen.tensor for one, seen in observation.tensors.items()}
    index = tensors[given[0]]
    if not index.is_contiguous() or index.dtype not in (torch.int32, torch.int64):
        return None
    if any(one.device != index.device or not streams.holds(one) for one in tensors.values()):
        return None
    form = row_form(observation, pool, tensors[pool].dtype, tuple(tensors[pool].shape))
    inputs = {one: tensor for one, tensor in tensors.items() if one != pool}
    states = observation.kept_states
    if states is not None and not (_has_jobs(states) and streams.holds(states.buffer)):
        return None
    empty = replace(observation, tensors={}, claims=None, finish=None, kept_states=None)
    kind = _kind(
        (
            *(name.target, name.implementation, observation.op, pool, form, kept.sample),
            name.layer.index is None and name.layer.name,
            *(tuple(one.items()) for one in (observation.scalars, observation.conventions, kept.shapes)),
            None if states is None else states.shape,
        )
    )
    group = AlikeCalls(
        (0,),
        (name.layer,),
        name.target,
        name.implementation,
        pool,
        empty,
        empty,
        form,
        {one: Form.from_seen(observation.tensors[one]) for one in inputs},
        kind,
    )
    sources = _Sources((tensors[pool],), index.reshape(-1), inputs, () if states is None else (states,))
    found = _laid_out([(group, sources)], (name.layer,), index.device, streams, eager=True)
    return found if found.before.holds_nothing and found.after.holds_nothing else None


@lru_cache(maxsize=1024)
def _kind(said: tuple[Any, ...]) -> object:
    return object()


def _laid_out(
    groups: Sequence[tuple[AlikeCalls, _Sources]],
    layers: tuple[Layer, ...],
    device: torch.device,
    streams: Streams,
    *,
    eager: bool,
) -> GraphDigests:
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for number, (_, sources) in enumerate(groups):
        wanted[f"{number}/rows"] = (sources.rows.dtype, tuple(sources.rows.shape))
        for name, tensor in sources.inputs.items():
            wanted[f"{number}/in/{name}"] = (tensor.dtype, tuple(tensor.shape))
    for number, (group, sources) in enumerate(groups):
        shape = (len(group.at), sources.rows.numel(), 2)
        wanted[f"{number}/before"] = wanted[f"{number}/after"] = (torch.int64, shape)
        if sources.kept:
            wanted[f"{number}/kept"] = (torch.int64, (len(group.at), *sources.kept[0].shape))
    parts, nbytes = lay_out(wanted)
    before: list[RowsJob | CopyJob] = []
    after: list[RowsJob | CopyJob] = []
    for number, (_, sources) in enumerate(groups):
        before.append(CopyJob(sources.rows, parts[f"{number}/rows"].start))
        for name, tensor in sources.inputs.items():
            (before if eager else after).append(CopyJob(tensor, parts[f"{number}/in/{name}"].start))
        for moment, jobs in (("before", before), ("after", after)):
            start = parts[f"{number}/{moment}"].start
            for place, pool in enumerate(sources.pools):
                jobs.append(RowsJob(pool, sources.rows, start + place * sources.rows.numel() * 16))
        if sources.kept:
            start = parts[f"{number}/kept"].start
            for one in sources.kept:
                for states in one.by_token():
                    after.append(RowsJob(states, one.rows, start))
                    start += one.rows.numel() * 16
    kept = groups[0][0].observation.reduced
    assert kept is not None
    made = [Jobs(jobs, kept.sample, streams.to_device) for jobs in (before, after)]
    return GraphDigests(tuple(group for group, _ in groups), layers, device, parts, nbytes, *made)


@dataclass(slots=True)
class DigestBatch:
    """The digests of the calls of one replay, in a slice of a chunk."""

    plan: GraphDigests
    taken: Slice
    claims: Sequence[Claims | None]  # by group
    more: Mapping[str, Part]  # claims that are tensors
    numbers: Sequence[int] = ()  # of the calls
    steps: Sequence[int] = ()
    observation: Observation | None = None  # of an eager call

    @property
    def nbytes(self) -> int:
        return self.taken.stop - self.taken.start

    @property
    def calls(self) -> int:
        return len(self.plan.layers)

    def all_claims(self) -> Sequence[Claims | None]:
        return self.claims

    def after(self) -> None:
        """Queue what there is once the replay is queued: digests of the pools as it leaves them, and the
        graph's copies of index tensors."""
        self.plan.after.run(self.taken.chunk.memory, self.taken.start)

    def calls_alike(self) -> list[AlikeDigests]:
        """Each group of alike calls, once the chunk has arrived."""
        host = self.taken.arrived()
        found = views(self.plan.parts, host)
        if self.more:
            found |= views(self.more, host)
        return [self._group(number, found) for number in range(len(self.plan.groups))]

    def _group(self, number: int, found: Mapping[str, Tensor]) -> AlikeDigests:
        group = self.plan.groups[number]
        observation = group.observation if self.observation is None else self.observation
        prefix = f"{number}/"
        arrived = {
            key.removeprefix(prefix): tensor for key, tensor in found.items() if key.startswith(prefix)
        }
        claims = self.claims[number]
        return AlikeDigests(
            group,
            group.layers,
            observation,
            [self.numbers[at] for at in group.at],
            [self.steps[at] for at in group.at],
            None if claims is None else claims.as_json(arrived),
            {name.removeprefix("in/"): one for name, one in arrived.items() if name.startswith("in/")},
            arrived["rows"],
            arrived["before"].numpy().view(np.uint64),
            arrived["after"].numpy().view(np.uint64),
            arrived["kept"].numpy().view(np.uint64) if "kept" in arrived else None,
        )


@dataclass(frozen=True, slots=True)
class AlikeDigests:
    """Alike calls of one replay, on the host."""

    group: AlikeCalls
    layers: Sequence[Layer]
    observation: Observation
    numbers: Sequence[int]
    steps: Sequence[int]
    claims: dict[str, Any] | None  # as a record's `dispatch` has them
    inputs: Mapping[str, Tensor]
    rows: Tensor
    before: Digests  # [calls, n, 2]
    after: Digests
    kept: Digests | None  # [calls, tokens * sequences, 2], of states kept outside the pool

    def digests_of(self, tensor: str, *, is_read: bool) -> Digests:
        """Of the pool before or after the calls, or of what they keep outside it."""
        if tensor != KEPT:
            return self.before if is_read else self.after
        assert self.kept is not None
        return self.kept

    def record(self) -> DigestRecord:
        """The record of the first call."""
        group = self.group
        name = CallName(group.target, group.implementation, self.layers[0], self.numbers[0], self.steps[0])
        record = digest_record(self.observation, name, {}, device=OnDevice({}, Arriving()))
        record.claim(self.claims)
        for tensor, one in self.inputs.items():
            record.before[tensor] = group.forms[tensor].copied(one)
        for kept, digests in ((record.before, self.before), (record.after, self.after)):
            kept[group.pool] = _copied(torch.from_numpy(digests[0].view(np.int64)))
        if self.kept is not None:
            record.after[KEPT] = _copied(torch.from_numpy(self.kept[0].view(np.int64)))
        record.numbers[group.pool] = self.rows
        record.forms[group.pool] = group.form
        return record


def _copied(data: Tensor) -> Copied:
    return Form(tuple(data.shape), data.shape, data.stride(), 0, "cpu").rows(data)


@dataclass(slots=True)
class EagerBatch:
    """Eager calls that differ in nothing but layer and pool, in one chunk: those of a step, mostly."""

    batches: list[DigestBatch]

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    @property
    def calls(self) -> int:
        return len(self.batches)

    def all_claims(self) -> Sequence[Claims | None]:
        return self.batches[0].claims  # equal in all

    def calls_alike(self) -> list[AlikeDigests]:
        """All of them, as one group."""
        (first,) = self.batches[0].calls_alike()
        if len(self.batches) == 1:
            return [first]
        host = self.batches[0].taken.chunk.host
        assert host is not None
        octets = host.numpy()
        digests: dict[str, Digests] = {}
        for moment in ("before", "after", "kept"):
            part = self.batches[0].plan.parts.get(f"0/{moment}")
            if part is not None:
                found = [
                    octets[batch.taken.start + part.start : batch.taken.start + part.stop]
                    for batch in self.batches
                ]
                digests[moment] = np.concatenate(found).view(np.uint64).reshape(len(found), -1, 2)
        return [
            replace(
                first,
                layers=[batch.plan.layers[0] for batch in self.batches],
                numbers=[batch.numbers[0] for batch in self.batches],
                steps=[batch.steps[0] for batch in self.batches],
                before=digests["before"],
                after=digests["after"],
                kept=digests.get("kept"),
            )
        ]


def joined(records: Sequence[DigestBatch]) -> list[DigestBatch | EagerBatch]:
    """The batches of a chunk that has arrived; eager calls whose index tensors and claims are equal become
    one."""
    found: list[DigestBatch | EagerBatch] = []
    groups: dict[tuple[Any, ...], EagerBatch] = {}
    for batch in records:
        if batch.observation is None or batch.more:
            found.append(batch)
            continue
        plan, claims, host = batch.plan, batch.claims[0], batch.taken.chunk.host
        assert host is not None
        start = batch.taken.start
        said = host.numpy()[start : start + plan.parts["0/before"].start].tobytes()
        key = (plan.groups[0].kind, said, None if claims is None else claims.key())
        if key in groups:
            groups[key].batches.append(batch)
        else:
            groups[key] = EagerBatch([batch])
            found.append(groups[key])
    return found


def open_batch(
    plan: GraphDigests, claims: Sequence[Claims | None], buffer: DigestBuffer
) -> DigestBatch | None:
    """Queue the digests of the pools before a replay. None if there is no room for them.

    `claims`: of each group, with values on the host as lists.
    """
    tensors: dict[str, Tensor] = {}
    for number, one in enumerate(claims):
        if one is not None:
            tensors |= {f"{number}/{name}": tensor for name, tensor in one.bundled().items()}
    more: Mapping[str, Part] = {}
    nbytes = plan.nbytes
    if tensors:
        wanted = {name: (one.dtype, tuple(one.shape)) for name, one in tensors.items()}
        more, nbytes = lay_out(wanted, nbytes)
    taken = buffer.take(nbytes, plan.device)
    if taken is None:
        return None
    try:
        plan.before.run(taken.chunk.memory, taken.start)
        for name, view in views(more, taken.memory).items() if more else ():
            view.copy_(tensors[name])
    except BaseException:
        buffer.finish(taken, None)
        raise
    return DigestBatch(plan, taken, claims, more)


_EAGER_PLANS = 4096


class EagerDigests:
    """Plans of eager calls, by everything that they depend on, addresses among them: in a loop of steps the
    tensors of a layer are where they were."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._plans: dict[tuple[Any, ...], GraphDigests | None] = {}

    def plan(self, observation: Observation, name: CallName) -> GraphDigests | None:
        kept = observation.reduced
        assert kept is not None
        key = (
            *(name.target, name.implementation, name.layer.name, observation.op, kept.sample),
            *(*observation.scalars.items(), *observation.conventions.items()),
            *kept.shapes.items(),
            *((one, *_place(seen)) for one, seen in observation.tensors.items()),
            _place_of_kept(observation.kept_states, with_buffer=True),
        )
        if key not in self._plans:
            if len(self._plans) >= _EAGER_PLANS:
                self._plans = {}
            self._plans[key] = eager_digests(observation, name, self._streams)
        return self._plans[key]


def _place(seen: Seen) -> tuple[Any, ...]:
    tensor = seen.tensor
    return tensor.data_ptr(), tensor.stride(), tensor.device, seen.shape
