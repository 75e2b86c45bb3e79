# SPDX-License-Identifier: Apache-2.0
"""The hot path: what runs around each call of a captured function.

Nothing here may change what the program computes, prints or returns, or how it ends. If capture itself fails,
it counts the failure, keeps the first for the summary, and the call goes on uncaptured.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling, is_dynamo_compiling

from gdnbench.capture.adapter import Adapter, Observation, Seen, Target
from gdnbench.capture.call_site import CallSite, Parameters
from gdnbench.capture.claims import Claims
from gdnbench.capture.control import Switch, SwitchControl
from gdnbench.capture.digest_record import digest_record, digests_on_device, open_on_host, reduced
from gdnbench.capture.graph_digests import DigestBatch, EagerDigests, open_batch
from gdnbench.capture.graph_plan import GraphCall
from gdnbench.capture.graphs import Graphs
from gdnbench.capture.inflight import (
    CallName,
    OnDevice,
    PendingRecord,
    inputs_on_device,
    open_record,
    pending_record,
)
from gdnbench.capture.layers import Layer, LayerNames, ScopeStack
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.recorder import Counts, Recorder
from gdnbench.capture.report import Report
from gdnbench.capture.selection import Selection
from gdnbench.capture.steps import Step
from gdnbench.capture.streams import CUDA, Streams
from gdnbench.capture.trigger import Triggers
from gdnbench.ops import operations
from gdnbench.provenance import BackgroundProvenance, parallel_of, process_info

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
_compiled: list[str] = []  # the target of each call that torch.compile traced into a graph
_compiled_uncaptured: list[tuple[str, str]] = []  # the same of functions that are only counted: name, reason
COMPILED = "torch.compile traced them into a graph, which runs no Python; try --break-graphs"


def _constant_in_graphs(function: F) -> F:
    """`torch.compiler.assume_constant_result`, which would import the compiler: a second for each program."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant_in_graphs
def count_compiled(target: str) -> bool:
    """Count a call when torch.compile traces it; adds neither a graph break nor a guard."""
    _compiled.append(target)
    return True


@_constant_in_graphs
def count_compiled_uncaptured(name: str, reason: str) -> bool:
    """As `count_compiled`, for a function that is only counted."""
    _compiled_uncaptured.append((name, reason))
    return True


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """A function that torch.compile does not trace: its callers are compiled in parts."""
    left: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return left


