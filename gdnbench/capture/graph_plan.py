# SPDX-License-Identifier: Apache-2.0
"""What capture keeps of a CUDA graph and of the calls in it, and what it needs of the session (graphs.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gdnbench.capture.adapter import Observation, Seen
from gdnbench.capture.claims import Claims
from gdnbench.capture.device_snapshot import (
    Arriving,
    DevicePool,
    DeviceSnapshot,
    Packed,
)
from gdnbench.capture.digest_record import (
    DigestRows,
)
from gdnbench.capture.filter_expr import TensorForm
from gdnbench.capture.graph_digests import (
    GraphDigests,
    SharedCopies,
)
from gdnbench.capture.inflight import (
    CallName,
)
from gdnbench.capture.kept_states import KeptStates
from gdnbench.capture.layers import Layer
from gdnbench.capture.ready_batch import ReadyBatch
from gdnbench.capture.recorder import Counts, Recorder
from gdnbench.capture.selection import Selection
from gdnbench.capture.streams import Graph
from gdnbench.capture.trigger import Triggers
from gdnbench.lineage.call_rows import RowForm
from gdnbench.ops import operation
from gdnbench_kernels.contract import Role


class Host(Protocol):
    """What `Graphs` needs of the session."""

    counts: Counts
    active: bool

    counting: threading.Lock
    """Held while a call gets its number and its step: of two calls of a layer, on two threads, the later step
    then has the larger number."""

    @property
    def selection(self) -> Selection: ...

    def next_number(self) -> int: ...

    def next_numbers(self, count: int) -> list[int]: ...

    def recorder_here(self) -> Recorder: ...

    @property
    def recorder(self) -> Recorder | None: ...

    @property
    def triggers(self) -> Triggers: ...

    def claims(self, observation: Observation) -> Claims | None: ...

    def kept(self, observation: Observation, claims: Claims | None) -> Observation: ...


@dataclass(slots=True)
class GraphCall:
    """A call in a graph. `outputs` is None until the call returned, and stays None if it cannot be
    recorded."""

    target: str
    implementation: str | None
    layer: Layer
    observation: Observation | None = None
    inputs: Packed | None = None
    outputs: Packed | None = None
    static: dict[str, Seen] = field(default_factory=dict)  # pools whose rows are gathered outside the graph
    indices: dict[str, Seen] = field(default_factory=dict)  # index tensors that name the rows
    whole: dict[str, int] = field(default_factory=dict)  # slots of pools that are copied whole
    forms: dict[str, TensorForm] = field(default_factory=dict)  # of the inputs, for triggers
    row_forms: dict[str, RowForm] = field(default_factory=dict)  # of the states, if digests are kept
    kept_states: KeptStates | None = None  # of which digests are taken outside the graph

    def written(self) -> Iterator[int]:
        """Addresses of the static pools that the call writes."""
        if self.observation is not None:
            contract = operation(self.observation.op)
            for name, seen in self.static.items():
                if contract.spec(name).role is Role.MUTATED:
                    yield seen.tensor.data_ptr()


@dataclass(slots=True, weakref_slot=True)
class Plan:
    """Capture's data for one graph. Freed with the graph, or when the graph's capture fails."""

    calls: list[GraphCall] = field(default_factory=list)
    copies: SharedCopies = field(default_factory=SharedCopies)
    digests: GraphDigests | None = None  # once `planned`: of all calls, if they are digested at once
    planned: bool = False
    late_claims: bool = False  # ask for claims after a replay is queued: the latest had no tensors
    ready: ReadyBatch | None = None  # of the next replay, if its claims are late ones


@dataclass(frozen=True, slots=True)
class Capturing:
    graph: Graph
    plan: Plan | None  # None: this graph is not recorded
    thread: int
    quiet: Recorder | None  # its thread must not use the device meanwhile


@dataclass(slots=True)
class KeptCall:
    """A call of a replay that is being recorded."""

    call: GraphCall
    observation: Observation
    inputs: Packed
    outputs: Packed
    name: CallName
    pools: Mapping[str, DevicePool] | Mapping[str, DigestRows]
    reserved: int
    rows: DeviceSnapshot  # pool rows before the replay
    reason: str | None  # why it is kept, if a trigger held for it
    pools_before: Arriving = field(default_factory=Arriving)
