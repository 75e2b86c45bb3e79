#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Compares the time model with calls that had never been measured when it predicted them.

    python scripts/benchmarks/predicted_then_measured.py --predict FILE              here, on the simulator
    python scripts/benchmarks/predicted_then_measured.py --predict FILE --memory-rate 2879 [--calls first]
    python scripts/benchmarks/predicted_then_measured.py --measure FILE              on a CUDA GPU
    python scripts/benchmarks/predicted_then_measured.py --measure FILE --skip MEASURED
    python scripts/benchmarks/predicted_then_measured.py --compare PREDICTED MEASURED

`SETS` are shapes of which results/ had no time when they were predicted. `--predict` writes the model's times
of an H200 for them, and that file is committed before anything is measured. `--memory-rate` replaces the
one parameter of that name, in GB/s: the rest of an H100 is an H200. `--measure` times the same calls as
results/ were measured: cold, many launches in one CUDA graph, the median of its rounds; outputs are judged.
`--skip FILE` measures only calls that FILE, a measured file, does not have.
`--compare` prints both.

Pairs are kernels of one call whose measured times differ by more than 10 %. Exit status: 0 the limits of
scripts/validate_time_model.py are kept, 1 one is not or a kernel is wrong, 2 bad arguments, 3 cannot run
here, or the measured GPU is not the one that was predicted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from gdnbench.cli.console import table
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.call import call_kernel, conversion
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.report.outcome import Outcome
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.predict.launch import predict
from gdnbench.sim.predict.machines import H200, Machine
from gdnbench.sim.ptx.parser import parse
from gdnbench.synth import synthesise
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.result import RecordTiming
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench_kernels.contract import Call
from gdnbench_kernels.swa_decode.contract import KERNELS
from gdnbench_kernels.swa_decode.layouts import CacheLayout
from gdnbench_kernels.swa_decode.sizes import MAX_WINDOW
from scripts.benchmarks import bench_gdn_decode, bench_kda_decode, bench_swa_decode
from scripts.validate_time_model import MEDIAN, NINETIETH, PAIRS, Compared, Row, errors, pairs, recorded

