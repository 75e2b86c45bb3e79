# SPDX-License-Identifier: Apache-2.0
"""Judges the mutants of one kernel, in this process and its children."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from gdnbench import sim
from gdnbench.sim import ENGINES
from gdnbench.sim.mutants import Judge, Judgement, Keeper, KeptLaunch, Mutant, Outcome, mutants
from tests.sim.mutation.subjects import SUBJECTS
from tests.sim.mutation.verdicts import Result, read, source_of, write


@dataclass(frozen=True, slots=True)
class Asked:
    """How mutants are judged: `sample` of each kernel, None for all, drawn by `seed`; `seconds` for one;
    `again` those that survived or were not reached before too."""

    engine: str = "interpreter"
    processes: int = 2
    seconds: float = 300.0
    sample: int | None = None
    seed: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Work:
    """The judges of a kernel's launches and the mutants left, for the processes that are forked."""

    judges: Sequence[Judge]
    mutants: Sequence[Mutant]


_work: _Work | None = None
_FILE = re.compile(r'(\.file\s+\d+\s+")[^"]*/')  # with the folder of a source file


def _judge(index: int) -> tuple[Judgement, float]:
    assert _work is not None
    start = time.process_time()
    judgement = Judgement(Outcome.UNREACHED)
    for judge in _work.judges:
        one = judge.judge(_work.mutants[index])
        if one.outcome is not Outcome.UNREACHED:
            judgement = one
        if one.outcome not in (Outcome.UNREACHED, Outcome.SURVIVOR):
            break
    return judgement, time.process_time() - start


def _begin(folder: str) -> None:
    """In a child: the code of mutants is compiled once, and nobody's cache is to keep it. What the parent has
    made stays, and need not be looked through for what is garbage. The compiled tensor core gives the bits of
    the interpreter's in less time."""
    os.environ["GDNBENCH_CACHE_DIR"] = folder
    gc.freeze()
    ENGINES["interpreter"] = replace(ENGINES["interpreter"], multiply=ENGINES["compiled"].multiply)


def launches(name: str, call: Callable[[], None] | None = None) -> dict[str, KeptLaunch]:
    """By name, the first launch of each kernel that the subject runs, or that `call` does."""
    return {kernel: kept[0] for kernel, kept in all_launches(name, call).items()}


def all_launches(name: str, call: Callable[[], None] | None = None) -> dict[str, list[KeptLaunch]]:
    """The same, but for all launches of a kernel that differ in their sizes."""
    keeper = Keeper(SUBJECTS[name].sms)
    with sim.active(sim.Settings(before=keeper)):
        (call or SUBJECTS[name].call)()
    kernels: dict[tuple[str, str], dict[str, KeptLaunch]] = {}
    for launch in keeper.launches:
        same = kernels.setdefault((launch.module.text, launch.request.entry), {})
        same.setdefault(_sizes(launch), launch)
    names = [name] if len(kernels) == 1 else [f"{name}/{number}" for number in range(len(kernels))]
    return {kernel: [*same.values()] for kernel, same in zip(names, kernels.values(), strict=True)}


def digest(kept: Sequence[KeptLaunch]) -> str:
    """Of a kernel's text and its launches' sizes: the same in every process and every checkout."""
    text = _FILE.sub(r"\1", kept[0].module.text)
    return hashlib.blake2b(" ".join((*map(_sizes, kept), text)).encode(), digest_size=8).hexdigest()


def _sizes(launch: KeptLaunch) -> str:
    # Kept tensors are in the order of their addresses, which differ from process to process.
    request, tensors = launch.request, sorted(len(tensor.before) for tensor in launch.tensors)
    return f"{request.grid} {request.block} {request.shared_bytes} {tensors}"


def judge_all(name: str, path: Path, asked: Asked) -> None:
    """Append what becomes of the mutants of `name` to the results at `path`, but of those that are there."""
    left = (Outcome.SURVIVOR, Outcome.UNDECIDED, Outcome.UNREACHED) if asked.again else ()
    done = {result.key for result in read(path) if result.outcome not in left}
    for kernel, kept in all_launches(name).items():
        _judge_kernel(kernel, kept, path, asked, done)


def _numbers(chosen: Sequence[Mutant]) -> dict[int, int]:
    """By pc, which of its Python line and opcode the changed instruction is, from 1."""
    count: Counter[tuple[str, str]] = Counter()
    found: dict[int, int] = {}
    for mutant in chosen:
        if mutant.pc not in found:
            same = (source_of(mutant), mutant.op)
            count[same] += 1
            found[mutant.pc] = count[same]
    return found


def _judge_kernel(
    kernel: str, kept: Sequence[KeptLaunch], path: Path, asked: Asked, done: set[tuple[object, ...]]
) -> None:
    global _work
    module = kept[0].module
    ptx = digest(kept)
    chosen = list(mutants(module, kept[0].request.entry))
    numbers = _numbers(chosen)
    if asked.sample is not None and asked.sample < len(chosen):
        drawn = random.Random(f"{asked.seed} {kernel}").sample(range(len(chosen)), asked.sample)
        chosen = [chosen[index] for index in sorted(drawn)]
    results = [Result.of(kernel, ptx, asked.engine, mutant, numbers[mutant.pc]) for mutant in chosen]
    left = [index for index, result in enumerate(results) if result.key not in done]
    if not left:
        return
    start = time.monotonic()
    judges = [Judge(launch, asked.engine, seconds=asked.seconds) for launch in kept]
    own = time.monotonic() - start
    print(f"{kernel}: {len(left)} mutants, {own:.1f} s for the kernel itself", file=sys.stderr, flush=True)
    _work = _Work(judges, [chosen[index] for index in left])
    # Tensors lie where the parameters say only in children that are forked.
    context = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="gdnbench-mutants-") as folder,
        ProcessPoolExecutor(asked.processes, context, _begin, (folder,)) as pool,
    ):
        for index, (judgement, seconds) in zip(left, pool.map(_judge, range(len(left))), strict=True):
            result = replace(
                results[index],
                outcome=judgement.outcome.value,
                why=judgement.why,
                schedule=judgement.schedule,
                seconds=round(seconds, 2),
            )
            write(path, result)
            if judgement.outcome in (Outcome.SURVIVOR, Outcome.UNDECIDED):
                print(f"{judgement.outcome.value}: {result}", file=sys.stderr, flush=True)
    _work = None
