# SPDX-License-Identifier: Apache-2.0
"""The watch that makes the simulator record the values of launches in a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdnbench.sim import Dim3, Observed
from gdnbench.sim.value_trace import Selection
from gdnbench.trace.writer import TraceWriter

if TYPE_CHECKING:
    from gdnbench.sim.host import Region


@dataclass(slots=True)
class Tracing:
    """Records all launches, or only the one numbered `only`. `labels` are stored with each launch. Implements
    `Watch`."""

    writer: TraceWriter
    selection: Selection
    labels: Mapping[str, Any] = field(default_factory=dict)
    only: int | None = None
    _begun: int = 0

    def on_launch_begin(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None:
        self._begun += 1
        if self.only not in (None, self._begun - 1):
            return None
        return Observed(self.writer.launch(self.selection, self.labels))

    def on_launch_end(self, regions: Sequence[Region]) -> None: ...
