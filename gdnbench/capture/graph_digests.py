"""Digests of all calls of a CUDA graph at once: two kernels a replay, and one copy to the host.

Calls whose index tensors are the same share the graph's copy of them, and layers whose pools are alike share
a launch, before the replay and after it. So what a replay costs hardly depends on the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.claims import Claims
from gdnbench.capture.device_snapshot import Arriving, Packed
from gdnbench.capture.digest_record import DigestRecord, RowForm, digest_record
from gdnbench.capture.inflight import CallName, OnDevice
from gdnbench.capture.packing import Bundle, Fill, copy_fill, pack
from gdnbench.capture.snapshot import Copied, Form
from gdnbench.capture.streams import HostCopy, Streams
from gdnbench.digests import Digests, fill_pool_digests, pool_table


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


@dataclass(frozen=True, slots=True)
class AlikeCalls:
    """Calls of a graph that differ in nothing but layer and pool.

    `at`: their places among the graph's calls.
    """

    at: tuple[int, ...]
    pool: str
    pools: tuple[Tensor, ...]
    index: Tensor
    inputs: Packed  # of the first call: the same for all
    observation: Observation
    visible: Observation  # as adapters get it, to tell whose sequences these are
    form: RowForm
    table: Tensor | None
    """Addresses for the kernel; None: rows are digested pool by pool."""

    @property
    def count(self) -> int:
        return self.index.numel()

    def digests(self, out: Tensor) -> None:
        """Fill `out` int64 [calls, count, 2] with digests as the pools are now."""
        kept = self.observation.reduced
        assert kept is not None
        fill_pool_digests(self.pools, self.index, out, kept.sample, self.table)


def alike_calls(calls: Sequence[Any], streams: Streams) -> list[AlikeCalls] | None:
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
        shared = tuple(id(bundle) for bundle in call.inputs.bundles)
        where = (pool.device, pool.dtype, tuple(pool.shape), tuple(pool.stride()), index.data_ptr())
        key = (
            observation.op,
            tuple(observation.scalars.items()),
            tuple(observation.conventions.items()),
            tuple(kept.shapes.items()),
            shared,
            where,
            kept.after & call.static.keys() == kept.before,
        )
        groups.setdefault(key, []).append(number)
    found = []
    for key, at in groups.items():
        if not key[-1]:
            return None  # a pool that is only read needs no digest after the call
        found.append(_alike(calls, at, streams))
    return found


def _alike(calls: Sequence[Any], at: list[int], streams: Streams) -> AlikeCalls:
    first = calls[at[0]]
    pool, index = next(iter(first.static)), next(iter(first.indices.values())).tensor
    pools = tuple(calls[number].static[pool].tensor for number in at)
    numbers = pool_table(pools, index)
    return AlikeCalls(
        tuple(at),
        pool,
        pools,
        index.reshape(-1),
        first.inputs,
        first.observation,
        replace(first.observation, tensors={**first.indices, **first.static}),
        first.row_forms[pool],
        None if numbers is None else streams.to_device(numbers, pools[0].device),
    )


@dataclass(slots=True)
class _Part:
    """Alike calls of one replay."""

    alike: AlikeCalls
    names: list[CallName]
    claims: Claims | None


@dataclass(slots=True)
class DigestBatch:
    """The digests of the calls of one replay, in flight from the device."""

    parts: list[_Part]
    bundles: list[Bundle]
    ways: list[HostCopy] = field(default_factory=list)
    device: OnDevice = field(default_factory=lambda: OnDevice({}, Arriving()))
    found: dict[str, Tensor] = field(default_factory=dict)
    begun: bool = False

    @property
    def nbytes(self) -> int:
        return sum(bundle.memory.nbytes for bundle in self.bundles)

    @property
    def calls(self) -> int:
        return sum(len(part.names) for part in self.parts)

    def after(self) -> None:
        """Queue what there is once the replay is queued: digests of the pools as it leaves them, and the
        graph's copies of index tensors."""
        for bundle in self.bundles:
            views = bundle.views(bundle.memory)
            for number, part in enumerate(self.parts):
                if f"{number}/after" not in views:
                    continue
                part.alike.digests(views[f"{number}/after"])
                for copy in part.alike.inputs.bundles:
                    for name, view in copy.views(copy.memory).items():
                        views[f"{number}/in/{name}"].copy_(view)

    def send(self, streams: Streams) -> None:
        self.ways = [streams.to_host(bundle.memory) for bundle in self.bundles]

    def arrive(self) -> None:
        """Wait on the host for the copies."""
        for way in self.ways:
            way.begin()
        for bundle, way in zip(self.bundles, self.ways, strict=True):
            self.found |= bundle.views(way.arrived())
        self.ways = []

    def calls_alike(
        self,
    ) -> list[tuple[DigestRecord, list[CallName], Digests, Digests]]:
        """For each group of alike calls that has arrived: the record of its first call, the names of all, and
        uint64 [calls, n, 2]: their digests before and after."""
        return [self._record(number, part) for number, part in enumerate(self.parts)]

    def _record(self, number: int, part: _Part) -> tuple[DigestRecord, list[CallName], Digests, Digests]:
        alike, name = part.alike, part.names[0]
        observation = replace(alike.observation, claims=part.claims)
        record = digest_record(observation, name, {}, device=self.device)
        before, after = (self.found[f"{number}/{moment}"] for moment in ("before", "after"))
        claims: dict[str, Tensor] = {}
        for key, tensor in self.found.items():
            if key.startswith(f"{number}/in/"):
                tensor_name = key.removeprefix(f"{number}/in/")
                form = alike.inputs.forms[tensor_name]
                record.before[tensor_name] = form.copied(tensor)
            elif key.startswith(f"{number}/claims/"):
                claims[key.removeprefix(f"{number}/")] = tensor
        for kept, digests in ((record.before, before), (record.after, after)):
            kept[alike.pool] = _copied(digests[0])
        record.numbers[alike.pool] = self.found[f"{number}/rows"]
        record.forms[alike.pool] = alike.form
        record.resolve_claims(claims)
        return record, part.names, before.numpy().view(np.uint64), after.numpy().view(np.uint64)


