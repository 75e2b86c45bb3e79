#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Times the decode kernels of gated delta nets beside one another and makes a folder of results.

    python scripts/benchmarks/bench_gdn_decode.py                       everything; some 15 minutes on an H200
    python scripts/benchmarks/bench_gdn_decode.py --groups fp32,bf16 --batches 1,16,64,256 --seconds 5
    python scripts/benchmarks/bench_gdn_decode.py --sweep --groups fp32    every plan of the compiled kernel
    python scripts/benchmarks/bench_gdn_decode.py --tiny --on cpu --kernels torch,hf

The folder (`--out`, results/gdn_decode) gets README.md, the tables; timings.json, every sample and what was
seen of the machine meanwhile, as `gdnbench time --json` has a record; with `--sweep` sweep.md and sweep.json
instead. What a group's table has is replaced when the group is timed again, the rest stays.

Calls are made (`gdnbench synth`): raw gates in bf16, raw q and k. Each kernel's outputs are judged first. A
peer's that fail are timed all the same, and the table has the error; ours are not. The first of `--kernels`
is what the others are beside: a speed-up is their time over its. Launches are cold, in CUDA graphs, between
CUDA events whatever is installed: what lies between launches is to count. docs/timing.md says more. Exit
status: 0 all as fast as they should be, 1 one is not, or is wrong, 2 bad arguments, 3 cannot run here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, BadInputError, Exit
from gdnbench.ops import operation
from gdnbench.poison import same_bits
from gdnbench.replay.execute import device_of
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.report.outcome import Outcome
from gdnbench.store.compression import Compression
from gdnbench.store.recover import open_store
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import draft, synthesise
from gdnbench.timing.bench import Bench
from gdnbench.timing.comparison import Comparison, DisturbedError, RoundError, compare
from gdnbench.timing.conditions import UnknownWatch, watch_of
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.result import KernelTiming, PairTiming, RecordTiming
from gdnbench.timing.rotation import RotationOptions
from gdnbench.timing.run import time_records
from gdnbench.timing.statistics import Rule
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench_kernels.contract import Call