GDN, KDA, SWA = bench_gdn_decode.Shape, bench_kda_decode.Shape, bench_swa_decode.Shape
Shape = bench_gdn_decode.Shape | bench_swa_decode.Shape
FP32, BF16 = "float32", "bfloat16"
FIRST: Sequence[Shape] = (
    GDN(FP32, (4, 8), 12),
    GDN(FP32, (4, 8), 200),
    GDN(FP32, (8, 32), 40),
    GDN(FP32, (16, 48), 96),
    GDN(BF16, (4, 8), 40),
    GDN(BF16, (8, 32), 12),
    GDN(BF16, (16, 48), 40),
    GDN(BF16, (8, 32), 200),
    KDA(FP32, (32, 32), 8),
    KDA(FP32, (32, 32), 32),
    KDA(FP32, (32, 32), 128),
    SWA(CacheLayout.PER_TOKEN_SCALE, 32, 24),
    SWA(CacheLayout.PER_TOKEN_SCALE, 128, 80),
    SWA(CacheLayout.PER_TOKEN_SCALE, 64, 160),
    SWA(CacheLayout.FP8_DS_MLA, 64, 24),
    SWA(CacheLayout.FP8_DS_MLA, 32, 80),
    SWA(CacheLayout.FP8_DS_MLA, 128, 160),
)
"""Measured on an H100 in November 2026; results/time_model has the files without a number."""
SECOND: Sequence[Shape] = (
    GDN(FP32, (16, 32), 4),
    GDN(FP32, (16, 32), 100),
    GDN(FP32, (2, 4), 48),
    GDN(FP32, (2, 8), 320),
    GDN(FP32, (16, 16), 24),
    GDN(FP32, (16, 64), 6),
    GDN(FP32, (16, 32), 8, 2),
    GDN(FP32, (16, 32), 32, 4),
    GDN(BF16, (16, 32), 4),
    GDN(BF16, (16, 16), 160),
    GDN(BF16, (2, 4), 500),
    GDN(BF16, (8, 16), 90),
    GDN(BF16, (16, 32), 40, 3),
    KDA(FP32, (16, 16), 48),
    KDA(FP32, (16, 32), 20),
    KDA(FP32, (8, 8), 300),
    KDA(BF16, (32, 32), 24),
    KDA(BF16, (4, 4), 150),
    SWA(CacheLayout.PER_TOKEN_SCALE, 64, 40),
    SWA(CacheLayout.PER_TOKEN_SCALE, 32, 200),
    SWA(CacheLayout.PER_TOKEN_SCALE, 16, 100),
    SWA(CacheLayout.PER_TOKEN_SCALE, 128, 12),
    SWA(CacheLayout.FP8_DS_MLA, 64, 112),
    SWA(CacheLayout.FP8_DS_MLA, 128, 6),
    SWA(CacheLayout.FP8_DS_MLA, 32, 224),
    SWA(CacheLayout.FP8_DS_MLA, 16, 48),
)
"""Other head counts, batches and drafted tokens; of kda_decode also bf16 states, which no row had."""
SETS: Mapping[str, Sequence[Shape]] = {"first": FIRST, "second": SECOND}
WINDOW_KERNELS = ("portable", "wgmma")
ALONE: Mapping[str, Any] = {"pdl": False}
"""Options of kernels of swa_decode: the model has a launch that no other one overlaps."""
ROUNDS = 20
"""How often a graph of swa_decode runs, as in bench_swa_decode.py."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Quartiles of the seconds of a launch. `fault`: why the outputs are wrong; empty if they are right."""

    median: float
    lower: float
    upper: float
    fault: str


def call_name(shape: Shape) -> str:
    if isinstance(shape, SWA):
        return f"swa_decode {shape.layout.value} {shape.heads} x {shape.batch}"
    drafts = f" x {shape.steps} tokens" if shape.steps > 1 else ""
    return f"{shape.op} {shape.state_dtype} {shape.label}{drafts}"


def kernels_of(shape: Shape) -> Sequence[str]:
    return WINDOW_KERNELS if isinstance(shape, SWA) else (bench_gdn_decode.COMPILED,)


def predictions(calls: Sequence[Shape], machine: Machine) -> list[dict[str, Any]]:
    """One for each call and kernel; seconds."""
    found = []
    for shape in calls:
        if isinstance(shape, SWA):
            name = "swa_decode"
            made = synthesise(
                name,
                lens=(MAX_WINDOW,) * shape.batch,
                heads=shape.heads,
                cache_layout=shape.layout.value,
                sink=0.0,
            )
        else:
            name, made = shape.op, shape.call()
        for kernel in kernels_of(shape):
            one = recorded(
                Row(
                    kernel,
                    call_name(shape),
                    0.0,
                    _calling(name, kernel, made, ALONE if isinstance(shape, SWA) else {}),
                    False,
                ),
                machine,
            )
            told = predict(machine, parse(one.ptx), one.request, one.traces)
            found.append(
                {
                    "call": call_name(shape),
                    "kernel": kernel,
                    "seconds": told.seconds,
                    "low": told.low,
                    "high": told.high,
                    "bound": told.bound,
                    "busy": max(told.limits.values()),
                }
            )
            print(f"{call_name(shape)} {kernel}: {1e6 * told.seconds:.2f} us", file=sys.stderr, flush=True)
    return found


def _calling(name: str, kernel: str, made: Call, choice: Mapping[str, Any]) -> Callable[[], None]:
    def run() -> None:
        op = operation(name)
        call = Call(made.tensors, made.scalars, {**op.default_conventions, **made.conventions})
        found = load(kernel, op)
        function = partial(found.function, **choice)
        loaded = LoadedKernel(found.name, found.name, function, found.conventions, found.devices)
        call_kernel(op.convert(call, conversion(call, op, loaded).target), op, loaded)

    return run


