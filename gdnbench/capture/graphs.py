# SPDX-License-Identifier: Apache-2.0
"""Records replays of CUDA graphs that contain captured calls.

A replay runs no Python and reuses the memory of intermediates. So capture adds copy nodes to the graph: a
call's inputs before it and its outputs after it, into memory that lives as long as the graph. After a replay
that the selection keeps, capture copies these once more on the device; the device-to-host copy starts from
there, and the next replay may overwrite the graph's copies. That replay must be ordered after those copies:
on the same stream, or on one that waits for it.

Pool rows are too large to be copied by every replay. They are gathered before and after the replay, by the
index tensor as it is then. The graph's copy of the index tensor shows whether the call used the same rows. So
a pool must exist before the graph is captured, and only one call of the graph may write it.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gdnbench.capture.adapter import NotCaptured, Observation, Seen
from gdnbench.capture.claims import Claims
from gdnbench.capture.device_snapshot import (
    Arriving,
    DevicePool,
    DeviceSnapshot,
    Named,
    Packed,
    pool_on_device,
    snapshot_on_device,
)
from gdnbench.capture.digest_record import (
    DigestRecord,
    DigestRows,
    digest_record,
    digest_rows,
    row_form,
    written_states,
)
from gdnbench.capture.graph_digests import (
    DigestBatch,
    GraphDigests,
    graph_digests,
    open_batch,
)
from gdnbench.capture.graph_plan import Capturing, GraphCall, Host, KeptCall, Plan
from gdnbench.capture.inflight import (
    CallName,
    OnDevice,
    PendingRecord,
    PoolRows,
    as_call,
    pending_record,
    pool_names,
    with_claims,
    with_kept_states,
)
from gdnbench.capture.kept_states import KEPT
from gdnbench.capture.layers import Layer
from gdnbench.capture.ready_batch import ready_batch
from gdnbench.capture.snapshot import Form
from gdnbench.capture.streams import Graph, Streams, called_by_graph_trees
from gdnbench.ops import operation
from gdnbench_kernels.contract import Operation, Role

_instances = itertools.count()
GRAPH_BYTES = 1 << 30
"""Device memory for copies in all graphs of a process: an engine keeps dozens of graphs."""


class Graphs:
    """Hooks the capture and replay methods of the graph class."""

    def __init__(
        self, host: Host, streams: Streams, graph_class: type[Any], *, full_pools: bool, enabled: bool
    ) -> None:
        self._host = host
        self._streams = streams
        self._class = graph_class
        self._full_pools = full_pools
        self._enabled = enabled
        self._open: list[Capturing] = []
        self._bytes = 0
        self._returned: deque[int] = deque()  # bytes of freed plans; finalizers add without a lock
        self._lock = threading.Lock()
        self._attribute = f"_gdnbench_plan_{next(_instances)}"  # of graphs: their plans
        self._patched: dict[str, tuple[Any, Any]] = {}  # by name: the original and our replacement

    def install(self) -> None:
        for name, around in (
            ("capture_begin", self._around_begin),
            ("capture_end", self._around_end),
            ("replay", self._around_replay),
        ):
            original = getattr(self._class, name)
            patched = functools.wraps(original)(around(original))
            self._patched[name] = (self._class.__dict__.get(name), patched)
            setattr(self._class, name, patched)

    def remove(self) -> None:
        """Restore the methods. Where other code has patched a method since, ours stays below and passes calls
        on."""
        for name, (before, patched) in self._patched.items():
            if self._class.__dict__.get(name) is patched:
                if before is None:
                    delattr(self._class, name)
                else:
                    setattr(self._class, name, before)
        self._patched = {}

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._open = []

    def _around_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(graph: Graph, *args: Any, **kwargs: Any) -> Any:
            opened = self._begin(graph)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._end(opened, None)
                raise

        return capture_begin

    def _around_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(graph: Graph) -> Any:
            opened = next((one for one in self._open if one.graph is graph), None)
            try:
                result = original(graph)
            except BaseException:
                self._end(opened, None)
                raise
            self._end(opened, graph)
            return result

        return capture_end

    def _around_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        attribute, host, here = self._attribute, self._host, self._streams.lane_here

        def replay(graph: Graph) -> Any:
            plan: Plan | None = getattr(graph, attribute, None)
            if plan is None:
                return original(graph)
            kept: list[KeptCall] | DigestBatch | None = None
            if host.active and ((ready := plan.ready) is None or (kept := ready.open(host, here)) is None):
                kept = self._before_replay(plan)
            try:
                result = original(graph)
            except BaseException:
                self._abandon(kept)
                raise
            self._after_replay(plan, kept)
            return result

        return replay

    def _begin(self, graph: Graph) -> Capturing | None:
        if not self._host.active:
            return None
        try:
            recorder = self._host.recorder
            if recorder is not None:
                recorder.begin_graph()
            tracked = self._enabled and not called_by_graph_trees()
            opened = Capturing(graph, Plan() if tracked else None, threading.get_ident(), recorder)
            with self._lock:
                self._open.append(opened)
            return opened
        except Exception as error:
            self._host.counts.fail(error)
            return None

    def _end(self, opened: Capturing | None, graph: Graph | None) -> None:
        """End the capture of a graph. `graph` is None if it failed."""
        if opened is None:
            return
        try:
            with self._lock:
                self._open.remove(opened)
            if opened.quiet is not None:
                opened.quiet.end_graph()
            if graph is not None and opened.plan is not None and opened.plan.calls:
                self._refuse_pools_of_the_graph(graph, opened.plan)
                setattr(graph, self._attribute, opened.plan)
        except Exception as error:
            self._host.counts.fail(error)

    def _refuse_pools_of_the_graph(self, graph: Graph, plan: Plan) -> None:
        """Refuse pools that the graph itself allocates: they do not exist before the replay, and perhaps not
        after it."""
        memory = self._streams.graph_memory(graph) if any(call.static for call in plan.calls) else []
        for call in plan.calls:
            for name, seen in call.static.items():
                address = seen.tensor.data_ptr()
                if call.outputs is not None and any(start <= address < stop for start, stop in memory):
                    call.outputs = None
                    self._host.counts.fail(ValueError(f"{name} is made by the CUDA graph that works on it"))
            kept = call.kept_states
            if kept is not None and any(start <= kept.buffer.data_ptr() < stop for start, stop in memory):
                call.kept_states = None  # the next replay may have something else there

    def before(self, target: str, layer: Layer, site: Any, arguments: Any, module: Any) -> GraphCall | None:
        """Add copies of a call's inputs to the graph being captured. None: the call is not recorded."""
        plan = self._plan_here()
        if plan is None:
            self._host.counts.skip(target, self._why_left_alone())
            return None
        call = GraphCall(target, site.implementation, layer)
        plan.calls.append(call)  # counts its steps even if it cannot be recorded
        observation: Observation = site.adapter.before(site.target, arguments, module)
        if not self._host.selection.passes(observation.op, layer):
            return None
        observation = self._host.kept(observation, observation.claims)
        contract = operation(observation.op)
        for name in pool_names(contract, observation):
            seen = observation.tensors[name]
            if name in observation.whole_pools:
                call.whole[name] = seen.tensor.shape[0]
                continue
            call.static[name] = seen
            if observation.reduced is not None:
                call.indices |= _naming_tensors(contract, name, observation)
            elif self._full_pools:
                call.whole[name] = seen.tensor.shape[0]
            elif contract.named_rows is None:
                raise NotCaptured(
                    f"{observation.op} in a CUDA graph: which rows it reads is not known without waiting for"
                    " the device; try --full-pools"
                )
            else:
                call.indices |= _naming_tensors(contract, name, observation)
        inside = {name: seen for name, seen in observation.tensors.items() if name not in call.static}
        if observation.claims is not None:
            # What the call said when the graph was captured is of that step; its tensors are of each replay.
            observation = replace(observation, claims=observation.claims.without_values())
        digested: Mapping[str, DigestRows] = {}
        if observation.reduced is not None:
            digested = digest_rows(observation, observation.reduced.before - call.static.keys(), None)
            self._note_forms(call, observation, observation.tensors)
        if observation.reduced is None or digested or observation.claims is not None:
            call.inputs = self._packed(inside, plan, observation.claims, digested)
        else:
            call.inputs = self._shared(inside, plan)
        call.observation = observation
        call.forms = self._host.triggers.forms(observation)
        return call

    def _why_left_alone(self) -> str:
        if not self._enabled:
            return "they are in a CUDA graph, and --no-graphs leaves those as they are"
        with self._lock:
            mine = [one for one in self._open if one.thread == threading.get_ident()] or self._open
        if not mine:
            return "their CUDA graph is not a torch.cuda.CUDAGraph, or its capture began before ours"
        if len(mine) > 1:
            return "several CUDA graphs are captured at once, and which one they are in cannot be told"
        return "torch.compile makes their CUDA graph (mode reduce-overhead), and hands its memory on"

    def after(self, call: GraphCall, site: Any, arguments: Any, result: Any) -> None:
        """Add copies of a call's outputs to the graph being captured."""
        observation = call.observation
        assert observation is not None
        # The graph reuses the memory of intermediates: hold no reference to them.
        call.observation = replace(observation, tensors={}, kept_states=None)
        seen = site.adapter.after(observation, arguments, result)
        for name, before in call.static.items():
            if name in seen and seen[name].tensor.data_ptr() != before.tensor.data_ptr():
                raise ValueError(f"{name} is not written in place, in a CUDA graph")
        plan = self._plan_here()
        assert plan is not None
        inside = {name: one for name, one in seen.items() if name not in call.static}
        digested: Mapping[str, DigestRows] = {}
        if observation.reduced is not None:
            inside = written_states(observation, inside)
            digested = digest_rows(observation, inside, None)
            self._note_forms(call, observation, seen)
        outputs = self._packed(inside, plan, None, digested)
        kept = observation.kept_states
        if kept is not None and call.static:
            rows = plan.copies.copy(KEPT, Seen(kept.rows))
            call.kept_states = replace(kept, rows=rows.views(rows.memory)[KEPT])
        for other in plan.calls:
            if other is not call and set(other.written()) & set(call.written()):
                other.outputs = None
                raise ValueError(
                    "two calls of one CUDA graph write the same pool; what is between is not seen"
                )
        call.outputs = outputs
        self._host.counts.graph_calls += 1

    def _shared(self, seen: dict[str, Seen], plan: Plan) -> Packed:
        """The index tensors of a call, of which the graph makes one copy for all calls that have them."""
        here = {name: one for name, one in seen.items() if not self._streams.holds(one.tensor)}
        there = {name: one for name, one in seen.items() if name not in here}
        copied = snapshot_on_device(here, {}, self._streams).here
        bundles = [plan.copies.copy(name, one) for name, one in there.items()]
        forms = {name: Form.from_seen(one) for name, one in there.items()}
        return Packed(copied, forms, frozenset(), bundles)

    def _note_forms(self, call: GraphCall, observation: Observation, seen: Mapping[str, Seen]) -> None:
        assert observation.reduced is not None
        for name, one in seen.items():
            if name in observation.reduced.before | observation.reduced.after:
                shape = tuple(one.tensor.shape)
                call.row_forms[name] = row_form(observation, name, one.tensor.dtype, shape)

    def _packed(
        self,
        seen: dict[str, Seen],
        plan: Plan,
        claims: Claims | None = None,
        digested: Mapping[str, DigestRows] | None = None,
    ) -> Packed:
        found = with_claims(snapshot_on_device(seen, digested or {}, self._streams), claims)
        with self._lock:
            while self._returned:
                self._bytes -= self._returned.popleft()
            if self._bytes + found.nbytes > GRAPH_BYTES:
                raise NotCaptured(
                    f"the copies in CUDA graphs take {GRAPH_BYTES >> 20} MiB, and may take no more"
                )
            self._bytes += found.nbytes
            weakref.finalize(plan, self._returned.append, found.nbytes).atexit = False
        return found.pack()

    def _plan_here(self) -> Plan | None:
        """The plan of the graph that this thread captures, or of the only graph being captured (autograd
        threads)."""
        with self._lock:
            mine = [one for one in self._open if one.thread == threading.get_ident()] or self._open
            return mine[-1].plan if len(mine) == 1 else None

    def _digests_of(self, plan: Plan) -> GraphDigests | None:
        """What to write for a replay, if all calls of the graph are digested at once."""
        if not plan.planned:
            plan.planned = True
            if all(call.observation is not None and call.observation.reduced for call in plan.calls):
                plan.digests = graph_digests(plan.calls, self._streams)
        return plan.digests

    def _open_batch(self, plan: Plan, digests: GraphDigests) -> DigestBatch | None:
        """Queue the digests of all pools before a replay."""
        claims: Sequence[Claims | None] = ()
        if not plan.late_claims:
            claims = [self._claims_now(group.visible) for group in digests.groups]
            plan.late_claims = not any(one is not None and one.tensors() for one in claims)
        batch = open_batch(digests, claims, self._host.recorder_here().digest_buffer(self._streams))
        if batch is None:
            self._count_replay(digests)
            self._host.counts.dropped += len(digests.layers)
        return batch

    def _claims_now(self, observation: Observation) -> Claims | None:
        found = self._host.claims(observation)
        return None if found is None else found.with_host_values(self._streams.holds)

    def _count_replay(self, digests: GraphDigests) -> tuple[list[int], list[int]]:
        """Count the calls of a replay; returns their numbers and steps."""
        with self._host.counting:
            return self._host.next_numbers(len(digests.layers)), self._host.selection.replayed(digests.layers)

    def _before_replay(self, plan: Plan) -> list[KeptCall] | DigestBatch | None:
        """Count the calls of a replay that is about to start, and copy the pool rows of those that are
        kept. A batch of digests is counted after the replay, when the device has work."""
        kept: list[KeptCall] = []
        try:
            if self._host.selection.keeps_all and (digests := self._digests_of(plan)) is not None:
                return self._open_batch(plan, digests)
            named = [(call, name) for call in plan.calls if (name := self._counted(call)) is not None]
            rows: Named = {}
            found = [one for call, name in named if (one := self._opened(call, name, rows)) is not None]
            # Reserve for all calls at once: none of them releases room before the replay.
            room = sum(one.reserved for one in found)
            if not found or not self._host.recorder_here().reserve(room, len(found)):
                return []
            for one in found:
                try:
                    one.pools_before = one.rows.pack().send(self._streams)
                    kept.append(one)
                except Exception as error:
                    self._abandon([one])
                    self._host.counts.fail(error)
        except Exception as error:
            self._host.counts.fail(error)
        return kept

    def _counted(self, call: GraphCall) -> CallName | None:
        """Count a call of the replay; returns its name if it is kept."""
        selection = self._host.selection
        with self._host.counting:
            step, number = selection.step(call.layer), self._host.next_number()
        if selection.full or call.outputs is None or call.observation is None:
            return None
        if selection.switch.off:
            selection.pass_by(call.layer)
            return None
        if not selection.keeps(call.observation.op, call.layer):
            return None
        return CallName(call.target, call.implementation, call.layer, number, step)

    def _opened(self, call: GraphCall, name: CallName, named: Named) -> KeptCall | None:
        """The copies to make for a call; None if they cannot be determined."""
        assert call.observation is not None
        assert call.inputs is not None
        assert call.outputs is not None
        try:
            triggers = self._host.triggers
            reason = triggers.before(call.forms, call.observation, name)
            if triggers.any and reason is None and not triggers.copies:
                return None
            contract = operation(call.observation.op)
            known = as_call(replace(call.observation, tensors={**call.indices, **call.static}))
            pools: Mapping[str, DevicePool] | Mapping[str, DigestRows]
            if call.observation.reduced is not None:
                pools = digest_rows(call.observation, call.static, known, self._streams)
            else:
                pools = {
                    pool: pool_on_device(contract, pool, known, self._streams, named)
                    for pool in call.static
                    if pool not in call.whole
                }
            rows = snapshot_on_device(call.static, pools, self._streams)
            observation, rows = self._claimed(call, rows)
        except Exception as error:
            self._host.counts.fail(error)
            return None
        reserved = rows.nbytes + call.inputs.nbytes + call.outputs.nbytes
        return KeptCall(call, observation, call.inputs, call.outputs, name, pools, reserved, rows, reason)

    def _claimed(self, call: GraphCall, rows: DeviceSnapshot) -> tuple[Observation, DeviceSnapshot]:
        """The call's observation with the claims of the step that replays it, and `rows` with those of them
        that are tensors."""
        observation = call.observation
        assert observation is not None
        if observation.claims is not None:
            return observation, rows  # the graph copies their tensors
        visible = replace(observation, tensors={**call.indices, **call.static})
        claims = self._host.claims(visible)
        if claims is not None:
            claims = claims.with_host_values(self._streams.holds)
        return replace(observation, claims=claims), with_claims(rows, claims)

    def _late_claims(self, plan: Plan, batch: DigestBatch) -> list[Claims | None]:
        """The claims of a replay that is queued. The replay may have changed tensors among them: this one
        then has no such claims, and later replays ask for theirs before they are queued."""
        claims = [self._claims_now(group.visible) for group in batch.plan.groups]
        if any(one is not None and one.tensors() for one in claims):
            plan.late_claims = False
            return [None if one is None or one.tensors() else one for one in claims]
        return claims

    def _finish_batch(self, plan: Plan, batch: DigestBatch) -> None:
        try:
            batch.after()
            if not batch.claims:
                batch.claims = self._late_claims(plan, batch)
            batch.numbers, batch.steps = self._count_replay(batch.plan)
        except Exception as error:
            self._abandon(batch)
            self._host.counts.fail(error)
            return
        self._host.recorder_here().finish_batch(batch)
        self._host.counts.graph_replays += 1
        plan.ready = None
        if plan.late_claims:
            try:
                plan.ready = ready_batch(batch, self._host.recorder_here(), self._streams)
            except Exception as error:
                self._host.counts.fail(error)

    def _after_replay(self, plan: Plan, kept: list[KeptCall] | DigestBatch | None) -> None:
        """Send the graph's copies and the pool rows after the replay."""
        if kept is None:
            return
        if isinstance(kept, DigestBatch):
            self._finish_batch(plan, kept)
            return
        for one in kept:
            try:
                pending, rows = self._pending(one)
            except Exception as error:
                self._abandon([one])
                self._host.counts.fail(error)
                continue
            try:
                self._host.recorder_here().finish_on_device(pending, rows, self._streams)
            except Exception as error:
                self._host.counts.fail(error)
        self._host.counts.graph_replays += bool(kept)

    def _pending(self, one: KeptCall) -> tuple[PendingRecord, DeviceSnapshot]:
        before, after = (packed.clone().send(self._streams) for packed in (one.inputs, one.outputs))
        before.join(one.pools_before)
        written = {name: seen for name, seen in one.call.static.items() if self._is_written(one, name)}
        rows = snapshot_on_device(written, one.pools, self._streams)
        reduced = one.observation.reduced
        rows = with_kept_states(rows, one.call.kept_states, 1 if reduced is None else reduced.sample)
        if reduced is not None:
            return self._digests(one, before, after), rows
        device = OnDevice(one.pools, before, after, one.reserved)  # type: ignore[arg-type]
        whole = {name: PoolRows(slots, tuple(range(slots))) for name, slots in one.call.whole.items()}
        pending: PendingRecord = pending_record(one.observation, one.name, whole, {}, device)
        pending.reason = one.reason
        return pending, rows

    def _digests(self, one: KeptCall, before: Arriving, after: Arriving) -> PendingRecord:
        device = OnDevice({}, before, after, one.reserved)
        rows_of: Mapping[str, DigestRows] = one.pools  # type: ignore[assignment]
        pending: DigestRecord = digest_record(one.observation, one.name, rows_of, device=device)
        pending.forms = dict(one.call.row_forms)
        pending.reason = one.reason
        return pending

    def _is_written(self, one: KeptCall, name: str) -> bool:
        return operation(one.observation.op).spec(name).role is Role.MUTATED

    def _abandon(self, kept: list[KeptCall] | DigestBatch | None) -> None:
        recorder = self._host.recorder
        if isinstance(kept, DigestBatch):
            self._host.recorder_here().give_up_batch(kept)
            if not kept.numbers:
                self._count_replay(kept.plan)
            return
        for one in kept or ():
            if recorder is not None:
                recorder.abandon(one.reserved)


def _naming_tensors(contract: Operation, pool: str, observation: Observation) -> dict[str, Seen]:
    """The index tensors of the call that name rows of `pool`."""
    index = contract.spec(pool).pool_index
    assert index is not None
    naming = (index,) if contract.named_rows is None else contract.named_rows.tensors
    return {name: observation.tensors[name] for name in naming if name in observation.tensors}
