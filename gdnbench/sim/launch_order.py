# SPDX-License-Identifier: Apache-2.0
"""The launch directly in front of the next one of a stream, for the race checker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdnbench.sim.checker.earlier_launches import EarlierLaunches
    from gdnbench.sim.host.request import LaunchRequest
    from gdnbench.sim.run import RunResult

ANY_STREAM = -1
"""The stream of a launch whose stream is not known."""


@dataclass(slots=True)
class LaunchOrder:
    """What the last launch left, if nothing else ran on the GPU since. Launches run one after the other here,
    so the last one is the one in front of the next if both are of one stream."""

    _stream: int = 0
    _last: EarlierLaunches | None = None

    def in_front_of(self, request: LaunchRequest) -> EarlierLaunches | None:
        """The launches that may still run when `request` starts; None if it starts after their end."""
        same = ANY_STREAM in (self._stream, request.stream) or self._stream == request.stream
        return self._last if request.programmatic and same else None

    def add(self, request: LaunchRequest, result: RunResult) -> None:
        """`request` has run, with this result."""
        self._stream, self._last = request.stream, result.in_front

    def forget(self) -> None:
        """Something else ran on the GPU, or a launch failed: the next launch waits for it."""
        self._last = None
