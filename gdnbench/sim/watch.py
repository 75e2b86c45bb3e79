"""What looks on while launches are simulated: it is told of each, and may have its values recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gdnbench.sim.machine.grid import communicates
from gdnbench.sim.machine.seam import Dim3, Engine, WarpEngine
from gdnbench.sim.value_trace import TraceWriter

if TYPE_CHECKING:
    from gdnbench.sim.host.arguments import Region
    from gdnbench.sim.machine.cta import Cta, Launch


@dataclass(frozen=True, slots=True)
class Observed:
    """What is wanted of one launch: values written to a trace, and a call before each CTA begins, when the
    one before it has ended. It is not made where CTAs talk to each other and so take turns."""

    values: TraceWriter | None = None
    before_cta: Callable[[int], None] | None = None

    def engine(self, launch: Launch, engine: Engine) -> Engine:
        """`engine`, so that all this is done; the launch begins."""
        if self.values is not None:
            from gdnbench.sim.interpreter.traced import TracingEngine

            tracing = TracingEngine(launch.kernel, self.values, engine)
            self.values.begin(launch.kernel, launch.grid)
            engine = tracing
        if self.before_cta is None or communicates(launch.kernel):
            return engine
        return _Told(engine, self.before_cta)

    def end(self) -> None:
        """The launch has ended, whether well or not."""
        if self.values is not None:
            self.values.end()


class Watch(Protocol):
    """Told of launches, in order. `regions` are the tensors of the call, as they lie in memory."""

    def begins(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None: ...

    def ended(self, regions: Sequence[Region]) -> None:
        """The launch that began last has ended well."""
        ...


@dataclass(slots=True)
class FirstLaunch:
    """Records the values of the first launch."""

    values: TraceWriter
    begun: bool = False

    def begins(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None:
        first, self.begun = not self.begun, True
        return Observed(self.values) if first else None

    def ended(self, regions: Sequence[Region]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Told:
    """Seam: `Engine`."""

    engine: Engine
    before_cta: Callable[[int], None]

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        self.before_cta(cta.index)
        return self.engine.warps(cta)