def _copied(data: Tensor) -> Copied:
    return Form(tuple(data.shape), data.shape, data.stride(), 0, "cpu").rows(data)


def open_batch(
    groups: Sequence[AlikeCalls],
    names: Sequence[CallName],
    claims: Callable[[Observation], Claims | None],
    reserve: Callable[[int], bool],
) -> DigestBatch | None:
    """Queue the digests of the pools before a replay. None if `reserve` has no room for them."""
    parts = [_Part(alike, [names[at] for at in alike.at], claims(alike.visible)) for alike in groups]
    fills: dict[str, Fill] = {}
    for number, part in enumerate(parts):
        alike = part.alike
        device, shape = alike.pools[0].device, (len(alike.at), alike.count, 2)
        fills[f"{number}/before"] = Fill(torch.int64, shape, device, alike.digests)
        fills[f"{number}/after"] = Fill(torch.int64, shape, device, _later)
        fills[f"{number}/rows"] = copy_fill(alike.index)
        for copy in alike.inputs.bundles:
            for name, one in copy.parts.items():
                fills[f"{number}/in/{name}"] = Fill(one.dtype, one.shape, copy.memory.device, _later)
        if part.claims is not None:
            for name, tensor in part.claims.bundled().items():
                fills[f"{number}/{name}"] = copy_fill(tensor)
    nbytes = sum(fill.nbytes + 256 for fill in fills.values())
    if not reserve(nbytes):
        return None
    batch = DigestBatch(parts, pack(fills))
    batch.device.reserved = nbytes
    return batch


def _later(view: Tensor) -> None:
    """What `DigestBatch.after` fills."""
