#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Compares the time model with measured times: predicts the rows of results/ and prints the errors.

    python scripts/validate_time_model.py                          every row; some 15 minutes on two cores
    python scripts/validate_time_model.py 'swa portable *'         rows whose names match
    python scripts/validate_time_model.py --keep FOLDER            traces are kept there, and taken from there
    python scripts/validate_time_model.py --fit 600 --keep FOLDER  fits parameters for 600 seconds first

A third of the rows of the sweep and of swa_decode, drawn by a hash of their names, may be used to fit
parameters; `*` marks them, and the figures at the end are those of the others. `--fit` prints the values,
which then belong into gdnbench/sim/predict/machines.py. Pairs are rows of one call with different kernels or
plans whose measured times differ by more than 10 %.

Exit status: 0 the limits are kept (median error 12 %, 90th percentile 25 %, 95 % of pairs in order), 1 one is
not, 2 bad arguments, 3 a tool is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from gdnbench.cli.console import progress, table
from gdnbench.errors import Exit
from gdnbench.ops import operation
from gdnbench.replay.call import call_kernel, conversion
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.replay.simulated import programs_simulated
from gdnbench.sim import Settings, active
from gdnbench.sim.errors import UnsupportedError
from gdnbench.sim.host.request import LaunchRequest
from gdnbench.sim.machine.memory import GlobalMemory
from gdnbench.sim.predict.launch import predict_seconds, record, sampled_ctas
from gdnbench.sim.predict.machines import H200, Machine
from gdnbench.sim.predict.trace import CtaTrace
from gdnbench.sim.ptx.ir import Module
from gdnbench.sim.ptx.parser import parse
from gdnbench.synth import synthesise
from gdnbench_kernels.contract import Call

RESULTS = Path(__file__).parents[1] / "results"
MEDIAN, NINETIETH, PAIRS, APART = 0.12, 0.25, 0.95, 0.10
FITTED: Mapping[str, tuple[float, float]] = {
    name: (each.low, each.high) for name, each in H200.parameters().items() if not each.published
}


@dataclass(frozen=True, slots=True)
class Row:
    """A measured time: `call` names what was called, so that rows of one call can be compared."""

    name: str
    call: str
    seconds: float
    run: Callable[[], None]
    fits: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row with the traces of its launch."""

    name: str
    call: str
    seconds: float
    fits: bool
    ptx: str
    request: LaunchRequest
    traces: Sequence[CtaTrace]


def drawn(name: str) -> bool:
    """Whether the row of this name may be used to fit."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def rows() -> Iterator[Row]:
    """All measured rows, in the order of their calls. Shapes of the sweep are not taken twice."""
    swept = []
    for one in json.loads((RESULTS / "gdn_decode" / "sweep.json").read_text(encoding="utf-8")):
        shape = one["shape"]
        swept.append(shape)
        for plan, samples in one["samples"].items():
            name = f"gdn {shape['state_dtype']} {shape['batch']} {plan}"
            run = partial(_call, "gdn_decode", "cute", _decode(shape), {"plan": plan})
            yield Row(name, f"gdn {shape}", statistics.median(samples), run, drawn(name))
    for op in ("gdn_decode", "kda_decode"):
        timings = json.loads((RESULTS / op / "timings.json").read_text(encoding="utf-8"))
        for one in (one for group in timings.values() for one in group):
            shape = one["shape"]
            for kernel in one["timing"]["kernels"]:
                if kernel["name"] == "cute" and (op == "kda_decode" or shape not in swept):
                    name = f"{op} {shape['state_dtype']} {shape['heads']} {shape['batch']} x {shape['steps']}"
                    run = partial(_call, op, "cute", _decode(shape), _timed_plan(op, shape))
                    yield Row(name, f"{op} {shape}", kernel["summary"]["median"], run, False)
    for one in json.loads((RESULTS / "swa_decode" / "h200.json").read_text(encoding="utf-8"))["rows"]:
        shape = f"{one['cache_layout']} {one['heads']} {one['requests']}"
        name = f"swa {one['kernel']} {shape}"
        options = {
            "lens": (128,) * one["requests"],
            "heads": one["heads"],
            "cache_layout": one["cache_layout"],
            "sink": 0.0,
        }
        run = partial(_call, "swa_decode", one["kernel"], options, {"pdl": False})  # as they were timed
        yield Row(name, f"swa {shape}", one["us"] * 1e-6, run, drawn(name))


