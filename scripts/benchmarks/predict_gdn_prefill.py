#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Predicts the times of kernels of gdn_prefill side by side, without the GPU.

    python scripts/benchmarks/predict_gdn_prefill.py                              every row and kernel
    python scripts/benchmarks/predict_gdn_prefill.py --rows 1x2048 --heads 16/32 --kernels sm100_fused
    python scripts/benchmarks/predict_gdn_prefill.py --machine h200 --json FILE

A row is the number of sequences x the tokens of each. Kernels run on the simulator with calls of that shape
whose values are 0: no branch of these kernels depends on values. Launches of more CTAs than a prediction
samples do not run.

Where a CTA processes a sequence or segment of more than 32 chunks, calls with 16 and 32 chunks are predicted
in its place; each further chunk takes a sixteenth of their difference.

FlashInfer must be importable (PYTHONPATH), ptxas and nvdisasm on PATH. Exit status: 0, 2 bad arguments, 3 a
kernel could not be predicted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from gdnbench.cli.console import table
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.call import call_kernel, conversion
from gdnbench.replay.kernels import load
from gdnbench.replay.simulated import replay_gpu, simulated
from gdnbench.sim import Settings, active
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.counters import Counters
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict import Prediction, machine_model
from gdnbench.sim.predict.launch import SAMPLED
from gdnbench.sim.predict.machines import Machine
from gdnbench.sim.predict.predictor import predict_in_copy
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.run import RunResult
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.fused import sm100_fused
from gdnbench_kernels.gdn_prefill.fused_cp import sm100_fused_cp
from gdnbench_kernels.gdn_prefill.prefill_plan import FUSED, plan_of
from gdnbench_kernels.gdn_prefill.sizes import CHUNK, HEAD_DIM

ROWS = ("1x2048", "1x8192", "1x32768", "8x2048", "64x512")
HEADS = ("16/32", "16/64", "2/8")
SEQUENTIAL = (FUSED, "flashinfer_plain")
"""Kernels in which one CTA processes a whole sequence."""
AUTO = "sm100_auto"
FEW, MANY = 16, 32
"""Chunks of the calls from which longer sequences are extrapolated."""
BYTES, FLOP = 776, 165_200
"""Of a fused kernel, per token and value head with Hv / H = 2 (docs/prefill.md, "Work and traffic")."""


@dataclass(frozen=True, slots=True)
class Time:
    """Predicted seconds with their range."""

    seconds: float
    low: float
    high: float
    launches: tuple[Prediction, ...]

    @classmethod
    def of(cls, launches: Sequence[Prediction]) -> Time:
        return cls(
            sum(one.seconds for one in launches),
            sum(one.low for one in launches),
            sum(one.high for one in launches),
            tuple(launches),
        )

    def beyond(self, shorter: Time, rounds: float) -> Time:
        """This time and `rounds` times its distance from a shorter call's."""

        def further(name: str) -> float:
            long, short = getattr(self, name), getattr(shorter, name)
            return float(long + rounds * (long - short))

        return Time(further("seconds"), further("low"), further("high"), self.launches)


def call_of(sequences: int, tokens: int, heads: int, value_heads: int) -> Call:
    """A call of zeros."""
    total = sequences * tokens

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    tensors = {
        "q": zeros(total, heads, HEAD_DIM),
        "k": zeros(total, heads, HEAD_DIM),
        "v": zeros(total, value_heads, HEAD_DIM),
        "g": zeros(total, value_heads, dtype=torch.float32),
        "beta": zeros(total, value_heads, dtype=torch.float32),
        "cu_seqlens": torch.arange(sequences + 1, dtype=torch.int32) * tokens,
    }
    return Call(tensors, {}, operation("gdn_prefill").default_conventions)


