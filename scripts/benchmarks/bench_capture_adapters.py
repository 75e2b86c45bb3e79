#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""What capturing costs through each adapter: every call, every 16th, and looking without keeping.

    python scripts/benchmarks/bench_capture_adapters.py [ADAPTER ...] [--seconds 20]
        [--warm-seconds 8] [--layers 4] [--threads 1]
    python scripts/benchmarks/bench_capture_adapters.py --device cuda [ADAPTER ...] [--json FILE] [--by-step]

A loop decodes one sequence: in each step `--layers` layers call the framework's function, and plain products
make the step `--step-ms` long (9 ms, a served model's; 20 ms on a CPU). Segments of steps with capture off
and on take turns, as in bench_capture.py, which says how an overhead is had from them. `us a call` is what a
captured call costs the program in time, so that other steps can be worked out; `CPU us` what it costs the
process, the thread that writes included. `--by-step` prints what each step of a segment takes beyond one
without capture: of every 16th the first is recorded, and what the others take is counted with it.

    off         no capture
    every 16    one of 16 steps recorded
    every call  all of them
    ring        nothing recorded: --on-nonfinite --around 8, which copies every call and looks at it
    looked at   nothing recorded: --on-nonfinite alone
    when        nothing recorded: --when of something that never holds

A framework that is installed and runs on the device is called as it is; functions of its names and parameters
that compute nothing stand for the others (`stand-in`). What capture does with a call does not depend on that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from adapter_loops import LOOPS, SLOTS, Layer, Loop, Sizes
from bench_capture import Capturing, Off, Sealer, say
from bench_capture_segments import EVERY_16, EVERY_CALL, OFF, Mode, Segment, Segments, interval, ratios

from gdnbench.capture import runtime
from gdnbench.capture.adapter import Target
from gdnbench.capture.adapters.transformers import ADAPTER
from gdnbench.capture.options import CaptureOptions

RING, LOOKED_AT, WHEN = "ring", "looked at", "when"
OPTIONS: dict[str, dict[str, Any]] = {
    EVERY_16: {"every": 16},
    EVERY_CALL: {},
    RING: {"on_nonfinite": True, "around": 8},
    LOOKED_AT: {"on_nonfinite": True},
    WHEN: {"when": "step < 0"},
}
TURNS = tuple(mode for one in OPTIONS for mode in (OFF, one))
STEPS = {OFF: 16, EVERY_16: 16, EVERY_CALL: 4, RING: 8, LOOKED_AT: 8, WHEN: 8}
WARM_SECONDS = 8.0
LEAST = 6
"""Segments from which on an interval has the median with 95 %: 2 / 2**6 is 3 %."""
STEP_MS = {"cpu": 20.0, "cuda": 9.0}


class InLayers(Capturing):
    """Calls are those of layers, each of which counts its own steps: as by an adapter's table of them."""

    def __init__(self, store: Path, options: CaptureOptions, sealer: Sealer, loop: Loop) -> None:
        super().__init__(store, options, sealer)
        self._loop = loop
        self._scoped = self.capture.session.wrap_scope(
            ADAPTER, Target(Layer.__module__, "Layer.forward"), Layer.forward
        )

    @property
    def looked_at(self) -> int:
        return self.capture.session.counts.looked_at

    def enter(self) -> None:
        super().enter()
        runtime.running.append(self.capture)
        self._loop.forward = self._scoped

    def leave(self) -> int:
        self._loop.forward = Layer.forward
        runtime.running.remove(self.capture)
        return super().leave()


@contextlib.contextmanager
def modes(loop: Loop, options_of: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Mode]]:
    """No capture, and captures with options, by name."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gdnbench-bench-"))
        store = Path(folder) / "run.zarr"
        sealer = Sealer(store)
        stack.callback(sealer.close)
        table = Path(folder) / "table.toml"
        table.write_text(loop.table, encoding="utf-8")
        found: dict[str, Mode] = {OFF: Off()}
        for name, given in options_of.items():
            options = CaptureOptions(**given, table=(str(table),) if loop.table else ())
            found[name] = mode = InLayers(store, options, sealer, loop)
            stack.callback(mode.close)
        yield found


@dataclass(frozen=True, slots=True)
class Row:
    adapter: str
    calls: str  # the framework's own, or stand-ins
    mode: str
    segments: int
    ms_step: float
    overhead: float | None = None
    low: float | None = None
    high: float | None = None
    us_call: float | None = None
    cpu_us_call: float | None = None
    records: int | None = None  # in all segments


def rows(loop: Loop, segments: list[Segment]) -> Iterator[Row]:
    off = [one for one in segments if one.mode == OFF]
    base, base_cpu = (median(values) for values in zip(*((o.seconds, _cpu(o)) for o in off), strict=True))
    for name in STEPS:
        mine = [one for one in segments if one.mode == name]
        if not mine:
            continue
        kind = "own" if loop.own else "stand-in"
        seconds = median(one.seconds for one in mine)
        found = ratios(segments, name) if name != OFF else []
        if not found:
            yield Row(loop.name, kind, name, len(mine), seconds * 1e3)
            continue
        low, high = interval(found) if len(found) >= LEAST else (None, None)
        # Of 16 calls one is captured where every 16th is.
        captured = len(loop.layers) / (16 if name == EVERY_16 else 1)
        yield Row(
            loop.name,
            kind,
            name,
            len(mine),
            seconds * 1e3,
            median(found) - 1,
            None if low is None else low - 1,
            None if high is None else high - 1,
            (median(found) - 1) * base / captured * 1e6,
            (median(_cpu(one) for one in mine) - base_cpu) / captured * 1e6,
            sum(one.records for one in mine),
        )


def _cpu(segment: Segment) -> float:
    return segment.cpu_seconds / len(segment.steps)


def measured(loop: Loop, seconds: float, warm_seconds: float) -> list[Segment]:
    with modes(loop, OPTIONS) as some:
        segments = Segments(
            some, seconds=seconds, warm_seconds=warm_seconds, say=say, turns=TURNS, steps=STEPS
        )
        loop.step()
        while not segments.step_done():
            loop.step()
        _check(loop, segments.measured, some)
    return segments.measured


def _check(loop: Loop, segments: list[Segment], some: Mapping[str, Mode]) -> None:
    """SystemExit unless each mode did what it is measured for."""
    calls = len(loop.layers)
    expected = {EVERY_16: calls, EVERY_CALL: calls * STEPS[EVERY_CALL]}
    for one in segments:
        if one.records != expected.get(one.mode, 0):
            raise SystemExit(f"{loop.name}, {one.mode}: {one.records} records of a segment")
    for name in (RING, LOOKED_AT):
        mode = some[name]
        if isinstance(mode, InLayers) and not mode.looked_at:
            raise SystemExit(f"{loop.name}, {name}: no call was looked at")


def line(row: Row) -> str:
    text = f"{row.adapter:<14}{row.calls:<10}{row.mode:<12}{row.segments:>9}{row.ms_step:>9.2f}"
    if row.overhead is None:
        return text
    sure = "-" if row.low is None or row.high is None else f"{row.low:+.2%} to {row.high:+.2%}"
    return (
        f"{text}{row.overhead:>+10.2%}{sure:>20}{row.us_call:>11.0f}{row.cpu_us_call:>8.0f}{row.records:>9}"
    )


def by_step(segments: list[Segment]) -> Iterator[str]:
    """Of each mode, microseconds that a segment's steps take beyond one without capture, medians."""
    base = median(one.seconds for one in segments if one.mode == OFF)
    for name in OPTIONS:
        mine = [one.steps for one in segments if one.mode == name]
        beyond = [(median(values) - base) * 1e6 for values in zip(*mine, strict=True)]
        yield f"  {name}, us of each step: {' '.join(f'{value:+.0f}' for value in beyond)}"