class Session:
    """One capture in this process: selects calls, copies their tensors, passes them to the recorder."""

    def __init__(
        self,
        store: Path,
        options: CaptureOptions,
        *,
        report: Report,
        on_first_record: Callable[[Path], None] | None = None,
        streams: Streams = CUDA,
        graph_class: type[Any] = torch.cuda.CUDAGraph,
        remote: SwitchControl | None = None,
    ) -> None:
        self._store = store
        self._options = options
        self._report = report
        self._on_first_record = on_first_record
        self._remote = SwitchControl(Switch(options.paused), options, report) if remote is None else remote
        self._switch = self._remote.switch
        self.selection = Selection(options, self._switch)
        self.triggers = Triggers(options)
        self._layers = LayerNames()
        self._counted_apart: dict[str, bool] = {}  # by target
        self._no_layer: dict[str, Layer] = {}  # for functions called outside any scope, by target
        self._scopes = ScopeStack()
        self._numbers = itertools.count()
        self.counting = threading.Lock()
        self._called: set[str] = set()
        self.recorder: Recorder | None = None
        self._adapter: Adapter | None = None  # adapter of the latest recorded call
        self._lock = threading.Lock()
        self._provenance = BackgroundProvenance()
        self.counts = Counts()
        self.active = True
        self._eager = EagerDigests(streams)
        self._streams = streams
        self._graphs = Graphs(
            self, streams, graph_class, full_pools=options.full_pools, enabled=options.graphs
        )
        self._graphs.install()
        atexit.register(self.close)
        _sessions.add(self)

    def wrap_target(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        site = CallSite.from_function(adapter, target, function)
        name = target.name

        @functools.wraps(function)
        def captured(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                count_compiled(name)
                return function(*args, **kwargs)
            return self.call(site, args, kwargs)

        return outside_graphs(captured) if self._options.break_graphs else captured

    def wrap_scope(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def scoped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.active:
                return function(module, *args, **kwargs)
            with self._scopes.inside(module):
                return function(module, *args, **kwargs)

        return scoped

    def wrap_step(self, adapter: Adapter, target: Target, function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = Parameters.from_function(function)

        @functools.wraps(function)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            # The device may be idle until this has run, and caches may have none of it: few functions.
            if is_dynamo_compiling() or not self.active:
                return function(*args, **kwargs)
            step: Step | None = None
            try:
                known = adapter.step(target, parameters.arguments(args, kwargs))  # type: ignore[attr-defined]
                step = Step(adapter, known)
            except Exception as error:
                self.counts.fail_claims(error)
            steps = self._scopes.steps
            steps.append(step)
            try:
                return function(*args, **kwargs)
            finally:
                steps.pop()

        return stepped

    def wrap_part_of_step(
        self, adapter: Adapter, target: Target, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        parameters = Parameters.from_function(function)

        @functools.wraps(function)
        def learned(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            step = self._scopes.step
            if step is not None and step.adapter is adapter and self.active:
                try:
                    step.learn(target, parameters.arguments(args, kwargs), result)
                except Exception as error:
                    self.counts.fail_claims(error)
            return result

        return learned

    def claims(self, observation: Observation) -> Claims | None:
        """Who the sequences of a call are that begins, or is replayed, in this thread; None if nobody
        knows."""
        if observation.claims is not None:
            return observation.claims
        step = self._scopes.step
        if step is None:
            return None
        try:
            return step.claims(observation)
        except Exception as error:
            self.counts.fail_claims(error)
            return None

    def wrap_uncaptured(self, name: str, reason: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper that counts calls of a function that no adapter records, but for those that a recorded or
        a counted call makes."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                count_compiled_uncaptured(name, reason)
                return function(*args, **kwargs)
            scopes = self._scopes
            if scopes.capturing or scopes.counting or not self.active:
                return function(*args, **kwargs)
            self._count_uncaptured(name, reason)
            scopes.counting = True
            try:
                return function(*args, **kwargs)
            finally:
                scopes.counting = False

        return counted

    def _count_uncaptured(self, name: str, reason: str) -> None:
        try:
            if self.counts.count_uncaptured(name, reason, once=self._streams.capturing()):
                self._report.note("uncaptured", function=name, reason=reason)
                self._close_with_multiprocessing()
        except Exception as error:
            self.counts.fail(error)

    def call(self, site: CallSite, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function; record the call if it is selected and not nested in another captured call."""
        scopes = self._scopes
        if scopes.capturing or not self.active:
            return site.function(*args, **kwargs)
        opened = self._before(site, args, kwargs)
        scopes.capturing = True
        try:
            result = site.function(*args, **kwargs)
        except BaseException as error:
            if opened is not None:
                self._raised(opened[0], error)
            raise
        finally:
            scopes.capturing = False
        if opened is not None:
            self._after(site, *opened, result)
        return result

    def _before(
        self, site: CallSite, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[PendingRecord | GraphCall | DigestBatch, Mapping[str, Any]] | None:
        """Start recording a call that is about to run; returns the pending record and the call's arguments.

        Most calls are not selected: for those, neither the arguments nor the adapter are touched.
        """
        try:
            target = site.target.name
            if target not in self._called:
                self._called.add(target)
                self._report.note("called", target=target)
            if not self._remote.started:
                self._remote.start()
            module = self._scopes.module
            if module is not None:
                layer = self._layers.layer_of(module)
            else:
                layer = self._layer_without_scope(site, args, kwargs)
            if self._is_counted_apart(site, target):
                with self._lock:
                    layer = layer.counted_apart()
            pending: PendingRecord | GraphCall | DigestBatch | None
            if self._streams.capturing():  # each replay, not this call, is a step
                arguments = site.arguments(args, kwargs)
                pending = self._graphs.before(target, layer, site, arguments, module)
            else:
                with self.counting:
                    number = self.next_number()
                    step = self.selection.step_if_due(layer, site.operations)
                if step is None:
                    return None
                arguments = site.arguments(args, kwargs)
                name = CallName(target, site.implementation, layer, number, step)
                pending = self._open(site, arguments, module, name)
            return None if pending is None else (pending, arguments)
        except Exception as error:
            self.counts.fail(error)
            return None

    def _open(
        self, site: CallSite, arguments: Mapping[str, Any], module: nn.Module | None, name: CallName
    ) -> PendingRecord | DigestBatch | None:
        observation = site.adapter.before(site.target, arguments, module)
        if site.operations is not None and observation.op not in site.operations:
            said = ", ".join(sorted(site.operations)) or "none"
            raise ValueError(
                f"{name.target} is seen as {observation.op}; its adapter's operations are {said}"
            )
        if not self.selection.keeps(observation.op, name.layer):
            return None
        reason = self.triggers.before(self.triggers.forms(observation), observation, name)
        if self.triggers.any and reason is None and not self.triggers.copies:
            return None
        self._adapter = site.adapter
        recorder = self.recorder_here()
        observation = self.kept(observation, self.claims(observation))
        pending: PendingRecord | DigestBatch | None
        if any(self._streams.holds(seen.tensor) for seen in observation.tensors.values()):
            pending = self._open_on_device(recorder, observation, name)
        elif observation.reduced is not None:
            pending = open_on_host(observation, name)
        else:
            # With a trigger, records may be written in another order; a carried copy belongs to the next
            # record.
            carried = _nothing_carried if self.triggers.any else recorder.carried
            pending = open_record(observation, name, self._options.full_pools, carried)
        if pending is None or isinstance(pending, DigestBatch):
            return pending
        pending.reason = reason
        if self._options.sync:
            recorder.begin(pending)
        return pending

    def _open_on_device(
        self, recorder: Recorder, observation: Observation, name: CallName
    ) -> PendingRecord | DigestBatch | None:
        """Queue copies of the inputs; None if there is no room for them."""
        if observation.claims is not None:
            claims = observation.claims.with_host_values(self._streams.holds)
            if claims is not observation.claims:
                observation = replace(observation, claims=claims)
        if observation.reduced is not None:
            return self._digest_on_device(recorder, observation, name)
        inputs, whole, some = inputs_on_device(observation, self._options.full_pools, self._streams)
        if not recorder.reserve(inputs.nbytes):
            return None
        try:
            device = OnDevice(some, inputs.pack().send(self._streams), reserved=inputs.nbytes)
            return pending_record(observation, name, whole, {}, device)
        except Exception:
            recorder.abandon(inputs.nbytes)
            raise

    def _digest_on_device(
        self, recorder: Recorder, observation: Observation, name: CallName
    ) -> PendingRecord | DigestBatch | None:
        plan = self._eager.plan(observation, name)
        if plan is not None:
            buffer = recorder.digest_buffer(self._streams)
            batch = open_batch(plan, [observation.claims], buffer)
            if batch is None:
                self.counts.dropped += 1
                return None
            batch.numbers, batch.steps = [name.number], [name.step]
            batch.observation = observation
            return batch
        inputs, rows_of = digests_on_device(observation, self._streams)
        if not recorder.reserve(inputs.nbytes):
            return None
        try:
            device = OnDevice({}, inputs.pack().send(self._streams), reserved=inputs.nbytes)
            found = digest_record(observation, name, rows_of, device=device)
            found.note_forms({state: observation.tensors[state] for state in rows_of})
            return found
        except Exception:
            recorder.abandon(inputs.nbytes)
            raise

    def kept(self, observation: Observation, claims: Claims | None) -> Observation:
        """The part of a call with these claims that this capture keeps: with `--digests` no tensor but index
        tensors, and the states' digests."""
        if self._options.digests:
            return reduced(observation, self._options.digest_sample, claims)
        if self._options.on_lineage:
            return replace(observation, claims=claims, watched=reduced(observation, 1, None).reduced)
        return observation if claims is observation.claims else replace(observation, claims=claims)

    def _after(
        self,
        site: CallSite,
        pending: PendingRecord | GraphCall | DigestBatch,
        arguments: Mapping[str, Any],
        result: Any,
    ) -> None:
        try:
            if isinstance(pending, GraphCall):
                self._graphs.after(pending, site, arguments, result)
                return
            if isinstance(pending, DigestBatch):
                self._finish_digests(site, pending, arguments, result)
                return
            self._finish(pending, site.adapter.after(pending.observation, arguments, result))
        except Exception as error:
            if isinstance(pending, PendingRecord):
                self.recorder_here().release_reservation(pending)
            self.counts.fail(error)

    def _finish_digests(
        self, site: CallSite, batch: DigestBatch, arguments: Mapping[str, Any], result: Any
    ) -> None:
        observation = batch.observation
        assert observation is not None
        batch.observation = observation.with_only({}, None, observation.reduced, None)
        pool = batch.plan.groups[0].pool
        try:
            seen = site.adapter.after(observation, arguments, result).get(pool)
            if seen is not None and seen.tensor.data_ptr() != observation.tensors[pool].tensor.data_ptr():
                raise ValueError(f"{pool} is not written in place")
            batch.after()
        except Exception:
            self.recorder_here().give_up_batch(batch)
            raise
        self.recorder_here().finish_batch(batch)

    def _finish(self, pending: PendingRecord, seen: Mapping[str, Seen]) -> None:
        if pending.device is None:
            pending.close(seen, waits=self.triggers.copies)
            self.recorder_here().finish(pending)
        else:
            outputs = pending.outputs(seen, self._streams)
            self.recorder_here().finish_on_device(pending, outputs, self._streams)

    def _raised(self, pending: PendingRecord | GraphCall | DigestBatch, error: BaseException) -> None:
        """Record a call that raised, with its inputs only."""
        if isinstance(pending, GraphCall):
            return
        try:
            if isinstance(pending, DigestBatch):
                self.recorder_here().give_up_batch(pending, unfinished=True)
                return
            pending.close_unfinished(error)
            self.recorder_here().finish(pending)
        except Exception as own_error:
            self.counts.fail(own_error)

    def _is_counted_apart(self, site: CallSite, target: str) -> bool:
        """Whether calls of the function `target` are counted apart from a layer's others."""
        found = self._counted_apart.get(target)
        if found is None:
            names = site.operations or frozenset()
            known = [operations()[name] for name in names if name in operations()]
            found = bool(known) and all(one.counted_apart for one in known)
            self._counted_apart[target] = found
        return found

    def _layer_without_scope(self, site: CallSite, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Layer:
        """The layer that the function's arguments name, or one for all calls of the function."""
        named = site.layer_named(args, kwargs)
        key = site.target.name if named is None else f"layer {named}"  # names of targets have a colon
        layer = self._no_layer.get(key)
        if layer is None:
            index = named if isinstance(named, int) else None
            name = (
                site.target.function if named is None else str(named) if index is None else f"layers.{index}"
            )
            with self._lock:
                layer = self._no_layer.setdefault(key, Layer(name, index))
        return layer

    def next_number(self) -> int:
        return next(self._numbers)

    def next_numbers(self, count: int) -> list[int]:
        return list(itertools.islice(self._numbers, count))

    def recorder_here(self) -> Recorder:
        if self.recorder is None:
            with self._lock:
                if self.recorder is None:
                    recorder = Recorder(
                        self._store,
                        self._options,
                        {**process_info(), **parallel_of(self._adapter)},
                        self._provenance.result(),
                        self.selection,
                        self.counts,
                        self.triggers,
                    )
                    if self._on_first_record is not None:
                        self._on_first_record(self._store)
                    self._close_with_multiprocessing()
                    self._report.note("recording", segment=recorder.segment)
                    self.recorder = recorder
        return self.recorder

    def _close_with_multiprocessing(self) -> None:
        """Close in processes forked by multiprocessing, which skip atexit handlers and run these
        finalizers."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.close, exitpriority=0)

    def after_fork(self) -> None:
        """In a forked child: forget the parent's journal, and renew locks whose holders do not exist here."""
        self.recorder = None
        self._lock = threading.Lock()
        self.counting = threading.Lock()
        self._layers.after_fork()
        self.selection.after_fork()
        self._graphs.after_fork()
        self.triggers.after_fork()
        self._remote.after_fork()
        self._scopes = ScopeStack()
        self.counts = Counts()

    @property
    def segment(self) -> str | None:
        """The segment of the store that this process records into; None before the first record."""
        return self.recorder.segment if self.recorder is not None else None

    def close(self) -> None:
        """Write the records in flight and end the journal in order. Idempotent; never raises."""
        if not self.active:
            return
        self.active = False
        try:
            self._graphs.remove()
            self._remote.close()
            for target in _compiled:
                self.counts.skip(target, COMPILED)
            _compiled.clear()
            for name, reason in _compiled_uncaptured:
                self.counts.count_uncaptured(name, reason, once=True)
            _compiled_uncaptured.clear()
            if self.recorder is not None:
                self.recorder.close()
            self._report.note("closed", **self.counts.summary())
        except Exception as error:
            self.counts.fail(error)


def _nothing_carried(layer: str, name: str, tensor: Tensor) -> Tensor | None:
    return None


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)