def predicted(
    machine: Machine, kernel: str, call: Call, segment: int | None = None, cut: int | None = None
) -> Time:
    """The time of a call's launches, one after the other. `segment`: tokens of a segment of
    sm100_fused_cp; `cut`: tokens behind which sm100_fused cuts its last works."""
    found: list[Prediction] = []

    def before(module: Module, request: LaunchRequest, memory: GlobalMemory) -> RunResult | None:
        found.append(predict_in_copy(machine, module, request, memory))
        ctas = math.prod(request.grid)
        return RunResult(Counters(), {}, 0.0, ctas) if ctas > SAMPLED else None

    op = operation("gdn_prefill")
    loaded = load(kernel, op)
    if segment is not None:
        loaded = replace(loaded, function=partial(sm100_fused_cp, segment=segment))
    if cut is not None:
        loaded = replace(loaded, function=partial(sm100_fused, cut=cut))
    with active(Settings(before=before)), replay_gpu(machine.name), simulated("sim"):
        call_kernel(op.convert(call, conversion(call, op, loaded).target), op, loaded)
    return Time.of(found)


def time_of(machine: Machine, kernel: str, sequences: int, tokens: int, heads: tuple[int, int]) -> Time:
    """The predicted time of a kernel in a row."""
    segment, cut, chunks = None, None, tokens // CHUNK
    if kernel == AUTO:
        plan = plan_of(sequences * tokens, sequences, heads[1], int(machine.multiprocessors.value))
        kernel, segment, cut = plan.kernel, plan.segment, plan.cut
    if segment is not None:
        chunks = segment // CHUNK
    elif kernel not in SEQUENTIAL:
        chunks = 0
    if chunks <= MANY:
        return predicted(machine, kernel, call_of(sequences, tokens, *heads), segment, cut)
    few, many = (
        predicted(
            machine,
            kernel,
            call_of(sequences, tokens * count // chunks, *heads),
            segment and count * CHUNK,
            cut and max(1, cut // CHUNK * count // chunks) * CHUNK,
        )
        for count in (FEW, MANY)
    )
    return many.beyond(few, (chunks - MANY) / (MANY - FEW))


def floor(machine: Machine, tokens: int, value_heads: int) -> float:
    """The least seconds of a fused kernel: its bytes at the memory's rate or its FLOP at the tensor
    cores'."""
    work = tokens * value_heads
    flop_rate = 2 * machine.tensor_rate.value * machine.multiprocessors.value * machine.clock.value * 1e9
    return max(work * BYTES / (machine.memory_rate.value * 1e9), work * FLOP / flop_rate)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", default=ROWS)
    parser.add_argument("--heads", nargs="+", default=HEADS)
    parser.add_argument("--kernels", nargs="+", default=(AUTO, "flashinfer_plain", "flashinfer_cp"))
    parser.add_argument("--machine", default="b200")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = machine_model(options.machine)
    lines, kept, code = [], [], Exit.PASS
    for heads in options.heads:
        h, hv = (int(each) for each in heads.split("/"))
        for row in options.rows:
            sequences, tokens = (int(each) for each in row.split("x"))
            least = floor(machine, sequences * tokens, hv)
            line = [row, heads, f"{1e6 * least:.0f}"]
            for kernel in options.kernels:
                try:
                    time = time_of(machine, kernel, sequences, tokens, (h, hv))
                except Exception as error:
                    print(f"{row} {heads} {kernel}: {type(error).__name__}: {error}", file=sys.stderr)
                    line.append("")
                    code = Exit.CANNOT_RUN
                    continue
                line.append(f"{1e6 * time.seconds:.0f} ({1e6 * time.low:.0f}..{1e6 * time.high:.0f})")
                kept.append(
                    {
                        "row": row,
                        "heads": heads,
                        "kernel": kernel,
                        "machine": machine.name,
                        "predicted_us": 1e6 * time.seconds,
                        "low_us": 1e6 * time.low,
                        "high_us": 1e6 * time.high,
                        "floor_us": 1e6 * least,
                        "launches": [
                            {"entry": one.entry[:60], "us": 1e6 * one.seconds, "bound": one.bound}
                            for one in time.launches
                        ],
                    }
                )
                print(" ".join([row, heads, kernel, line[-1]]), file=sys.stderr, flush=True)
                if options.json:
                    options.json.write_text(json.dumps(kept, indent=1))
            lines.append(line)
    print(table(("row", "heads", "floor us", *options.kernels), lines, ()))
    return code


if __name__ == "__main__":
    sys.exit(main())