def _timed_plan(op: str, shape: Mapping[str, Any]) -> dict[str, str]:
    """The plan that was timed: gdn_decode's default before there were plans in the order of slots."""
    if op != "gdn_decode":
        return {}
    from gdnbench_kernels.gdn_decode.decode_plan import H200_SMS, default_plan

    batch, (_, value_heads) = shape["batch"], shape["heads"]
    plan = default_plan(batch, value_heads, shape["state_dtype"], shape["steps"], H200_SMS, by_slot=False)
    return {"plan": " ".join(f"{name}={value}" for name, value in plan.options.items())}


def _decode(shape: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "batch": shape["batch"],
        "heads": tuple(shape["heads"]),
        "steps": shape["steps"],
        "state_dtype": shape["state_dtype"],
        "speculative": shape["steps"] > 1,
        "gate": "raw",
        "qk": "raw",
    }


_calls: dict[str, Call] = {}  # the latest alone: that of 256 sequences has half a gigabyte of states


def _call(op: str, kernel: str, options: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    key = f"{op} {sorted(options.items())}"
    if key not in _calls:
        _calls.clear()
        _calls[key] = synthesise(op, **options)
    found, made = operation(op), _calls[key]
    call = Call(made.tensors, made.scalars, {**found.default_conventions, **made.conventions})
    loaded = load(kernel, found)
    function = loaded.function
    if "plan" in choice:
        function = partial(function, plan=_plan(choice["plan"]))
    if "pdl" in choice:
        function = partial(function, pdl=choice["pdl"])
    chosen = LoadedKernel(loaded.name, loaded.name, function, loaded.conventions, loaded.devices)
    call_kernel(found.convert(call, conversion(call, found, chosen).target), found, chosen)


def _plan(text: str) -> Any:
    from gdnbench_kernels.gdn_decode.decode_plan import DecodePlan

    given = dict(option.split("=") for option in text.split())
    read = {
        name: value == "True" if value in ("True", "False") else int(value) if value.isdigit() else value
        for name, value in given.items()
    }
    return DecodePlan(**read)


class _RecordedError(Exception):
    """The first launch has been recorded; it need not run."""


def recorded(row: Row, machine: Machine) -> Recorded:
    """The row with traces of some CTAs of its first launch."""
    found: list[Recorded] = []

    def before(module: Module, request: LaunchRequest, memory: GlobalMemory) -> None:
        some = sampled_ctas(math.prod(request.grid), machine)
        traces = record(module, request, memory, some, machine)
        found.append(Recorded(row.name, row.call, row.seconds, row.fits, module.text, request, traces))
        raise _RecordedError

    try:
        with active(Settings(before=before), machine=machine.name), programs_simulated():
            row.run()
    except _RecordedError:
        pass
    return found[0]


_modules: dict[str, Module] = {}
_recorded: Sequence[Recorded] = ()


def seconds_of(machine: Machine, one: Recorded) -> float:
    """Predicted seconds."""
    if one.ptx not in _modules:
        _modules[one.ptx] = parse(one.ptx)
    return predict_seconds(machine, _modules[one.ptx], one.request, one.traces)


def _ratio(task: tuple[int, dict[str, float]]) -> float:
    number, values = task
    one = _recorded[number]
    return seconds_of(H200.with_values(**values), one) / one.seconds


def fit(seconds: float) -> dict[str, float]:
    """Values of the fitted parameters, by search along one after the other, on rows that may be used."""
    numbers = [number for number, one in enumerate(_recorded) if one.fits]
    values = {name: getattr(H200, name).value for name in FITTED}
    steps = {name: (high - low) / 4 for name, (low, high) in FITTED.items()}
    order, end = random.Random(0), time.monotonic() + seconds
    with get_context("fork").Pool() as pool:

        def loss(tried: dict[str, float]) -> float:
            ratios = pool.map(_ratio, [(number, tried) for number in numbers], chunksize=1)
            errors = sorted(abs(math.log(ratio)) for ratio in ratios)
            return statistics.mean(errors) + errors[int(0.9 * len(errors))] / 2

        best = loss(values)
        while time.monotonic() < end:
            for name in order.sample(sorted(FITTED), len(FITTED)):
                low, high = FITTED[name]
                for sign in (1, -1):
                    tried = values | {name: min(max(values[name] + sign * steps[name], low), high)}
                    found = loss(tried)
                    if found < best:
                        best, values = found, tried
                        print(f"{best:.4f} {name} = {tried[name]:.4g}", file=sys.stderr, flush=True)
                        break
                else:
                    steps[name] /= 2
                if time.monotonic() > end:
                    break
    return values


class Compared(NamedTuple):
    """Predicted and measured seconds of a call; `fitted`: parameters were fitted on the row."""

    call: str
    predicted: float
    measured: float
    fitted: bool = False


def errors(rows: Sequence[Compared]) -> tuple[float, float]:
    """The median and the 90th percentile of |predicted / measured - 1|; at least one row."""
    found = sorted(abs(one.predicted / one.measured - 1) for one in rows)
    return statistics.median(found), found[min(int(0.9 * len(found)), len(found) - 1)]


def pairs(rows: Sequence[Compared]) -> tuple[int, int]:
    """Of rows of one call, not both fitted, that differ by more than `APART` measured: how many pairs are in
    the right order, of how many."""
    right = count = 0
    for one, other in combinations(rows, 2):
        if one.call != other.call or (one.fitted and other.fitted):
            continue
        slower, faster = (one, other) if one.measured > other.measured else (other, one)
        if slower.measured > (1 + APART) * faster.measured:
            count += 1
            right += slower.predicted > faster.predicted
    return right, count


def main() -> int:
    global _recorded
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="patterns of rows; all if none is given")
    parser.add_argument("--keep", type=Path, help="a folder for the traces")
    parser.add_argument("--fit", type=float, metavar="SECONDS", help="fit parameters first")
    options = parser.parse_args()
    chosen = [
        row for row in rows() if not options.names or any(fnmatchcase(row.name, n) for n in options.names)
    ]
    if not chosen:
        print(f"error: no row is called {' or '.join(options.names)}", file=sys.stderr)
        return Exit.BAD_INPUT
    try:
        with progress("record") as advance:
            found = []
            for number, row in enumerate(chosen):
                found.append(_kept(row, options.keep))
                advance(number + 1, len(chosen))
        _recorded = found
        values = fit(options.fit) if options.fit else {}
        for name, value in values.items():
            print(f"{name} = {value:.5g}")
        with get_context("fork").Pool() as pool:
            tasks = [(number, values) for number in range(len(found))]
            predicted = pool.map(_ratio, tasks, chunksize=1)
        ratios = {one.name: ratio for one, ratio in zip(found, predicted, strict=True)}
    except UnsupportedError as error:
        print(f"error: not predicted: {error.what}", file=sys.stderr)
        return Exit.CANNOT_RUN
    return _report(ratios)


