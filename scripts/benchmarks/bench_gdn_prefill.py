#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Times the prefill kernels of gated delta nets beside one another and makes a folder of results.

    python scripts/benchmarks/bench_gdn_prefill.py                       all 15 rows, some 10 minutes on a GPU
    python scripts/benchmarks/bench_gdn_prefill.py --kernels flashinfer,fla --heads 2/8 --rows 1x8192
    python scripts/benchmarks/bench_gdn_prefill.py --gates               errors where gates decay slowly
    python scripts/benchmarks/bench_gdn_prefill.py --sweep --heads 2/8   plans of the kernel for Hopper
    python scripts/benchmarks/bench_gdn_prefill.py --tiny --on cpu --kernels torch,hf

A row is sequences x tokens of each; a table has the rows of one pair of head counts. The folder (`--out`,
results/gdn_prefill) gets README.md, the tables; timings.json, every sample and what was seen of the machine
meanwhile; with `--gates` gates.md and gates.json, with `--sweep` sweep.md instead. What a table has is
replaced when it is timed again, the rest stays.

Calls are made (`gdnbench synth`): 2048 drawn tokens, repeated; no initial state, a final one in fp32.
Launches are cold, in CUDA graphs, between CUDA events: every launch of a round has buffers of its own, and
more than 512 MB pass through the cache before they are used again. Outputs are held to fp64 on the device:
their RMS error is at most twice that of `torch`, the same roundings in torch. A peer's that exceed it are
timed all the same, and the table says so. The first of `--kernels` is what the others are beside.

`--gates` draws gates whose sum over 64 tokens is expected to be each of GATE_SPANS, the same for all heads.
Values of every ninth chunk are 256 times the others': what a kernel drops of the state shows in the chunk of
o where its error, beside torch's there, is the largest. FlashQLA has a folder of its own, first on PYTHONPATH
(docs/peers.md). Exit status: 0 all as fast as they should be, 1 one is not, or is wrong, 2 bad arguments, 3
cannot run here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from gdnbench.errors import BAD_INPUT_ERRORS, CANNOT_RUN_ERRORS, BadInputError, Exit
from gdnbench.judge.rule import Bound
from gdnbench.ops import operation
from gdnbench.replay.execute import device_of
from gdnbench.replay.failure import Failure, classify, describe
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.report.outcome import Outcome
from gdnbench.synth import synthesise
from gdnbench.timing.bench import Bench, BenchSubject
from gdnbench.timing.comparison import Comparison, DisturbedError, RoundError, compare
from gdnbench.timing.conditions import UnknownWatch, watch_of
from gdnbench.timing.cuda_clocks import resolved
from gdnbench.timing.machine import machine
from gdnbench.timing.options import TimingOptions
from gdnbench.timing.result import KernelTiming, Rates, RecordTiming
from gdnbench.timing.rotation import RotationOptions
from gdnbench.timing.statistics import MIN_PLACEMENTS, Rule
from gdnbench_kernels.contract import Call
from gdnbench_kernels.gdn_prefill.sm90_cuts import alternatives, plan_of
from gdnbench_kernels.gpu import H200_SMS, SM90, multiprocessors
from gdnbench_kernels.run import run_kernel
from scripts.benchmarks import bench_gdn_decode as decode

OP = "gdn_prefill"
OURS = "sm90"
PEERS = (*decode.PEERS, "flashqla")
PLANNED = "plans"
"""A name among `--kernels`: the kernel for Hopper in several plans."""
STATES = "float32"
KERNELS = (OURS, decode.PEER, "fla")
ROWS = ((1, 2048), (1, 8192), (1, 32768), (8, 2048), (4, 2048))
HEADS = ((16, 32), (16, 64), (2, 8))
DRAWN = 2048
"""Tokens that are drawn; longer calls repeat them, because no kernel's time depends on values."""
SETS = 16
"""Of buffers of a placement, at most."""
PLANS = 8
"""Of a row of a sweep."""
BOUND = Bound().k
"""Times the error of torch's kernel."""
GATE_SPANS = (0.1, 1.0, 1.5, 2.0, 5.0, 20.0)
"""FlashQLA drops the state before a part of a sequence if the gates of the part decay by exp(-10). At 1x8192
with 8 value heads a part has 8 chunks: from spans of 1.25 on."""
GATE_ROWS, GATE_HEADS = ((1, 8192),), (2, 8)
LOUD_EVERY, LOUD = 9, 256.0
"""Of LOUD_EVERY chunks one has values LOUD times as large. LOUD_EVERY has no factor in common with the chunks
of a part: some part begins to count just behind a loud chunk."""
CHUNK = 64