RESULTS = Path(__file__).parents[2] / "results"
COMPILED = "cute"
PEER = "flashinfer"
PEERS = (PEER, "fla")
"""Timed although their outputs fail: their states are rounded by approximations that the rule does not allow,
and their users serve with them."""
HEADS = (16, 32)
BATCHES = (1, 4, 16, 64, 256, 512)
OTHER_HEADS = ((16, 16), (16, 48), (16, 64), (8, 16), (4, 8), (2, 4), (2, 8))
"""Key and value heads of other models and ranks; batches are those that move the bytes of `OTHER_STATES`."""
OTHER_STATES = (16 * 32, 64 * 32)
DRAFT_BATCHES = (1, 16, 64)
DRAFTS = 4
SWEPT_SETS = 128
"""Of a round of a sweep: half of a table's. Dozens of plans are prepared for each, and these rank them."""
TARGETS: Mapping[str, Mapping[int, float]] = {
    "float32": {1: 1.25, 16: 1.08, 64: 1.03, 256: 1.0, 512: 1.0},
    "bfloat16": {1: 1.25, 16: 1.2, 64: 1.15, 256: 1.08},
}
"""The target for FlashInfer's time over ours, with 32 value heads, by batch; of one token a sequence.
Other head counts are held to the target of the batch that moves the same bytes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A call of `op`, whose inputs are those of `forms`; bench_kda_decode.py has another."""

    op: ClassVar[str] = "gdn_decode"
    forms: ClassVar[Mapping[str, Any]] = {"gate": "raw", "qk": "raw"}
    most_heads: ClassVar[tuple[int, int]] = HEADS
    other_heads: ClassVar[Sequence[tuple[int, int]]] = OTHER_HEADS
    targets: ClassVar[Mapping[str, Mapping[int, float]]] = TARGETS

    state_dtype: str
    heads: tuple[int, int]
    batch: int
    steps: int = 1

    @property
    def target(self) -> float | None:
        """Of the speed-up beside FlashInfer; None where none is asked for."""
        states = self.batch * self.heads[1]
        if self.steps > 1 or states % 32:
            return None
        return self.targets.get(self.state_dtype, {}).get(states // 32)

    @property
    def label(self) -> str:
        return f"{self.heads[0]}/{self.heads[1]} x {self.batch}"

    @property
    def where(self) -> str:
        """All of it, in a line."""
        return f"{self.label}, {self.steps} token{'s' if self.steps > 1 else ''}, {self.state_dtype}"

    def call(self, seed: int = 0) -> Call:
        return synthesise(
            self.op,
            batch=self.batch,
            steps=self.steps,
            heads=self.heads,
            state_dtype=self.state_dtype,
            speculative=self.steps > 1,
            seed=seed,
            **self.forms,
        )


def groups(batches: Sequence[int], tiny: bool, shape: type[Shape] = Shape) -> dict[str, list[Shape]]:
    """Tables by name, and their rows."""
    if tiny:
        small = [shape(dtype, (1, 2), 2, steps) for dtype in TARGETS for steps in (1, 2)]
        return {"tiny": small}
    found = {}
    for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
        found[name] = [shape(dtype, shape.most_heads, batch) for batch in batches]
        found[f"{name} heads"] = [
            shape(dtype, heads, states // heads[1])
            for heads in shape.other_heads
            for states in OTHER_STATES
            if states % heads[1] == 0
        ]
        found[f"{name} drafts"] = [shape(dtype, shape.most_heads, batch, DRAFTS) for batch in DRAFT_BATCHES]
    return found


Timed = tuple[Shape, RecordTiming]


def timed(
    shapes: Sequence[Shape],
    kernels: Sequence[str],
    on: str,
    options: TimingOptions,
    found: Callable[[Shape, RecordTiming], None],
) -> None:
    """Kernels judged and timed on each shape, in one process as long as none ends it; `found` is told of each
    as it is done. The calls lie in a store of their own meanwhile."""
    with tempfile.TemporaryDirectory(prefix="gdnbench-bench-") as folder:
        path, begin = Path(folder) / "calls.zarr", time.monotonic()
        # Nobody keeps it: no compression, and nothing is flushed to the disk.
        with StoreWriter(path, kind="synth", compression=Compression(None), durable=False) as writer:
            for index, shape in enumerate(shapes):
                # Batches are read in the order of their names.
                writer.write(f"{index:06}", [draft(shape.op, shape.call(), index=index)])
        say(f"made {len(shapes)} calls in {time.monotonic() - begin:.1f} s")

        def progress(done: int, total: int, timing: RecordTiming) -> None:
            shape = shapes[done - 1]
            found(shape, timing)
            say(f"{time.monotonic() - begin:.1f} s: timed {done} of {total}, {shape.where}")
            for line in rows(shape, timing):
                say(" | ".join(line))

        with open_store(path) as store:
            wrong_too = [name for name in kernels if name in PEERS]
            time_records(store, kernels, on=on, options=options, time_wrong=wrong_too, progress=progress)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


HEAD = ("H/Hv x batch", "tokens", "kernel", "us", "quartiles", "TB/s", "of ceiling", "speed-up", "target", "")


def table(timings: Sequence[Timed]) -> list[tuple[str, ...]]:
    """A row a shape and kernel."""
    return [row for shape, timing in timings for row in rows(shape, timing)]


def rows(shape: Shape, timing: RecordTiming) -> Iterator[tuple[str, ...]]:
    pairs = {pair.other: pair for pair in timing.pairs}
    for kernel in timing.kernels:
        where = (shape.label, str(shape.steps), kernel.name)
        if kernel.summary is None:
            yield (*where, "", "", "", "", "", "", f"{kernel.outcome}: {kernel.reason}")
            continue
        us = [1e6 * value for value in (kernel.summary.median, kernel.summary.lower, kernel.summary.upper)]
        rates, pair = kernel.rates, pairs.get(kernel.name)
        of_ceiling = "" if rates is None or rates.of_ceiling is None else f"{rates.of_ceiling:.1%}"
        target = shape.target if kernel.name == PEER else None
        yield (
            *where,
            f"{us[0]:.2f}",
            f"{us[1]:.2f} .. {us[2]:.2f}",
            "" if rates is None else f"{rates.bytes_per_second / 1e12:.2f}",
            of_ceiling,
            "" if pair is None else speed_up(pair),
            "" if target is None else f"{target:.2f}",
            judged(kernel, pair, target),
        )


def speed_up(pair: PairTiming) -> str:
    if pair.interval is None:
        return str(pair.verdict)
    return f"{pair.interval.ratio:.3f} ({pair.interval.low:.3f} .. {pair.interval.high:.3f})"


def judged(kernel: KernelTiming, pair: PairTiming | None, target: float | None) -> str:
    """What there is to say of a kernel: its fault, or whether the target was met beside it."""
    fault = "" if kernel.outcome is Outcome.PASS else f"{kernel.outcome}: {kernel.reason}"
    if target is None or pair is None or pair.interval is None:
        return fault
    verdict = "met" if pair.interval.ratio >= target else "missed"
    return f"{verdict}; {fault}" if fault else verdict


def failed(timings: Iterable[Timed], first: str) -> list[str]:
    """A line for each target that was missed or not looked at, and for a first kernel that failed."""
    found = []
    for shape, timing in timings:
        one = timing.kernel(first)
        if one is None or not one.timed or one.outcome is not Outcome.PASS:
            found.append(f"{shape.where}: {first}: {'not there' if one is None else one.outcome}")
            continue
        pair = next((pair for pair in timing.pairs if pair.other == PEER), None)
        if shape.target is None or first == PEER or timing.kernel(PEER) is None:
            continue
        if pair is None or pair.interval is None:
            found.append(f"{shape.where}: {PEER} has no time to hold it to")
        elif pair.interval.ratio < shape.target:
            found.append(f"{shape.where}: {pair.interval.ratio:.3f} x {PEER}, not {shape.target:.2f}")
    return found


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    texts = [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in (head, *lines)]
    return "\n".join([texts[0], f"|{'---|' * len(head)}", *texts[1:]])


def page(kept: Mapping[str, Sequence[Timed]], op: str = Shape.op) -> str:
    """README.md of the folder."""
    parts = [
        f"# {op}: times",
        f"Made by `python scripts/benchmarks/bench_{op}.py`; every sample is in"
        " [timings.json](timings.json), what was tried and expected in"
        f" [docs/{op}.md](../../docs/{op}.md), how times are taken in"
        " [docs/timing.md](../../docs/timing.md). Launches are cold; us are medians of rounds; a speed-up is"
        " a kernel's time over that of the first one in its rows, with its 99 % interval; the ceiling is the"
        " best way to read half and write half of the same bytes, measured in the same session. CUDA events"
        " around a graph of many launches time kernels and ceiling alike. A kernel of others whose outputs"
        " fail the comparison is timed all the same, and its row says so; ours would not be.",
    ]
    for name, timings in kept.items():
        parts += [f"## {name}", *about(timings), markdown(HEAD, table(timings))]
    return "\n\n".join(parts) + "\n"


def about(timings: Sequence[Timed]) -> Iterator[str]:
    """The machine, and what is to be kept in mind of a table's times."""
    for machine in dict.fromkeys(json.dumps(asdict(timing.machine)) for _, timing in timings):
        found = json.loads(machine)
        packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
        driver = f", driver {found['driver']}, CUDA {found['cuda']}" if found["driver"] else ""
        yield f"{found['device']}{driver}, Python {found['python']}, {found['os']}. {packages}."
    seen = [timing.conditions for _, timing in timings if timing.conditions is not None]
    clocks = [end.clock for one in seen for end in (one.lowest, one.highest) if end.clock is not None]
    if clocks:
        yield f"SM clock {min(clocks)} to {max(clocks)} MHz while timing, as {seen[0].source} says."
    dropped = sum(sum(timing.discarded.values()) for _, timing in timings)
    yield f"{sum(len(timing.blocks) for _, timing in timings)} blocks kept, {dropped} reasons to discard one."
    for holds, what in ((False, "the cache was not cold"), (None, "whether the cache was cold is not known")):
        which = [
            shape.where
            for shape, timing in timings
            if timing.control is not None and timing.control.holds is holds
        ]
        if which:
            yield f"**Note:** {what} for {'; '.join(which)}."
    notes = dict.fromkeys(note for _, timing in timings for note in timing.notes)
    if notes:
        yield "\n".join(f"- {note}" for note in notes)


def load_kept(path: Path, shape: type[Shape] = Shape) -> dict[str, list[Timed]]:
    """Tables of earlier runs, by group."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: [
            (
                shape(**{**one["shape"], "heads": tuple(one["shape"]["heads"])}),
                RecordTiming.from_json(one["timing"], f"{path}: {name}"),
            )
            for one in timings
        ]
        for name, timings in found.items()
    }


def save_kept(
    out: Path,
    kept: Mapping[str, Sequence[Timed]],
    op: str = Shape.op,
    written: Callable[[Mapping[str, Sequence[Timed]], str], str] = page,
) -> None:
    """`written` makes README.md."""
    plain = {
        name: [{"shape": asdict(shape), "timing": timing.to_json()} for shape, timing in timings]
        for name, timings in kept.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "timings.json").write_text(json.dumps(plain, allow_nan=False) + "\n", encoding="utf-8")
    (out / "README.md").write_text(written(kept, op), encoding="utf-8")


def with_plan(plan: Any, op: str = Shape.op) -> LoadedKernel:
    """The compiled kernel, dealt as `plan` says."""
    module = importlib.import_module(f"gdnbench_kernels.{op}.cute")
    entry = operation(op).kernels[COMPILED]
    function: Any = partial(module.cute, plan=plan)
    function.prepare = partial(module.prepare, plan=plan)
    return LoadedKernel(named(plan), named(plan), function, entry.conventions, entry.devices)


def named(plan: Any) -> str:
    """The options of a plan in a line."""
    return " ".join(f"{name}={value}" for name, value in plan.options.items())


def plans_of(shape: Shape) -> Sequence[LoadedKernel]:
    """The compiled kernel in every plan worth measuring, the one that is chosen first."""
    module = importlib.import_module(f"gdnbench_kernels.{shape.op}.decode_plan")
    plans = module.candidate_plans(shape.batch, shape.heads[1], shape.state_dtype, shape.steps)
    return [with_plan(plan, shape.op) for plan in plans]


def sweep(
    shape: Shape, kernels: Sequence[LoadedKernel], on: str, options: TimingOptions
) -> tuple[Comparison, dict[str, str]]:
    """Kernels timed on one shape in this process, and why others could not be, by name. All must leave the
    bits that the first leaves."""
    device, op = device_of(on), operation(shape.op)
    made = shape.call()
    given = {name: tensor.to(device) for name, tensor in made.tensors.items()}
    call = Call(given, made.scalars, {**op.default_conventions, **made.conventions})
    bench = Bench(
        call,
        op,
        device,
        options.mode,
        RotationOptions(most_sets=SWEPT_SETS, seed=options.seed),
        options.clock,
    )
    watch = UnknownWatch("nobody looked, as asked by busy") if not options.strict else watch_of(device)
    subjects, wrong = [], dict[str, str]()
    expected = left_by(kernels[0], call, shape.op)
    for kernel in kernels:
        try:
            found = left_by(kernel, call, shape.op)
            if not all(same_bits(found[name], tensor) for name, tensor in expected.items()):
                wrong[kernel.name] = "other bits than the first plan leaves"
                continue
            subjects.append(bench.subject(kernel))
        except (*CANNOT_RUN_ERRORS, NotImplementedError, RuntimeError, ValueError) as error:
            wrong[kernel.name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    rule = Rule(precision=options.precision, seconds=options.seconds, repeat=False)
    try:
        return compare(subjects, rule, watch), wrong
    except DisturbedError as error:
        return error.partial, {**wrong, "all": str(error)}
    finally:
        watch.close()


def left_by(kernel: LoadedKernel, call: Call, name: str = Shape.op) -> dict[str, Tensor]:
    """o, zeros in rows of padding, and the states that a kernel leaves of a call, where that lies."""
    from gdnbench.replay.call import call_kernel, conversion

    op = operation(name)
    given = op.convert(call, conversion(call, op, kernel).target)
    if "state" in given.tensors:
        given = replace(given, tensors={**given.tensors, "state": given.tensors["state"].clone()})
    return dict(op.convert_outputs(call_kernel(given, op, kernel), given.conventions, call.conventions))


def swept(shape: Shape, found: Comparison, wrong: Mapping[str, str]) -> list[tuple[str, ...]]:
    """A row a plan, the fastest first."""
    pairs = {pair.other: pair for pair in found.pairs}
    order = sorted(range(len(found.summaries)), key=lambda index: found.summaries[index].median)
    lines = [
        (
            shape.where,
            found.names[index] + (" (chosen)" if index == 0 else ""),
            f"{1e6 * found.summaries[index].median:.2f}",
            speed_up(pairs[found.names[index]]) if found.names[index] in pairs else "",
        )
        for index in order
    ]
    return [*lines, *((shape.where, name, "", reason) for name, reason in wrong.items())]


def run_sweep(tables: Mapping[str, Sequence[Shape]], options: argparse.Namespace) -> Exit:
    """Every plan of the compiled kernel; with other `--kernels` than it, these instead."""
    lines, kept = list[tuple[str, ...]](), list[dict[str, Any]]()
    for shape in (shape for shapes in tables.values() for shape in shapes):
        own = options.kernels.split(",")
        kernels = plans_of(shape) if own[0] == COMPILED else [load(name, operation(shape.op)) for name in own]
        found, wrong = sweep(shape, kernels, options.on, timing_options(options))
        lines += swept(shape, found, wrong)
        say(" | ".join(lines[-1]))
        kept.append(
            {
                "shape": asdict(shape),
                "samples": dict(zip(found.names, found.samples, strict=True)),
                "wrong": wrong,
                "notes": found.notes,
            }
        )
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "sweep.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")
        head = ("call", "plan", "us", "time over the chosen plan's")
        (options.out / "sweep.md").write_text(markdown(head, lines) + "\n", encoding="utf-8")
    print((options.out / "sweep.md").read_text(encoding="utf-8"), end="")
    return Exit.MISMATCH if any(one["wrong"] for one in kept) else Exit.PASS


def timing_options(options: argparse.Namespace) -> TimingOptions:
    form = Form.GRAPH if options.on == "cuda" else Form.PLAIN
    return TimingOptions(
        Mode(Cache.COLD, form),
        options.seconds,
        options.precision,
        strict=not options.busy,
        seed=options.seed,
        clock="events" if options.on == "cuda" else "auto",
    )


def parser(shape: type[Shape] = Shape) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=f"Times the kernels of {shape.op} beside one another and makes a folder of results."
    )
    found.add_argument("--out", type=Path, default=RESULTS / shape.op)
    found.add_argument("--on", default="cuda", help="cuda, or cpu for kernels that run there")
    found.add_argument("--kernels", default=f"{COMPILED},{PEER},fla", help="separated by commas")
    found.add_argument("--groups", default="", help="tables, separated by commas; all if left out")
    found.add_argument("--batches", default=",".join(map(str, BATCHES)), help="of fp32 and bf16")
    found.add_argument("--seconds", type=float, default=8.0, help="of a row, at most")
    found.add_argument("--precision", type=float, default=0.01, help="of every ratio, as a part of 1")
    found.add_argument("--busy", action="store_true", help="keep blocks that something disturbed")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--sweep", action="store_true", help="the plans of the compiled kernel instead")
    found.add_argument("--tiny", action="store_true", help="a few small shapes, to try the script out")
    return found


def chosen(options: argparse.Namespace, shape: type[Shape] = Shape) -> dict[str, list[Shape]]:
    """The tables that are asked for."""
    try:
        batches = [int(text) for text in options.batches.split(",")]
    except ValueError:
        raise BadInputError(
            f"--batches {options.batches!r} are no numbers; write them like 1,16,64"
        ) from None
    found = groups(batches, options.tiny, shape)
    names = options.groups.split(",") if options.groups else list(found)
    for name in names:
        if name not in found:
            raise BadInputError(f"--groups has no {name!r}; there are {', '.join(found)}")
    return {name: found[name] for name in names}


def main(kind: type[Shape] = Shape) -> Exit:
    options = parser(kind).parse_args()
    try:
        device_of(options.on)
        tables = chosen(options, kind)
        if options.sweep:
            return run_sweep(tables, options)
        kernels, kept, new = (
            options.kernels.split(","),
            load_kept(options.out / "timings.json", kind),
            list[Timed](),
        )
        of = [(name, shape) for name, shapes in tables.items() for shape in shapes]

        def found(shape: Shape, timing: RecordTiming) -> None:
            name = of[len(new)][0]
            new.append((shape, timing))
            kept[name] = [one for (group, _), one in zip(of, new, strict=False) if group == name]
            save_kept(options.out, kept, kind.op)  # what was measured stays, whatever comes

        timed([shape for _, shape in of], kernels, options.on, timing_options(options), found)
        for name in tables:
            print(f"{name}\n{markdown(HEAD, table(kept[name]))}", flush=True)
    except (*CANNOT_RUN_ERRORS, RoundError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.CANNOT_RUN
    except (*BAD_INPUT_ERRORS, NotImplementedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    missed = failed(new, kernels[0])
    asked = sum(shape.target is not None and timing.kernel(PEER) is not None for shape, timing in new)
    print("\n".join([*missed, f"{len(new)} calls, {asked} with a target, {len(missed)} failed"]))
    return Exit.MISMATCH if missed else Exit.PASS


if __name__ == "__main__":
    sys.exit(main())
