# SPDX-License-Identifier: Apache-2.0
"""Times each program of a kernel that launches several, in rounds of its own.

The whole call runs first, so every program finds the data that the one before left. A program of a cold round
reads from memory what in the whole call may still be in the cache: programs may add up to more than the call
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gdnbench.timing.clocks import Clock, round_seconds
from gdnbench_kernels.compiling import Launcher, Program, launching
from gdnbench_kernels.contract import Launch


def on_cuda(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    from gdnbench_kernels.cuda_launch import launch

    launch(program, args, kwargs)


@dataclass(frozen=True, slots=True)
class _Started:
    """A program with the arguments that a launch gave it; they keep its intermediates alive."""

    program: Program
    launch: Launch


def by_program(
    launches: Sequence[Launch], clock: Clock, ready: Callable[[], None], launcher: Launcher = on_cuda
) -> dict[str, float] | None:
    """Seconds a launch of each program, by name, in the order of a launch; None for a kernel that launches
    fewer than two. `ready` is called before each program is timed.

    Programs that another launches again count together. Work between programs, which is no program's, is not
    timed.
    """
    first = _started(launches[0], launcher)
    names = list(dict.fromkeys(one.program.name for one in first))
    if len(names) < 2:
        return None
    started = [first, *(_started(launch, launcher) for launch in launches[1:])]
    found = {}
    for name in names:
        own = [one.launch for launch in started for one in launch if one.program.name == name]
        found[name] = round_seconds(clock.record(own), ready, clock.least) / len(started)
    return found


def _started(launch: Launch, launcher: Launcher) -> list[_Started]:
    """What a launch starts, which runs."""
    found: list[_Started] = []

    def start(program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        again = partial(launcher, program, tuple(args), dict(kwargs))
        found.append(_Started(program, again))
        again()

    with launching(start):
        launch()
    return found
