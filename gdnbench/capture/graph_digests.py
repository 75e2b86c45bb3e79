"""Digests of all calls of a CUDA graph at once: a kernel before a replay and one after it, which write into
the block of memory that `gdnbench.capture.digest_buffer` sends to the host now and then.

What they read is in a table on the device, made at the first replay. Calls whose index tensors are the same
share the graph's copy of them, and a replay of calls that are alike has its rows worked out once. So what a
replay costs hardly depends on the number of layers. An eager call is a graph of one call, as it were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.claims import Claims
from gdnbench.capture.device_snapshot import Arriving, Packed
from gdnbench.capture.digest_buffer import DigestBuffer, Slice
from gdnbench.capture.digest_record import DigestRecord, RowForm, digest_record
from gdnbench.capture.inflight import CallName, OnDevice
from gdnbench.capture.layers import Layer
from gdnbench.capture.packing import Bundle, Part, copy_fill, lay_out, pack, views
from gdnbench.capture.snapshot import Copied, Form
from gdnbench.capture.streams import Streams
from gdnbench.digests import CopyJob, Digests, Jobs, RowsJob


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
    """Calls of a graph that differ in nothing but layer and pool.

    `at`: their places among the graph's calls.
    """

    at: tuple[int, ...]
    layers: tuple[Layer, ...]
    target: str
    implementation: str | None
    pool: str
    pools: tuple[Tensor, ...]
    index: Tensor
    inputs: Packed  # of the first call: the same for all
    observation: Observation
    visible: Observation  # as adapters get it, to tell whose sequences these are
    form: RowForm

    @property
    def count(self) -> int:
        return self.index.numel()

    @property
    def sample(self) -> int:
        assert self.observation.reduced is not None
        return self.observation.reduced.sample


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
    several pools, gathered states, or slots that are made of several index tensors."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, call in enumerate(calls):
        observation = call.observation
        if call.outputs is None or observation is None or observation.reduced is None:
            return None
        kept = observation.reduced
        if len(call.static) != 1 or kept.before != call.static.keys() or len(call.indices) != 1:
            return None
        if observation.claims is not None or call.inputs.here:
            return None
        pool = next(iter(call.static.values())).tensor
        index = next(iter(call.indices.values())).tensor
        if not index.is_contiguous() or index.dtype not in (torch.int32, torch.int64):
            return None
        if kept.after & call.static.keys() != kept.before:
            return None  # a pool that is only read needs no digest after the call
        shared = tuple(id(bundle) for bundle in call.inputs.bundles)
        where = (pool.device, pool.dtype, tuple(pool.shape), tuple(pool.stride()), index.data_ptr())
        key = (
            call.target,
            call.implementation,
            observation.op,
            tuple(observation.scalars.items()),
            tuple(observation.conventions.items()),
            tuple(kept.shapes.items()),
            shared,
            where,
        )
        groups.setdefault(key, []).append(number)
    found = tuple(_alike(calls, at) for at in groups.values())
    devices = {group.pools[0].device for group in found}
    if len(devices) != 1:
        return None
    return _laid_out(found, tuple(call.layer for call in calls), devices.pop(), streams)


def _alike(calls: Sequence[Any], at: list[int]) -> AlikeCalls:
    first = calls[at[0]]
    pool, index = next(iter(first.static)), next(iter(first.indices.values())).tensor
    return AlikeCalls(
        tuple(at),
        tuple(calls[number].layer for number in at),
        first.target,
        first.implementation,
        pool,
        tuple(calls[number].static[pool].tensor for number in at),
        index.reshape(-1),
        first.inputs,
        first.observation,
        replace(first.observation, tensors={**first.indices, **first.static}),
        first.row_forms[pool],
    )


def _laid_out(
    groups: tuple[AlikeCalls, ...], layers: tuple[Layer, ...], device: torch.device, streams: Streams
) -> GraphDigests:
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for number, group in enumerate(groups):
        shape = (len(group.at), group.count, 2)
        wanted[f"{number}/before"] = wanted[f"{number}/after"] = (torch.int64, shape)
        wanted[f"{number}/rows"] = (group.index.dtype, tuple(group.index.shape))
        for bundle in group.inputs.bundles:
            for name, part in bundle.parts.items():
                wanted[f"{number}/in/{name}"] = (part.dtype, part.shape)
    parts, nbytes = lay_out(wanted)
    before: list[RowsJob | CopyJob] = []
    after: list[RowsJob | CopyJob] = []
    for number, group in enumerate(groups):
        before.append(CopyJob(group.index, parts[f"{number}/rows"].start))
        for bundle in group.inputs.bundles:
            for name, view in bundle.views(bundle.memory).items():
                after.append(CopyJob(view, parts[f"{number}/in/{name}"].start))
        for moment, jobs in (("before", before), ("after", after)):
            start = parts[f"{number}/{moment}"].start
            for place, pool in enumerate(group.pools):
                jobs.append(RowsJob(pool, group.index, start + place * group.count * 16))
    sample = groups[0].sample
    made = [Jobs(jobs, sample, streams.to_device) for jobs in (before, after)]
    return GraphDigests(groups, layers, device, parts, nbytes, *made)


@dataclass(slots=True)
class DigestBatch:
    """The digests of the calls of one replay, in a slice of a chunk."""

    plan: GraphDigests
    taken: Slice
    claims: list[Claims | None]  # by group
    more: Mapping[str, Part]  # claims that are tensors
    numbers: Sequence[int] = ()  # of the calls
    steps: Sequence[int] = ()

    @property
    def nbytes(self) -> int:
        return self.taken.stop - self.taken.start

    @property
    def calls(self) -> int:
        return len(self.plan.layers)

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
        prefix = f"{number}/"
        arrived = {
            key.removeprefix(prefix): tensor for key, tensor in found.items() if key.startswith(prefix)
        }
        claims = self.claims[number]
        return AlikeDigests(
            group,
            [self.numbers[at] for at in group.at],
            [self.steps[at] for at in group.at],
            None if claims is None else claims.as_json(arrived),
            {name.removeprefix("in/"): one for name, one in arrived.items() if name.startswith("in/")},
            arrived["rows"],
            arrived["before"].numpy().view(np.uint64),
            arrived["after"].numpy().view(np.uint64),
        )


@dataclass(frozen=True, slots=True)
class AlikeDigests:
    """Alike calls of one replay, on the host."""

    group: AlikeCalls
    numbers: list[int]
    steps: list[int]
    claims: dict[str, Any] | None  # as a record's `dispatch` has them
    inputs: Mapping[str, Tensor]
    rows: Tensor
    before: Digests  # [calls, n, 2]
    after: Digests

    def record(self) -> DigestRecord:
        """The record of the first call."""
        group = self.group
        name = CallName(group.target, group.implementation, group.layers[0], self.numbers[0], self.steps[0])
        record = digest_record(group.observation, name, {}, device=OnDevice({}, Arriving()))
        record.claim(self.claims)
        for tensor, one in self.inputs.items():
            record.before[tensor] = group.inputs.forms[tensor].copied(one)
        for kept, digests in ((record.before, self.before), (record.after, self.after)):
            kept[group.pool] = _copied(torch.from_numpy(digests[0].view(np.int64)))
        record.numbers[group.pool] = self.rows
        record.forms[group.pool] = group.form
        return record


def _copied(data: Tensor) -> Copied:
    return Form(tuple(data.shape), data.shape, data.stride(), 0, "cpu").rows(data)


def open_batch(
    plan: GraphDigests, claims: Callable[[Observation], Claims | None], buffer: DigestBuffer
) -> DigestBatch | None:
    """Queue the digests of the pools before a replay. None if there is no room for them."""
    said = [claims(group.visible) for group in plan.groups]
    tensors = {
        f"{number}/{name}": tensor
        for number, one in enumerate(said)
        if one is not None
        for name, tensor in one.bundled().items()
    }
    more, nbytes = lay_out(
        {name: (one.dtype, tuple(one.shape)) for name, one in tensors.items()}, plan.nbytes
    )
    taken = buffer.take(nbytes, plan.device)
    if taken is None:
        return None
    try:
        plan.before.run(taken.chunk.memory, taken.start)
        if tensors:
            for name, view in views(more, taken.memory).items():
                view.copy_(tensors[name])
    except BaseException:
        buffer.finish(taken, None)
        raise
    return DigestBatch(plan, taken, said, more)