def _kept(row: Row, folder: Path | None) -> Recorded:
    """The row's traces, from the folder if they are there."""
    if folder is None:
        return recorded(row, H200)
    path = folder / f"{hashlib.sha256(row.name.encode()).hexdigest()[:16]}.pkl"
    if path.exists():
        kept: Recorded = pickle.loads(path.read_bytes())
        return kept
    found = recorded(row, H200)
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(found))
    part.replace(path)
    return found


def _report(ratios: Mapping[str, float]) -> int:
    lines = [
        (
            one.name,
            "*" if one.fits else "",
            f"{1e6 * one.seconds:.2f}",
            f"{1e6 * ratios[one.name] * one.seconds:.2f}",
            f"{ratios[one.name]:.3f}",
        )
        for one in _recorded
    ]
    headers = ("row", "fitted", "measured us", "predicted us", "ratio")
    print(table(headers, lines, headers[2:]))
    compared = [
        Compared(one.call, ratios[one.name] * one.seconds, one.seconds, one.fits) for one in _recorded
    ]
    held = [one for one in compared if not one.fitted]
    if not held:
        return Exit.PASS
    median, ninetieth = errors(held)
    right, count = pairs(compared)
    print(
        f"{len(held)} rows that were not fitted: median error {median:.1%} (limit {MEDIAN:.0%}),"
        " 90th percentile"
    )
    print(f"{ninetieth:.1%} (limit {NINETIETH:.0%}); {right} of {count} pairs in order (limit {PAIRS:.0%})")
    kept = median <= MEDIAN and ninetieth <= NINETIETH and right >= PAIRS * count
    return Exit.PASS if kept else Exit.MISMATCH


if __name__ == "__main__":
    sys.exit(main())
