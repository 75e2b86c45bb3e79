# SPDX-License-Identifier: Apache-2.0
"""Protocols for observing launches: a `Watch` is called for each launch and may have its values recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gdnbench.sim.machine.engine_interface import Dim3, WarpEngine
from gdnbench.sim.machine.grid import ctas_communicate
from gdnbench.sim.value_trace import End, Recorder

if TYPE_CHECKING:
    from gdnbench.sim.host.arguments import Region
    from gdnbench.sim.machine.cta import Cta, Engine, Launch


@dataclass(frozen=True, slots=True)
class Observed:
    """What to do in one launch: record values with `values`, and call `before_cta` before each CTA begins,
    when the previous CTA has ended. The call is left out where CTAs synchronise and take turns."""

    values: Recorder | None = None
    before_cta: Callable[[int], None] | None = None

    def wrap_engine(self, launch: Launch, engine: Engine, name: str) -> Engine:
        """Wrap `engine`, whose name is `name`, so that it does this; starts the recorder."""
        if self.values is not None:
            from gdnbench.sim.interpreter.traced import TracingEngine

            tracing = TracingEngine(launch.kernel, self.values, engine)
            self.values.begin_launch(launch, name)
            engine = tracing
        if self.before_cta is None or ctas_communicate(launch.kernel):
            return engine
        return _CtaHook(engine, self.before_cta)

    def end_launch(self, how: End) -> None:
        """The launch has ended: ends the recorder."""
        if self.values is not None:
            self.values.end_launch(how)


class Watch(Protocol):
    """Called for each launch, in order. `regions` are the tensors of the call, at their addresses."""

    def on_launch_begin(self, entry: str, grid: Dim3, regions: Sequence[Region]) -> Observed | None: ...

    def on_launch_end(self, regions: Sequence[Region]) -> None:
        """The launch that began last has ended without a fault."""
        ...


@dataclass(frozen=True, slots=True)
class _CtaHook:
    """Calls `before_cta` before each CTA; implements `Engine`."""

    engine: Engine
    before_cta: Callable[[int], None]

    def warps(self, cta: Cta) -> Sequence[WarpEngine]:
        self.before_cta(cta.index)
        return self.engine.warps(cta)
