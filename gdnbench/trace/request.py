"""A trace that is asked for, as plain values: it is written here or in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdnbench.sim.value_trace import Selection
from gdnbench.trace.watching import Tracing
from gdnbench.trace.writer import MAX_BYTES, Told, TraceWriter

DEFAULT = "cta=0"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Values that `of` selects (see `Selection.parse`) go to the trace at `path`, which `make_trace` made, up
    to `limit` bytes before compression."""

    path: str
    of: str = DEFAULT
    limit: int = MAX_BYTES

    def watch(self, labels: Mapping[str, Any] | None = None, told: Told | None = None) -> Tracing:
        """What records the launches from now on; `labels` are said of each."""
        return Tracing(TraceWriter(Path(self.path), self.limit, told), Selection.parse(self.of), labels or {})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
