# SPDX-License-Identifier: Apache-2.0
"""Records run on the simulator under many schedules and with several numbers of SMs, and smaller calls made
of them; see `gdnbench.sim.explore`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gdnbench.errors import Exit
from gdnbench.judge import calls
from gdnbench.judge.record import ORACLE, Judge
from gdnbench.judge.rule import Rule
from gdnbench.judge.valid_rows import keep_valid_rows, wrong_shapes
from gdnbench.ops import operation
from gdnbench.replay import kernels
from gdnbench.replay.execute import Execution, device_of
from gdnbench.replay.failure import Failure
from gdnbench.replay.replay import Replayer
from gdnbench.replay.run import InProcess, Runner
from gdnbench.replay.simulated import SIM, replay_gpu
from gdnbench.replay.subcalls import smaller_record
from gdnbench.report.outcome import Outcome
from gdnbench.sim import Settings, active
from gdnbench.sim.explore import Exploration, Progress, Run, Shape, across_sms, explore
from gdnbench.store.address import Address
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.workers.pickled_call import call_in_process
from gdnbench_kernels.contract import Operation

Command = Callable[[int, int | None, str], str]
"""What a person types to repeat a run: the number of the record, the seed of the smaller call made of it if
it is one, and the schedule."""
CommandOnGpu = Callable[[int, int | None, str, int | None], str]
"""The same with a number of SMs at the end, None for those of the machine. It can be pickled."""


@dataclass(frozen=True, slots=True)
class Exploring:
    """What is explored, as `explore_records` takes it, of the store at `store`."""

    store: Address
    numbers: Sequence[int]
    kernel: str
    schedules: Sequence[str]
    seeds: Sequence[int]
    rule: Rule
    command: CommandOnGpu
    stages: bool = False
    check: bool = False


def explore_gpus(
    explore_one: Callable[[Any, int, Progress], Exploration],
    what: Any,
    sms: Sequence[int],
    progress: Progress | None = None,
) -> Exploration:
    """`explore_one(what, number, progress)`, which keeps outputs, for GPUs of these numbers of SMs, in a
    process each: a kernel may remember the first number that it was told. The outputs must have the same bits
    on all. Ctrl-C ends it with what the processes before have found. Raises as `explore_one`."""
    explored: dict[int, Exploration] = {}
    interrupted = False
    for index, number in enumerate(sms):

        def advance(done: int, total: int, before: int = index) -> None:
            if progress is not None:
                progress(before * total + done, len(sms) * total)

        try:
            explored[number] = call_in_process(
                explore_one, what, number, what=f"the process for --sms {number}", progress=advance
            )
        except KeyboardInterrupt:
            interrupted = True
            break
    if not explored:
        return Exploration((), interrupted=True)
    found = across_sms(explored)
    found.interrupted = found.interrupted or interrupted
    return found


def explore_on(what: Exploring, sms: int, progress: Progress) -> Exploration:
    """`explore_records` on a GPU of that number of SMs, for `explore_gpus`."""
    with Store.open(what.store) as store, replay_gpu(sms=sms):
        return explore_records(
            store,
            what.numbers,
            kernel=what.kernel,
            schedules=what.schedules,
            seeds=what.seeds,
            rule=what.rule,
            command=lambda number, seed, schedule: what.command(number, seed, schedule, sms),
            stages=what.stages,
            check=what.check,
            progress=progress,
            keep=True,
        )


def explore_records(
    store: Store,
    numbers: Sequence[int],
    *,
    kernel: str,
    schedules: Sequence[str],
    seeds: Sequence[int],
    rule: Rule,
    command: Command,
    stages: bool = False,
    check: bool = False,
    progress: Progress | None = None,
    keep: bool = False,
) -> Exploration:
    """Each record of `store` under each of `schedules`, and for each of `seeds` a smaller call made of it.
    What the first run of each leaves is held to the float64 oracle by `rule`, what the others do to its bits;
    with `keep` the results have it.

    All run in this process, a user's kernel too. BadInputError if there is no such kernel.
    """
    kernels.check_name(kernel, SIM)
    runner = InProcess(kernel, SIM, stages, check)
    try:
        shapes = [
            _shape(store.records[number], seed, runner, rule, command)
            for number in numbers
            for seed in (None, *seeds)
        ]
        return explore(shapes, schedules, progress, keep=keep)
    finally:
        runner.close()


def _shape(record: StoredRecord, seed: int | None, runner: Runner, rule: Rule, command: Command) -> Shape:
    name = f"record {record.number}"
    if seed is not None:
        with smaller_record(record, seed) as (_, what):
            name = f"{name}, shape {seed}: {what}"
    run = _Input(record, seed, runner, rule).run_under
    return Shape(name, run, lambda schedule: command(record.number, seed, schedule))


class _Kept:
    """A runner whose latest execution stays at hand."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.left: Execution | Failure | None = None

    def forget(self) -> None:
        self.left = None

    def run_record(self, record: StoredRecord, operation: Operation) -> Execution | Failure:
        self.left = self._runner.run_record(record, operation)
        return self.left

    def close(self) -> None:
        self._runner.close()


class _Input:
    """A record, or a smaller call made of it, run under one schedule after another. The first run that is
    done is judged; others are to have its bits."""

    def __init__(self, record: StoredRecord, seed: int | None, runner: Runner, rule: Rule) -> None:
        self._record, self._seed = record, seed
        self._runner = _Kept(runner)
        self._judge = Judge(rule, device_of(SIM))
        self._judged = False

    def run_under(self, schedule: str) -> Run:
        with ExitStack() as stack:
            record = self._record
            if self._seed is not None:
                store, _ = stack.enter_context(smaller_record(record, self._seed))
                (record,) = store.records
            stack.enter_context(active(Settings(schedule=schedule)))
            return self._ran(record)

    def _ran(self, record: StoredRecord) -> Run:
        found = operation(record.info.op)
        if self._judged:
            left = self._runner.run_record(record, found)
            failed = left.faults[0] if isinstance(left, Execution) and left.faults else ""
        else:
            self._runner.forget()
            result = Replayer(self._runner, None, ORACLE, self._judge).replay(record)
            if self._runner.left is None:  # it was not called
                return Run(refused=f"{result.outcome}: {result.reason}")
            left = self._runner.left
            failed = f"{result.outcome}: {result.reason}" if result.outcome is Outcome.MISMATCH else ""
        checked = left.checked or ()
        if isinstance(left, Failure):
            reason = f"{left.outcome}: {left.reason}"
            if left.outcome.exit_code is Exit.MISMATCH:
                return Run(None, checked, failed=reason)
            return Run(None, checked, refused=reason)
        self._judged = True
        call = calls.compact_call(record, found, device_of(SIM))
        if shapes := wrong_shapes(found, call, left.outputs):
            return Run(None, checked, failed=failed or "; ".join(shapes))
        return Run(keep_valid_rows(found, call, {**left.stages, **left.outputs}), checked, failed)
