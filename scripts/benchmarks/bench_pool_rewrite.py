#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""What memory gives a decode kernel: its state's bytes rewritten in place, beside the decode kernels.

    python scripts/benchmarks/bench_pool_rewrite.py                          fp32 and bf16 at 16, 64, 256
    python scripts/benchmarks/bench_pool_rewrite.py --groups fp32 --batches 64 --seconds 5 --out FILE

All subjects of a call are timed in turn, in the same rounds and on the same buffers: `cute` with its default
plan and with `plans_of` the call, FlashInfer, and rewrites that compute nothing. `slots in order` is a kernel
in the same call where sequence y has slot y. `linear` rewrites the pool
from its first byte to its last and knows no slots (gdnbench_kernels.memory_ceiling). `pool T x V` rewrites
the slots that the call names (gdn_decode/pool_rewrite.py): T threads of V vectors of 16 bytes; `fixed` takes
slot y for sequence y instead of the call's, so that no load waits for another one; `ordered` loads
the slot, and it is y; `pdl` starts early as decode does. Rewrites do not move q, k, v and o, 0.6 % of the
bytes of a decode call with fp32 states and 1.2 % with bf16. Plans must leave the bits of the default plan;
FlashInfer and rewrites are not judged. Exit status: 0, 1 a plan is wrong, 2 bad arguments, 3 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from gdnbench.errors import CANNOT_RUN_ERRORS, BadInputError, Exit
from gdnbench.ops import operation
from gdnbench.poison import same_bits
from gdnbench.replay.execute import device_of
from gdnbench.replay.kernels import LoadedKernel, load
from gdnbench.timing import ceiling
from gdnbench.timing.bench import Bench, preparation
from gdnbench.timing.comparison import DisturbedError, compare
from gdnbench.timing.conditions import UnknownWatch
from gdnbench.timing.rotation import RotationOptions
from gdnbench.timing.statistics import Rule
from gdnbench.timing.types import Cache, Form, Mode
from gdnbench_kernels.compiling import program
from gdnbench_kernels.contract import Call, Launch
from gdnbench_kernels.gdn_decode.decode_plan import (
    H200_SMS,
    LARGE,
    LARGE_BF16,
    MIDDLE,
    MIDDLE_BF16,
    DecodePlan,
)
from gdnbench_kernels.plan import WARP
from gdnbench_kernels.source import Source
from scripts.benchmarks.bench_gdn_decode import COMPILED, PEER, Shape, chosen, left_by, with_plan
from scripts.benchmarks.bench_gdn_decode import parser as decode_parser

SETS = 128
"""Buffer sets of a placement."""
KEY = 0x5A5A5A5A
REWRITES = (
    (256, 1, True, True),
    (256, 1, False, True),
)
"""threads, vectors, lookup, pdl."""
ORDERED = ((256, 1),)
"""threads, vectors of rewrites that load their slots, which are in order."""