@dataclass(frozen=True, slots=True)
class Shape(decode.Shape):
    """A call: `batch` sequences of `steps` tokens, with final states of `state_dtype`."""

    op: ClassVar[str] = OP

    @property
    def target(self) -> float:
        """The least that FlashInfer's time over ours should be."""
        return 1.0

    @property
    def group(self) -> str:
        return f"{self.heads[0]}/{self.heads[1]}"

    @property
    def where(self) -> str:
        return f"{self.group}, {self.batch}x{self.steps}"

    def call_on(self, device: torch.device, seed: int) -> Call:
        """Its call, the tensors on `device`."""
        drawn = min(DRAWN, self.steps)
        made = synthesise(OP, seqlens=(drawn,), heads=self.heads, seed=seed)
        repeats = -(-self.batch * self.steps // drawn)
        tensors = {}
        for name, tensor in made.tensors.items():
            if name == "cu_seqlens":
                tensors[name] = torch.arange(self.batch + 1, dtype=tensor.dtype, device=device) * self.steps
                continue
            there = tensor.to(device)
            repeated = there.repeat(repeats, *[1] * (tensor.dim() - 1))
            tensors[name] = repeated[: self.batch * self.steps]
        return Call(tensors, made.scalars, {**operation(OP).default_conventions, **made.conventions})


def gate_call(shape: Shape, span: float, device: torch.device, seed: int) -> Call:
    """A call of independent tokens with loud chunks and the same gate span for all heads."""
    made = synthesise(OP, seqlens=(shape.steps,) * shape.batch, heads=shape.heads, gate_span=span, seed=seed)
    tensors = {name: tensor.to(device) for name, tensor in made.tensors.items()}
    loud = torch.arange(len(made.tensors["v"]), device=device) // CHUNK % LOUD_EVERY == 0
    tensors["v"] = torch.where(loud[:, None, None], LOUD * tensors["v"], tensors["v"])
    return Call(tensors, made.scalars, {**operation(OP).default_conventions, **made.conventions})


@dataclass(frozen=True, slots=True)
class Errors:
    """RMS errors of outputs against fp64, as parts of the outputs' RMS, by output. `worst` is the largest
    error of a chunk and head of o, as a multiple of torch's there."""

    own: Mapping[str, float]
    torch: Mapping[str, float]
    worst: float

    @property
    def ratios(self) -> dict[str, float]:
        """Of torch's error."""
        return {name: error / self.torch[name] for name, error in self.own.items()}

    @property
    def fault(self) -> str:
        """Why they fail, or nothing."""
        bad = [f"{name} {ratio:.2f} x torch's" for name, ratio in self.ratios.items() if not ratio <= BOUND]
        return f"error of {', '.join(bad)}, at most {BOUND:g} x" if bad else ""


class Reference:
    """What fp64 leaves of a call, on the call's device; and the errors of the same roundings in torch."""

    def __init__(self, call: Call) -> None:
        self._call = call
        op = operation(OP)
        with torch.no_grad():
            self._exact = run_kernel(op, "reference_staged", call)
            rounded = run_kernel(op, "torch", call)
            self._torch, self._of_chunks = self._relative(rounded), self._chunks(rounded)

    def errors(self, left: Mapping[str, Tensor]) -> Errors:
        worst = float((self._chunks(left) / self._of_chunks).max())
        return Errors(self._relative(left), self._torch, worst)

    def _chunks(self, left: Mapping[str, Tensor]) -> Tensor:
        """Squared errors [chunks, Hv] of 64 tokens of o each, of the call's first whole chunks."""
        squares = (left["o"].double() - self._exact["o"]).square().sum(-1)
        whole = len(squares) // CHUNK * CHUNK
        return squares[:whole].unflatten(0, (-1, CHUNK)).sum(1).sqrt()

    def _relative(self, left: Mapping[str, Tensor]) -> dict[str, float]:
        return {
            name: float((left[name].double() - exact).norm() / exact.norm())
            for name, exact in self._exact.items()
        }


def judged(call: Call, kernels: Sequence[LoadedKernel]) -> dict[str, Errors | Failure]:
    """Errors of each kernel, or why it has no outputs."""
    exact, found = Reference(call), dict[str, Errors | Failure]()
    for kernel in kernels:
        begin = time.monotonic()
        try:
            found[kernel.name] = exact.errors(decode.left_by(kernel, call, OP))
        except Exception as error:
            found[kernel.name] = failure(error)
        decode.say(f"  {kernel.name} compiled and called in {time.monotonic() - begin:.1f} s")
    return found


def failure(error: Exception) -> Failure:
    return Failure(classify(error), describe(error))


def loaded(names: Sequence[str]) -> tuple[list[LoadedKernel], dict[str, Failure]]:
    """Kernels, and why others cannot be loaded. BadInputError for a name that there is not."""
    kernels, lacking = [], {}
    for name in names:
        try:
            kernels.append(load(name, operation(OP)))
        except ImportError as error:
            lacking[name] = failure(error)
    return kernels, lacking


def candidates(shape: Shape, options: argparse.Namespace) -> list[LoadedKernel]:
    """The kernel for Hopper in several plans, the one that it takes first."""
    from gdnbench_kernels.gdn_prefill.sm90_cp import sm90_of

    sms = multiprocessors(device_of(options.on), SM90)
    few = alternatives(shape.batch * shape.steps, shape.batch, shape.heads[1], sms)[:PLANS]
    entry, found = operation(OP).kernels["sm90_fused"], []
    for plan in few:
        function: Any = partial(sm90_of, plan=plan)
        found.append(LoadedKernel(plan.label, plan.label, function, entry.conventions, entry.devices))
    return found


def timed(
    shape: Shape,
    kernels: Sequence[LoadedKernel],
    lacking: Mapping[str, Failure],
    options: argparse.Namespace,
) -> RecordTiming:
    """Kernels judged and timed on one shape, in this process. `lacking`: why others are not there."""
    device, op, given = device_of(options.on), operation(OP), timing_options(options)
    call = shape.call_on(device, options.seed)
    seen = {} if options.unjudged else judged(call, kernels)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    placements = options.placements or MIN_PLACEMENTS
    rotation = RotationOptions(placements=placements, most_sets=SETS, seed=options.seed)
    bench = Bench(call, op, device, given.mode, rotation, given.clock)
    subjects, unfit = ready(bench, kernels, seen)
    failed = tuple(KernelTiming(name, one.outcome, one.reason) for name, one in {**unfit, **lacking}.items())
    timing = RecordTiming(
        shape.where,
        0,
        shape.where,
        OP,
        given.mode,
        machine(device),
        failed,
        clock=resolved(device, given.clock),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    if not subjects:
        return timing
    control, found = bench.control(), measured(subjects, given, device)
    notes = [*bench.notes, f"timed by {bench.method}", *found.notes]
    notes += [f"{shape.where}: {name}: {error_text(one)}" for name, one in seen.items()]
    if options.profile and device.type == "cuda":
        there = [one for one in kernels if one.name not in unfit]
        notes += [f"{shape.where}: {one.name} starts {started(call, one)}" for one in there]
    return replace(
        timing,
        kernels=(*rows_of(found, seen, call), *failed),
        pairs=found.pairs,
        blocks=found.blocks,
        placements=found.placements,
        end=found.end,
        seconds=found.seconds,
        discarded=found.discarded,
        disturbed=found.disturbed,
        conditions=found.conditions,
        control=control,
        notes=tuple(notes),
    )


def ready(
    bench: Bench, kernels: Sequence[LoadedKernel], seen: Mapping[str, Errors | Failure]
) -> tuple[list[BenchSubject], dict[str, Failure]]:
    """What can be timed, and why other kernels cannot. Ours is not timed where its outputs fail."""
    subjects, unfit = list[BenchSubject](), dict[str, Failure]()
    for kernel in kernels:
        known = seen.get(kernel.name)
        if isinstance(known, Failure):
            unfit[kernel.name] = known
        elif known is not None and known.fault and kernel.name not in PEERS:
            unfit[kernel.name] = Failure(Outcome.MISMATCH, known.fault)
        else:
            try:
                subjects.append(bench.subject(kernel))
            except Exception as error:
                unfit[kernel.name] = failure(error)
    return subjects, unfit


def rows_of(found: Comparison, seen: Mapping[str, Errors | Failure], call: Call) -> list[KernelTiming]:
    op = operation(OP)
    work = op.work(call) if op.work is not None else None
    rows = []
    for index, name in enumerate(found.names):
        summary, known = found.summaries[index], seen.get(name)
        fault = known.fault if isinstance(known, Errors) else ""
        rows.append(
            KernelTiming(
                name,
                Outcome.MISMATCH if fault else Outcome.PASS,
                fault,
                found.samples[index],
                summary,
                found.launches[index],
                None if work is None else Rates.of_kernel(work.bytes, work.flop, summary.median, None),
                interval=found.intervals[index],
            )
        )
    return rows


def measured(subjects: Sequence[BenchSubject], options: TimingOptions, device: torch.device) -> Comparison:
    """Blocks that something disturbs count from the third in a row on; the result says how many."""
    rule = Rule(
        precision=options.precision,
        seconds=options.seconds,
        repeat=False,
        discards=3,
        keep_disturbed=True,
    )
    watch = watch_of(device) if options.strict else UnknownWatch("nobody looked, as asked by busy")
    try:
        return compare(subjects, rule, watch)
    except DisturbedError as error:
        if not error.partial.blocks:
            raise
        return error.partial
    finally:
        watch.close()


def started(call: Call, kernel: LoadedKernel) -> str:
    """The GPU's kernels of one call, with us of each, as torch's profiler sees them: warm, and outside a
    graph."""
    from torch.profiler import ProfilerActivity, profile

    decode.left_by(kernel, call, OP)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        decode.left_by(kernel, call, OP)
    found = [one for one in seen.events() or () if one.device_type.name == "CUDA"]
    return "; ".join(f"{one.name[:60]} {one.device_time:.1f}" for one in found) or "nothing that was seen"


def error_text(errors: Errors | Failure) -> str:
    if isinstance(errors, Failure):
        return errors.reason
    ratios = errors.ratios
    parts = [f"{name} {error:.2e} ({ratios[name]:.2f} x torch's)" for name, error in errors.own.items()]
    return f"relative RMS error of {', '.join(parts)}"


def timing_options(options: argparse.Namespace) -> TimingOptions:
    return decode.timing_options(options)


def page(kept: Mapping[str, Sequence[decode.Timed]], op: str = OP) -> str:
    """README.md of the folder."""
    parts = [
        f"# {op}: times",
        "Made by `python scripts/benchmarks/bench_gdn_prefill.py`; every sample is in"
        " [timings.json](timings.json), how times are taken in [docs/timing.md](../../docs/timing.md)."
        " Launches are cold: each has buffers of its own, and more than 512 MB pass through L2 before they"
        " are used again. us are medians of rounds; a speed-up is a kernel's time over that of the first"
        " one in its rows, with its 99 % interval; TB/s are the bytes that a call has to move over its"
        " time. Outputs"
        f" are held to fp64 on the GPU, at most {BOUND:g} times the error of the same roundings in torch.",
    ]
    lines = [line for timings in kept.values() for one in timings for line in summary(*one)]
    if lines:
        parts += ["## Beside FlashInfer", decode.markdown(SUMMARY, lines)]
    for name, timings in kept.items():
        parts += [f"## {name}", *decode.about(timings), decode.markdown(decode.HEAD, decode.table(timings))]
    return "\n\n".join(parts) + "\n"


def run_timings(options: argparse.Namespace) -> Exit:
    shapes, names = chosen(options), options.kernels.split(",")
    kept, new = decode.load_kept(options.out / "timings.json", Shape), list[decode.Timed]()
    kernels, lacking = loaded([name for name in names if name != PLANNED])
    for shape in shapes:
        planned = candidates(shape, options) if PLANNED in names else []
        new.append((shape, timed(shape, [*planned, *kernels], lacking, options)))
        kept[shape.group] = [one for one in new if one[0].heads == shape.heads]
        decode.save_kept(options.out, kept, OP, page)  # what was measured stays, whatever comes
        say_timing(*new[-1])
    for name in dict.fromkeys(shape.group for shape in shapes):
        print(f"{name}\n{decode.markdown(decode.HEAD, decode.table(kept[name]))}", flush=True)
    print(decode.markdown(SUMMARY, [line for one in new for line in summary(*one)]))
    missed = decode.failed(new, names[0]) if PLANNED not in names else slower(new)
    print("\n".join([*missed, f"{len(new)} calls, {len(missed)} failed"]))
    return Exit.MISMATCH if missed else Exit.PASS


def ours_of(shape: decode.Shape, timing: RecordTiming) -> KernelTiming | None:
    """The time of `sm90`: of that name, or of the plan that it takes on an H200."""
    plan = plan_of(shape.batch * shape.steps, shape.batch, shape.heads[1], H200_SMS)
    found = timing.kernel(OURS) or timing.kernel(plan.label)
    return found if found is not None and found.timed else None


def summary(shape: decode.Shape, timing: RecordTiming) -> list[tuple[str, ...]]:
    """A row of SUMMARY, if both were timed."""
    ours, peer = ours_of(shape, timing), timing.kernel(decode.PEER)
    if ours is None or ours.summary is None or peer is None or peer.summary is None:
        return []
    plan = plan_of(shape.batch * shape.steps, shape.batch, shape.heads[1], H200_SMS)
    timed = [one for one in timing.kernels if one.summary is not None and one.name.startswith(f"{OURS}: ")]
    best = min(timed, key=lambda one: one.summary.median if one.summary else 0.0, default=ours)
    assert best.summary is not None
    us, peer_us = 1e6 * ours.summary.median, 1e6 * peer.summary.median
    what = plan.label.removeprefix(f"{OURS}: ")
    faster = "" if best is ours else f"{best.name.removeprefix(f'{OURS}: ')}: {1e6 * best.summary.median:.1f}"
    ratio = peer_us / us
    verdict = "faster" if ratio > 1 else "**slower**"
    where = (f"{shape.batch}x{shape.steps}", f"{shape.heads[0]}/{shape.heads[1]}")
    return [(*where, f"{us:.1f}", what, f"{peer_us:.1f}", f"{ratio:.2f}", verdict, faster)]


SUMMARY = ("tokens", "H/Hv", "sm90 us", "its plan", "FlashInfer us", "FlashInfer / sm90", "", "fastest plan")


def slower(timings: Sequence[decode.Timed]) -> list[str]:
    """A line for each row that is slower than FlashInfer's, or has no such time."""
    found = []
    for shape, timing in timings:
        lines = summary(shape, timing)
        if not lines or "slower" in lines[0][6]:
            found.append(
                f"{shape.where}: not faster than FlashInfer: {lines[0][5] if lines else 'not timed'}"
            )
    return found


def run_sweep(options: argparse.Namespace) -> Exit:
    """Plans of the kernel for Hopper beside one another."""
    new = list[decode.Timed]()
    options.out.mkdir(parents=True, exist_ok=True)
    for shape in chosen(options):
        new.append((shape, timed(shape, candidates(shape, options), {}, options)))
        say_timing(*new[-1])
        lines = decode.markdown(decode.HEAD, decode.table(new))
        (options.out / "sweep.md").write_text(lines + "\n", encoding="utf-8")
    print((options.out / "sweep.md").read_text(encoding="utf-8"), end="")
    return Exit.MISMATCH if any(not all(k.timed for k in timing.kernels) for _, timing in new) else Exit.PASS


def say_timing(shape: decode.Shape, timing: RecordTiming) -> None:
    for line in decode.rows(shape, timing):
        decode.say(" | ".join(line))
    for note in timing.notes:
        decode.say(f"  {note}")


def run_gates(options: argparse.Namespace) -> Exit:
    """Errors of each kernel by gate span."""
    device, kept, lines = device_of(options.on), list[dict[str, Any]](), list[tuple[str, ...]]()
    kernels, lacking = loaded(options.kernels.split(","))
    options.out.mkdir(parents=True, exist_ok=True)
    head = (
        "call",
        "gate span",
        "kernel",
        "error of o",
        "/ torch's",
        "of final_state",
        "/ torch's",
        "worst chunk",
        "",
    )
    shapes = (
        [Shape(STATES, (1, 2), 1, 256)]
        if options.tiny
        else [Shape(STATES, GATE_HEADS, *row) for row in GATE_ROWS]
    )
    for shape, span in ((shape, span) for shape in shapes for span in GATE_SPANS):
        found = {**judged(gate_call(shape, span, device, options.seed), kernels), **lacking}
        for name, one in found.items():
            row = (shape.where, f"{span:g}", name)
            if isinstance(one, Failure):
                lines.append((*row, "", "", "", "", "", one.reason))
                kept.append({"call": shape.where, "span": span, "kernel": name, "fault": one.reason})
                continue
            of_o, of_state = (
                (f"{one.own[name]:.2e}", f"{one.ratios[name]:.2f}") for name in ("o", "final_state")
            )
            lines.append((*row, *of_o, *of_state, f"{one.worst:.2f}", one.fault))
            kept.append({"call": shape.where, "span": span, "kernel": name, **asdict(one)})
            decode.say(" | ".join(lines[-1]))
        (options.out / "gates.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        (options.out / "gates.md").write_text(decode.markdown(head, lines) + "\n", encoding="utf-8")
    print(decode.markdown(head, lines))
    ours = [one for one in kept if one["kernel"] == options.kernels.split(",")[0]]
    bad = [one for one in ours if "fault" in one or Errors(one["own"], one["torch"], one["worst"]).fault]
    return Exit.MISMATCH if bad else Exit.PASS


def chosen(options: argparse.Namespace) -> list[Shape]:
    """The rows that the options select, table by table."""
    if options.tiny:
        return [Shape(STATES, (1, 2), 1, 128), Shape(STATES, (1, 2), 2, 64)]
    heads, rows = pairs(options.heads, "/", "--heads"), pairs(options.rows, "x", "--rows")
    return [Shape(STATES, pair, *row) for pair in heads for row in rows]


def pairs(text: str, sign: str, option: str) -> list[tuple[int, int]]:
    """Pairs of whole numbers above 0, separated by commas."""
    found = []
    for part in text.split(","):
        one, _, other = part.partition(sign)
        if not (one.isdecimal() and other.isdecimal() and int(one) and int(other)):
            raise BadInputError(f"{option} {part!r} is no pair of numbers; write it like 2{sign}8")
        found.append((int(one), int(other)))
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    found.add_argument("--out", type=Path, default=decode.RESULTS / OP)
    found.add_argument("--on", default="cuda", help="cuda, or cpu for kernels that run there")
    found.add_argument(
        "--kernels", default=",".join(KERNELS), help=f"separated by commas; {PLANNED}: plans of sm90"
    )
    found.add_argument("--heads", default=",".join(f"{h}/{hv}" for h, hv in HEADS), help="H/Hv, a table each")
    found.add_argument("--rows", default=",".join(f"{n}x{t}" for n, t in ROWS), help="sequences x tokens")
    found.add_argument("--seconds", type=float, default=8.0, help="of a row, at most")
    found.add_argument("--precision", type=float, default=0.01, help="of every ratio, as a part of 1")
    found.add_argument("--busy", action="store_true", help="do not look at clocks and other processes")
    found.add_argument("--unjudged", action="store_true", help="times alone, nothing of errors")
    found.add_argument("--placements", type=int, default=0, help="of buffers in memory (default: 6)")
    found.add_argument("--profile", action="store_true", help="name the GPU's kernels of each call too")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--gates", action="store_true", help="errors by gate span instead of times")
    found.add_argument("--sweep", action="store_true", help=f"{PLANS} plans of the kernel for Hopper instead")
    found.add_argument("--tiny", action="store_true", help="two small shapes, to try the script out")
    return found


def main() -> Exit:
    options = parser().parse_args()
    try:
        device_of(options.on)
        run = run_gates if options.gates else run_sweep if options.sweep else run_timings
        return run(options)
    except (*CANNOT_RUN_ERRORS, RoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.CANNOT_RUN
    except (*BAD_INPUT_ERRORS, NotImplementedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
