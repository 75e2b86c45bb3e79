"""A trace that is asked for, as plain values: it is written here or in another process."""

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
    """Values that `of` selects (see `Selection.parse`) go to the trace at `path`, which `make_trace` made, up
    to `limit` bytes before compression. `told` hears of it where it is written in this process."""

    path: str
    of: str = DEFAULT
    limit: int = MAX_BYTES
    told: Told | None = field(default=None, compare=False)

    def watch(self, labels: Mapping[str, Any] | None = None) -> Tracing:
        """What records the launches from now on, after those that are in the store; `labels` are said of
        each."""
        writer = TraceWriter(Path(self.path), self.limit, self.told)
        return Tracing(writer, Selection.parse(self.of), labels or {})

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "of": self.of, "limit": self.limit}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["path"], data["of"], data["limit"])