def measured_decode(
    calls: Sequence[Shape], seconds: float, tell: Callable[[str, str, Measured], None]
) -> None:
    """`cute` of gdn_decode and kda_decode, as bench_gdn_decode.py times it; `tell` has each as it is done."""
    options = TimingOptions(Mode(Cache.COLD, Form.GRAPH), seconds, 0.01, clock="events")

    def found(shape: bench_gdn_decode.Shape, timing: RecordTiming) -> None:
        for kernel in timing.kernels:
            fault = "" if kernel.outcome is Outcome.PASS else f"{kernel.outcome}: {kernel.reason}"
            if kernel.summary is None:
                raise RuntimeError(f"{call_name(shape)}: {kernel.name} has no time ({fault})")
            told = kernel.summary
            tell(call_name(shape), kernel.name, Measured(told.median, told.lower, told.upper, fault))

    for op in (GDN.op, KDA.op):
        shapes = [shape for shape in calls if not isinstance(shape, SWA) and shape.op == op]
        if shapes:
            bench_gdn_decode.timed(shapes, [bench_gdn_decode.COMPILED], "cuda", options, found)


def measured_windows(calls: Sequence[Shape], tell: Callable[[str, str, Measured], None]) -> None:
    """Kernels of swa_decode, as bench_swa_decode.py times them."""
    torch.manual_seed(0)
    for shape in calls:
        if not isinstance(shape, SWA):
            continue
        cache = bench_swa_decode.Cache.made(shape.layout, shape.sets * shape.batch * bench_swa_decode.PAGES)
        sink = torch.randn(shape.heads, device="cuda")
        given = bench_swa_decode.buffers(shape, cache)
        for kernel in WINDOW_KERNELS:
            for own in given:
                own.o.fill_(torch.nan)
            module, function = KERNELS[kernel].target.split(":")
            called = getattr(importlib.import_module(module), function)
            timing = bench_swa_decode.timed(
                bench_swa_decode.launches(called, cache, sink, given, ALONE), ROUNDS
            )
            error = max(bench_swa_decode.error_ratio(cache, own, sink) for own in (given[0], given[-1]))
            fault = "" if error <= bench_swa_decode.ERROR else f"{error:.2f} x the error of torch in bf16"
            tell(call_name(shape), kernel, Measured(timing.median, timing.lower, timing.upper, fault))
        del cache, given
        torch.cuda.empty_cache()


def measure(calls: Sequence[Shape], path: Path, seconds: float) -> int:
    if not torch.cuda.is_available():
        print("error: no CUDA GPU to measure on; --predict needs none", file=sys.stderr)
        return Exit.CANNOT_RUN
    rows: list[dict[str, Any]] = []
    about = {
        "device": torch.cuda.get_device_name(),
        "copy_bytes_per_second": bench_swa_decode.copy_bandwidth(ROUNDS),
        "torch": torch.__version__,
        "rows": rows,
    }

    def tell(call: str, kernel: str, one: Measured) -> None:
        rows.append(
            {
                "call": call,
                "kernel": kernel,
                "seconds": one.median,
                "lower": one.lower,
                "upper": one.upper,
                "fault": one.fault,
            }
        )
        save(path, about)  # what was measured stays, whatever comes
        print(f"{call} {kernel}: {1e6 * one.median:.2f} us {one.fault}", file=sys.stderr, flush=True)

    measured_windows(calls, tell)
    measured_decode(calls, seconds, tell)
    return Exit.MISMATCH if any(row["fault"] for row in rows) else Exit.PASS


