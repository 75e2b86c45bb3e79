# SPDX-License-Identifier: Apache-2.0
"""A request for a trace as plain values, so that this process or a worker process can write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gdnbench.sim.value_trace import Selection
from gdnbench.trace.watching import Tracing
from gdnbench.trace.writer import MAX_BYTES, Told, TraceWriter

DEFAULT = "cta=0"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Write the values that `of` selects (see `Selection.parse`) to the trace at `path`, which `make_trace`
    made, up to `limit` bytes before compression. If this process writes the trace, it calls `on_progress`
    with the progress."""

    path: str
    of: str = DEFAULT
    limit: int = MAX_BYTES
    on_progress: Told | None = field(default=None, compare=False)

    def watch(self, labels: Mapping[str, Any] | None = None) -> Tracing:
        """The watch that records the coming launches, after those already in the store. `labels` are stored
        with each launch."""
        writer = TraceWriter(Path(self.path), self.limit, self.on_progress)
        return Tracing(writer, Selection.parse(self.of), labels or {})

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "of": self.of, "limit": self.limit}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["path"], data["of"], data["limit"])