def plans_of(shape: Shape) -> Iterator[DecodePlan]:
    """Plans beside the default one."""
    wide = shape.state_dtype == "float32"
    if shape.batch < 64:
        if wide:
            yield replace(MIDDLE, warps=4, passes=2)
            yield replace(MIDDLE, resident=6)
            yield replace(MIDDLE, ranked=1, started=4 * H200_SMS)
        else:
            yield replace(MIDDLE_BF16, rows=2, warps=4, passes=4)
            yield replace(MIDDLE_BF16, warps=8, passes=1)
            yield replace(MIDDLE_BF16, transport="bulk_in")
        return
    ranked = 1 << (-(-shape.batch // WARP) - 1).bit_length()
    large, by_slot, at_once = (LARGE, MIDDLE, 4) if wide else (LARGE_BF16, LARGE_BF16, 16)
    yield large
    for quarter in range(4):
        yield replace(by_slot, ranked=ranked, started=quarter * at_once * H200_SMS // 4)


def rewrite_pool(
    dtype: str,
    threads: int,
    vectors: int,
    lookup: bool,
    pdl: bool,
    *,
    state: Tensor,
    state_indices: Tensor,
    **_: Any,
) -> Launch:
    """A launch of pool_rewrite."""
    source = Source.create(
        "gdn_decode.pool_rewrite",
        "gdnbench_kernels.gdn_decode.pool_rewrite:build",
        state_dtype=dtype,
        threads=threads,
        vectors=vectors,
        lookup=lookup,
        pdl=pdl,
    )
    made = program(source, ceiling.arch_of(state.device))
    made(state, state_indices, 0)  # loads the program, which a graph cannot capture
    return made.prepared(state, state_indices, KEY)


def rewrite_all(count: int, *, state: Tensor, **_: Any) -> Launch:
    """A launch that rewrites the first `count` slots of a pool, from the first byte to the last."""
    words = state[:count].view(torch.int32).view(-1)
    made = program(ceiling.source_of(256, 1, False), ceiling.arch_of(state.device))
    tiles = -(-words.numel() * 4 // (256 * 16))
    made(words, words, 0, tiles)
    return made.prepared(words, words, KEY, tiles)


def rewrite_ordered(
    dtype: str, threads: int, vectors: int, *, state: Tensor, state_indices: Tensor, **_: Any
) -> Launch:
    """A launch of pool_rewrite that loads slot y for sequence y."""
    order = torch.arange(len(state_indices), dtype=torch.int32, device=state.device).unsqueeze(1)
    return rewrite_pool(dtype, threads, vectors, True, True, state=state, state_indices=order)


def in_order(name: str) -> LoadedKernel:
    """A kernel of the operation in a call whose slots are in order: sequence y has slot y."""
    op = operation(Shape.op)
    found = preparation(load(name, op), op)
    assert found is not None, f"{name} has no prepare"
    taken = signature(found).parameters

    def prepare(*, state_indices: Tensor, **given: Any) -> Launch:
        count, device = len(state_indices), state_indices.device
        order = torch.arange(count, dtype=torch.int32, device=device).view_as(state_indices)
        return found(state_indices=order, **{one: given[one] for one in given if one in taken})

    return subject_of(f"{name}, slots in order", prepare)


def subject_of(name: str, prepare: Any) -> LoadedKernel:
    """A rewrite in the place of a kernel, with the conventions of the compiled one."""
    entry = operation(Shape.op).kernels[COMPILED]

    def function(**given: Any) -> None:
        prepare(**given)()

    function.prepare = prepare  # type: ignore[attr-defined]
    return LoadedKernel(name, name, function, entry.conventions, entry.devices)


def rewrites(shape: Shape) -> Iterator[LoadedKernel]:
    yield subject_of("linear 256 x 1", partial(rewrite_all, shape.batch))
    for threads, vectors in ORDERED:
        prepare = partial(rewrite_ordered, shape.state_dtype, threads, vectors)
        yield subject_of(f"pool {threads} x {vectors} ordered pdl", prepare)
    for threads, vectors, lookup, pdl in REWRITES:
        name = f"pool {threads} x {vectors}{'' if lookup else ' fixed'}{' pdl' if pdl else ''}"
        yield subject_of(name, partial(rewrite_pool, shape.state_dtype, threads, vectors, lookup, pdl))


def kernels_of(shape: Shape, limits: bool) -> tuple[list[LoadedKernel], list[LoadedKernel]]:
    """(plans, the default one first; others, which are not held to its bits)."""
    op = operation(shape.op)
    plans = [load(COMPILED, op), *(with_plan(plan) for plan in plans_of(shape))]
    others = [load(PEER, op)]
    if limits:
        others += [in_order(COMPILED), in_order(PEER), *rewrites(shape)]
    return plans, others


def measured(shape: Shape, on: str, seconds: float, precision: float, limits: bool) -> dict[str, Any]:
    """Microseconds of each subject: median and quartiles over its rounds."""
    device, op = device_of(on), operation(shape.op)
    made = shape.call()
    call = Call(
        {name: tensor.to(device) for name, tensor in made.tensors.items()},
        made.scalars,
        {**op.default_conventions, **made.conventions},
    )
    bench = Bench(call, op, device, Mode(Cache.COLD, Form.GRAPH), RotationOptions(most_sets=SETS), "events")
    plans, others = kernels_of(shape, limits)
    expected = left_by(plans[0], call)
    subjects, wrong = [], dict[str, str]()
    for kernel in (*plans, *others):
        try:
            if kernel in plans and not all(
                same_bits(left_by(kernel, call)[x], y) for x, y in expected.items()
            ):
                wrong[kernel.name] = "other bits than the default plan leaves"
                continue
            subjects.append(bench.subject(kernel))
        except (*CANNOT_RUN_ERRORS, NotImplementedError, RuntimeError, ValueError, ImportError) as error:
            wrong[kernel.name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    try:
        found = compare(
            subjects, Rule(precision=precision, seconds=seconds, repeat=False), UnknownWatch("not asked")
        )
    except DisturbedError as error:
        found = error.partial
    state = call.tensors["state"]
    slots = 2 * shape.batch * state[0].numel() * state.element_size()
    times = {}
    for name, samples in zip(found.names, found.samples, strict=True):
        low, middle, high = (1e6 * x for x in statistics.quantiles(samples, n=4))
        times[name] = {"median": middle, "lower": low, "upper": high, "rounds": len(samples)}
    return {
        "shape": asdict(shape),
        "state_bytes": slots,
        "bytes": bench.launch_bytes,
        "us": times,
        "wrong": wrong,
    }


def lines(one: Mapping[str, Any]) -> Iterator[str]:
    """A line for each subject, the fastest first: us, TB/s of the state's bytes, its time over cute's."""
    base = one["us"].get(COMPILED, {}).get("median")
    for name, found in sorted(one["us"].items(), key=lambda item: item[1]["median"]):
        rate = one["state_bytes"] / found["median"] / 1e6
        part = "" if base is None else f"{found['median'] / base:.4f}"
        spread = f"{found['lower']:.2f} .. {found['upper']:.2f}"
        yield f"{found['median']:9.2f} us  {spread:>18}  {rate:.3f} TB/s  {part:>7}  {name}"
    for name, reason in one["wrong"].items():
        yield f"{'':9}     {name}: {reason}"


def main() -> Exit:
    parser = argparse.ArgumentParser(description="Times rewrites of a pool beside decode kernels.")
    parser.add_argument("--out", type=Path, help="JSON, written after every call")
    parser.add_argument("--groups", default="fp32,bf16")
    parser.add_argument("--batches", default="16,64,256")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a call, at most")
    parser.add_argument(
        "--no-limits",
        dest="limits",
        action="store_false",
        help="leave out rewrites and kernels whose slots are in order",
    )
    parser.add_argument("--precision", type=float, default=0.002)
    given = parser.parse_args()
    options = decode_parser().parse_args(["--groups", given.groups, "--batches", given.batches])
    kept = []
    try:
        for shape in (shape for row in zip(*chosen(options).values(), strict=True) for shape in row):
            begin = time.monotonic()
            kept.append(measured(shape, "cuda", given.seconds, given.precision, given.limits))
            took = time.monotonic() - begin
            print(f"{shape.where}: {named_device()}, {took:.1f} s", *lines(kept[-1]), sep="\n", flush=True)
            if given.out:
                given.out.write_text(
                    json.dumps({"device": named_device(), "calls": kept}) + "\n", encoding="utf-8"
                )
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    except CANNOT_RUN_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.CANNOT_RUN
    return (
        Exit.MISMATCH
        if any("other bits" in text for one in kept for text in one["wrong"].values())
        else Exit.PASS
    )


def named_device() -> str:
    return torch.cuda.get_device_name()


if __name__ == "__main__":
    sys.exit(main())
