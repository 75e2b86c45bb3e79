"""What looks on while launches are simulated: it is told of each, and may have its values recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gdnbench.sim.machine.engine_interface import Dim3, WarpEngine
from gdnbench.sim.machine.grid import communicates
from gdnbench.sim.value_trace import End, Recorder

if TYPE_CHECKING:
    from gdnbench.sim.host.arguments import Region
    from gdnbench.sim.machine.cta import Cta, Engine, Launch


@dataclass(frozen=True, slots=True)
class Observed:
    """What is wanted of one launch: its values told to `values`, and a call before each CTA begins, when the
    one before it has ended. It is not made where CTAs talk to each other and so take turns."""

    values: Recorder | None = None
    before_cta: Callable[[int], None] | None = None

    def engine(self, launch: Launch, engine: Engine, name: str) -> Engine:
        """`engine`, which is called `name`, so that all this is done; the launch begins."""
        if self.values is not None:
            from gdnbench.sim.interpreter.traced import TracingEngine

            tracing = TracingEngine(launch.kernel, self.values, engine)
            self.values.begin(launch, name)
            engine = tracing
        if self.before_cta is None or communicates(launch.kernel):
            return engine
        return _Told(engine, self.before_cta)

    def end(self, how: End) -> None:
        """The launch has ended."""
        if self.values is not None:
            self.values.end(how)


class Watch(Protocol):
    """Told of launches, in order. `regions` are the tensors of the call, as they lie in memory."""

    def begins(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None: ...

    def ended(self, regions: Sequence[Region]) -> None:
        """The launch that began last has ended well."""
        ...


@dataclass(frozen=True, slots=True)
class _Told:
    """Seam: `Engine`."""

    engine: Engine
    before_cta: Callable[[int], None]

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        self.before_cta(cta.index)
        return self.engine.warps(cta)
