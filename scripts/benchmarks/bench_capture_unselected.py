#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""What a call costs that capture does not keep, by adapter, in microseconds of the calling thread's CPU time.

    python scripts/benchmarks/bench_capture_unselected.py [ADAPTER ...] [--rounds 60] [--json FILE]

The loops are those of bench_capture_adapters.py with one tiny layer, on a CPU. Functions that compute nothing
stand for those of all frameworks. Blocks of calls without capture and with it take turns. Medians of the
blocks, less the median without capture:

    every    calls between those that --every keeps
    first    calls after those that --first keeps
    paused   calls while capture is off
    when     calls that --when has looked at and does not keep: what an adapter's look costs
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from adapter_loops import LOOPS, Loop, Sizes
from bench_capture_adapters import modes
from bench_capture_segments import OFF

OPTIONS: dict[str, dict[str, Any]] = {
    "every": {"every": 1 << 20},
    "first": {"first": 1},
    "paused": {"paused": True},
    "when": {"when": "step < 0"},
}
CALLS = 200
"""Of a block: some milliseconds."""


def block(loop: Loop) -> float:
    """Seconds of a call."""
    layer = loop.layers[0]
    begun = time.thread_time()
    for _ in range(CALLS):
        loop.forward(layer)
    return (time.thread_time() - begun) / CALLS


def measured(loop: Loop, rounds: int) -> dict[str, float]:
    """Microseconds of a call, by mode. SystemExit if a mode kept calls that are timed."""
    found: dict[str, list[float]] = {}
    with modes(loop, OPTIONS) as some, torch.no_grad():
        for count in range(rounds + 1):
            for name, mode in some.items():
                mode.enter()
                block(loop) if count == 0 else found.setdefault(name, []).append(block(loop))
                if mode.leave() and count:
                    raise SystemExit(f"{loop.name}, {name}: calls were recorded")
    return {name: median(values) * 1e6 for name, values in found.items()}


@contextlib.contextmanager
def computing_nothing(name: str) -> Iterator[None]:
    """transformers' function is there on a CPU, and takes longer than what is measured."""
    if name != "transformers":
        yield
        return
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    function = modeling.torch_recurrent_gated_delta_rule

    def torch_recurrent_gated_delta_rule(
        query: Any,
        key: Any,
        value: Any,
        g: Any,
        beta: Any,
        initial_state: Any,
        output_final_state: bool,
        use_qk_l2norm_in_kernel: bool = False,
    ) -> tuple[Any, Any]:
        return value, initial_state

    modeling.torch_recurrent_gated_delta_rule = torch_recurrent_gated_delta_rule
    try:
        yield
    finally:
        modeling.torch_recurrent_gated_delta_rule = function


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("adapters", nargs="*", choices=[[], *LOOPS], metavar="ADAPTER", help=", ".join(LOOPS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="the table, to a file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'adapter':<14}{'bare':>8}" + "".join(f"{name:>9}" for name in OPTIONS), flush=True)
    table: dict[str, dict[str, float]] = {}
    for name in options.adapters or LOOPS:
        with computing_nothing(name), LOOPS[name](Sizes("cpu", 1, 1, 2)) as loop:
            found = measured(loop, options.rounds)
        table[name] = {one: value - found[OFF] for one, value in found.items() if one != OFF}
        cells = "".join(f"{value:>9.1f}" for value in table[name].values())
        print(f"{name:<14}{found[OFF]:>8.1f}{cells}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