def save(path: Path, about: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(about, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def compare(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> int:
    times = {(row["call"], row["kernel"]): row for row in measured["rows"]}
    lines, held = [], []
    for row in predicted["rows"]:
        found = times.get((row["call"], row["kernel"]))
        if found is None:
            lines.append((row["call"], row["kernel"], f"{1e6 * row['seconds']:.2f}", "", "", "", "", ""))
            continue
        ratio = row["seconds"] / found["seconds"]
        held.append(Compared(row["call"], row["seconds"], found["seconds"]))
        lines.append(
            (
                row["call"],
                row["kernel"],
                f"{1e6 * row['seconds']:.2f}",
                f"{1e6 * row['low']:.2f} .. {1e6 * row['high']:.2f}",
                row["bound"],
                f"{1e6 * found['seconds']:.2f}",
                f"{ratio:.3f}",
                found["fault"],
            )
        )
    headers = ("call", "kernel", "predicted us", "range", "bound by", "measured us", "ratio", "")
    print(table(headers, lines, ("predicted us", "measured us", "ratio")))
    if not held:
        print("error: no row was both predicted and measured", file=sys.stderr)
        return Exit.BAD_INPUT
    median, ninetieth = errors(held)
    right, count = pairs(held)
    print(
        f"{len(held)} of {len(predicted['rows'])} rows measured, on {measured['device']}"
        f" ({measured['copy_bytes_per_second'] / 1e12:.2f} TB/s in a copy), predicted for"
        f" {predicted['machine']}, memory_rate {predicted['memory_rate']:.0f} GB/s:"
    )
    print(
        f"median error {median:.1%} (limit {MEDIAN:.0%}), 90th percentile {ninetieth:.1%} (limit"
        f" {NINETIETH:.0%}); {right} of {count} pairs in order (limit {PAIRS:.0%})"
    )
    if predicted["machine"] not in measured["device"].lower():
        print(f"{measured['device']} is not a {predicted['machine']}: the limits say nothing of these rows")
        return Exit.CANNOT_RUN
    good = median <= MEDIAN and ninetieth <= NINETIETH and right >= PAIRS * count
    return Exit.PASS if good and not any(row["fault"] for row in measured["rows"]) else Exit.MISMATCH


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--predict", type=Path, metavar="FILE", help="write predictions")
    task.add_argument("--measure", type=Path, metavar="FILE", help="write measured times")
    task.add_argument("--compare", type=Path, nargs=2, metavar=("PREDICTED", "MEASURED"), help="print both")
    parser.add_argument("--calls", choices=SETS, default="second", help="which of the sets of calls")
    parser.add_argument("--memory-rate", type=float, metavar="GB/S", help="of the machine that is predicted")
    parser.add_argument(
        "--skip", type=Path, metavar="MEASURED", help="with --measure: leave out the calls of this file"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of a measured row, at most")
    options = parser.parse_args()
    if options.compare:
        try:
            predicted, measured = (json.loads(path.read_text("utf-8")) for path in options.compare)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return Exit.BAD_INPUT
        return compare(predicted, measured)
    if options.measure:
        calls = SETS[options.calls]
        if options.skip:
            try:
                done = {row["call"] for row in json.loads(options.skip.read_text("utf-8"))["rows"]}
            except (OSError, ValueError) as error:
                print(f"error: {error}", file=sys.stderr)
                return Exit.BAD_INPUT
            calls = [shape for shape in calls if call_name(shape) not in done]
        return measure(calls, options.measure, options.seconds)
    rate = options.memory_rate
    machine = H200 if rate is None else H200.with_values(memory_rate=rate)
    try:
        rows = predictions(SETS[options.calls], machine)
    except UnsupportedError as error:
        print(f"error: not predicted: {error.what}", file=sys.stderr)
        return Exit.CANNOT_RUN
    save(
        options.predict,
        {"machine": machine.name, "memory_rate": machine.memory_rate.value, "rows": rows},
    )
    return Exit.PASS


if __name__ == "__main__":
    sys.exit(main())