HEADER = (
    f"{'adapter':<14}{'calls':<10}{'mode':<12}{'segments':>9}{'ms/step':>9}{'overhead':>10}{'95 %':>20}"
    f"{'us a call':>11}{'CPU us':>8}{'records':>9}"
)


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    device = options.device
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU; run it where there is one")
    sizes = Sizes.of(device, options.layers)
    what = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPUs"
    print(
        f"{what}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {options.threads} threads;"
        f" {options.layers} layers, H {sizes.heads}, Hv {sizes.value_heads}, head dim 128, batch 1,"
        f" pools of {SLOTS} fp32 states"
    )
    print(HEADER, flush=True)
    found = []
    for name in options.adapters or LOOPS:
        say(name)
        with LOOPS[name](sizes) as loop:
            loop.fill(options.step_ms or STEP_MS[device])
            segments = measured(loop, options.seconds, options.warm_seconds)
            for row in rows(loop, segments):
                found.append(row)
                print(line(row), flush=True)
            if options.by_step:
                print("\n".join(by_step(segments)), flush=True)
        if options.json is not None:
            save(options.json, what, found)  # what was measured stays, whatever comes


def save(path: Path, device: str, found: list[Row]) -> None:
    content = {"device": device, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    content |= {"rows": [{name: getattr(row, name) for name in Row.__slots__} for row in found]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapters", nargs="*", choices=[[], *LOOPS], metavar="ADAPTER", help=", ".join(LOOPS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, of each adapter")
    parser.add_argument("--warm-seconds", type=float, default=WARM_SECONDS, help="before that, at most")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--step-ms", type=float)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="the rows, to a file")
    parser.add_argument("--by-step", action="store_true", help="also what each step of a segment takes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
