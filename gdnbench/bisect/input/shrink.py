# SPDX-License-Identifier: Apache-2.0
"""`bisect input` from end to end: checks that the failure is steady, shrinks, and returns the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gdnbench.bisect.endpoints import replay_endpoint
from gdnbench.bisect.flakiness import LOOK_SHARE, Steadiness
from gdnbench.bisect.input.failure import Signature
from gdnbench.bisect.input.layout import is_plain
from gdnbench.bisect.input.probing import Candidate, CandidateProber, question_with_timeout
from gdnbench.bisect.input.shrinker import Shrinker
from gdnbench.bisect.session import Session, lock_session
from gdnbench.bisect.trial import SCHEDULES, Trial, trial_question
from gdnbench.bisect.verdict import CONTENT, State, Verdict
from gdnbench.bisect.workers import TIMEOUT, OutOfTimeError, ReusedWorker, TrialRunner, TrialWorker
from gdnbench.errors import BadInputError
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.replay import bind, kernels
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.store.address import Address, store_name
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.shrinking import with_tensors

WHOLE_POOLS = 256 << 20
"""Bytes of pools up to which slots that the call does not touch are there to begin with: a failure may need
one. Of larger ones there are those that were stored, with new numbers, or the caller's where they matter."""
OUT_OF_TIME = "out of time"
"""The kind of a verdict on a record whose first replay the budget was too short for."""
PAST_CRASH = "it crashes on the simulator: --symptom numbers goes on after a fault that can be skipped"
AFTER_OTHERS = "the smallest record failed after others in its process only: each needs a process of its own"
NOT_ALONE = "the smallest record was not replayed in a process of its own, for lack of time"
INTERRUPTED = (
    "interrupted before the smallest record so far was replayed in a process of its own: it may fail after"
    " others only; the same command goes on"
)
WRITING_SHARE = 0.04
"""Part of the budget that is left for writing the result, see `Options`."""
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Options:
    """`budget` in seconds from `begin` on the monotonic clock, by default from the call of `shrink`. A third
    of it may go to repeated runs of the record itself, and a part is left for writing the result. `timeout`
    of a probe in seconds."""

    same_tensor: bool = False
    budget: float | None = None
    timeout: float = TIMEOUT
    begin: float | None = None

    def until(self, share: float, begin: float) -> float | None:
        """When a share of the budget is spent; None without a budget."""
        return None if self.budget is None else begin + share * self.budget


@dataclass(slots=True)
class Shrunk:
    """The result. `shrinker` None: nothing was shrunk, and `reason` says why. `first` is the verdict on the
    original record, `begun` its call. `complete`: nothing more can be removed. `notes` are about the record
    itself."""

    operation: Operation
    number: int
    key: str
    content: str
    trial: Trial
    first: Verdict
    reason: str = ""
    notes: tuple[str, ...] = ()
    prober: CandidateProber | None = None
    begun: Call | None = None
    shrinker: Shrinker | None = None
    complete: bool = False


Keep = Callable[[Shrunk], None]


def shrink(
    record: StoredRecord,
    trial: Trial,
    options: Options,
    session: Session,
    keep: Keep,
    prober: Callable[[], TrialRunner] | None = None,
) -> Shrunk:
    """`trial` is of `record` alone. `keep` is called with what there is at the end, also where that comes by
    KeyboardInterrupt or because the time is spent. `prober` None: processes of their own."""
    found_operation = operation(record.info.op)
    if found_operation.shrinking is None:
        raise BadInputError(f"{found_operation.name} does not say how its calls are made smaller")
    begin = time.monotonic() if options.begin is None else options.begin
    deadline = options.until(1 - WRITING_SHARE, begin)
    start = prober or (lambda: TrialWorker(timeout=options.timeout, deadline=deadline))
    with lock_session(session.folder), closing(ReusedWorker(start)) as worker:
        look = _Look(session, worker, options.timeout, options.until(LOOK_SHARE, begin))
        try:
            trial, first, flaky, notes = look.replay_record(trial)
        except OutOfTimeError:
            reason = f"the budget of {options.budget:g} s was spent before the first replay had ended"
            first, flaky, notes = Verdict(State.SKIP, OUT_OF_TIME, reason), "", []
        content = str(trial_question(trial)[CONTENT])
        found = Shrunk(found_operation, record.number, record.key, content, trial, first, flaky, tuple(notes))
        if flaky or first.state is not State.BAD:
            passes = "it passes" if first.state is State.GOOD else f"{first.kind}, {first.reason}"
            found.reason = flaky or passes
            return found
        _shrink(found, record, options, session, worker, deadline, keep)
    return found


def _shrink(
    found: Shrunk,
    record: StoredRecord,
    options: Options,
    session: Session,
    worker: ReusedWorker,
    deadline: float | None,
    keep: Keep,
) -> None:
    """Candidates share a process. If the smallest record passes in a process of its own, it failed because of
    an earlier candidate's call: then each candidate gets a process of its own."""
    call, layouts = _plain(_begin(record, found.operation))
    found.begun = call
    failure, takes = Signature.of_verdict(found.first), _takes(found.trial, found.operation)

    def new_prober(apart: bool, until: float | None) -> CandidateProber:
        what = (session, found.operation, record.info, layouts, found.trial, worker)
        return CandidateProber(*what, until, options.timeout, apart=apart)

    def search(apart: bool, until: float | None) -> bool:
        """Whether the search went through; else there was no time."""
        candidate = Candidate(call, frozenset(layouts))
        found.prober, found.shrinker, found.complete = new_prober(apart, until), None, False
        found.prober.reuse_verdict(candidate, record, found.first)
        try:
            for first in (candidate, *_placed(candidate, record)):
                shrinker = Shrinker(found.prober, first, failure, options.same_tensor, takes)
                if shrinker.check_failure():
                    found.shrinker = shrinker
                    shrinker.shrink()
                    found.complete = True
                    return True
            found.reason = "it does not fail in the same way once it is written anew"
        except OutOfTimeError:
            spent = f"the budget of {options.budget:g} s is spent"
            session.report(spent)
            found.reason = "" if found.shrinker is not None else spent
            return False
        return True

    checked = False
    try:
        in_time = search(False, None if deadline is None else deadline - worker.cold)
        if found.shrinker is None or not found.shrinker.steps:
            return
        try:
            alone = new_prober(True, deadline).verdict("the smallest record by itself", found.shrinker.best)
        except OutOfTimeError:
            found.notes += (NOT_ALONE,)
            return
        checked = True
        if failure.is_shown_by(alone, options.same_tensor):
            return
        session.report(AFTER_OTHERS)
        if in_time:
            found.notes += (AFTER_OTHERS,)
            search(True, deadline)
        else:
            found.shrinker, found.reason = None, f"{AFTER_OTHERS}, for which there was no time"
    except KeyboardInterrupt:
        if found.shrinker is not None and found.shrinker.steps and not checked:
            found.notes += (INTERRUPTED,)
            session.report(INTERRUPTED)
        raise
    finally:
        if found.shrinker is not None:
            keep(found)


@dataclass(frozen=True, slots=True)
class _Look:
    """Replays the record itself, in `worker` and in others before it. `until`, on the monotonic clock: no
    more repeats."""

    session: Session
    worker: ReusedWorker
    timeout: float
    until: float | None

    def replay_record(self, trial: Trial) -> tuple[Trial, Verdict, str, list[str]]:
        """The trial to go on with, the verdict on the record, why it cannot be shrunk if it is flaky, and
        notes. A record that fails under some schedules only is shrunk under the first of those."""
        question = question_with_timeout(trial, self.timeout)
        end = replay_endpoint(self.session, "the record", question, trial, self.worker.restart, self.until)
        notes = [end.left_out] if end.left_out else []
        if end.steadiness is Steadiness.FLAKY:
            return trial, end.verdict, f"it is flaky: {end.spread}", notes
        if trial.on == SIM and trial.symptom is None and end.verdict.kind == Outcome.CRASH:
            notes.append(PAST_CRASH)
        if end.steadiness is Steadiness.STEADY:
            return trial, end.verdict, "", notes
        failing = end.failing_schedule()
        schedules: tuple[str, ...] = SCHEDULES if failing is None else (failing,)
        if trial.only_schedules and failing is None:
            schedules = trial.schedules
        trial = replace(trial, schedules=schedules)
        notes.insert(0, f"{end.spread}; shrunk under {', '.join(schedules)}")
        self.session.report(notes[0])
        if failing is not None:
            return trial, end.verdict, "", notes
        question = question_with_timeout(trial, self.timeout)
        verdict = self.session.find_or_probe(
            "the record under all schedules", question, lambda: self.worker.run_trial(trial)
        )
        return trial, verdict, "", notes


def _takes(trial: Trial, found: Operation) -> Mapping[str, tuple[str, ...]]:
    """The values of conventions that the kernel takes, as far as that can be known here. It was imported in
    another process before, without harm."""
    if not kernels.is_user_kernel(trial.kernel):
        entry = found.kernels.get(trial.kernel)
        return {} if entry is None else entry.conventions
    if trial.on == SIM:  # its file may compile kernels when it is imported
        return {}
    try:
        return kernels.load_function(trial.kernel).conventions
    except Exception:
        return {}


def _begin(record: StoredRecord, found: Operation) -> Call:
    """The recorded call as it was held, pools whole where they are small enough, on the CPU."""
    pools = sum(
        pool.slots * record.before[name].nbytes // max(1, len(pool.rows))
        for name, pool in record.info.pools.items()
    )
    if pools <= WHOLE_POOLS:
        return bind.exact(record, found, CPU).call
    return calls.compact_call(record, found, CPU)


def _placed(candidate: Candidate, record: StoredRecord) -> Iterator[Candidate]:
    """Where the slots that were stored have new numbers: the same with those of the caller."""
    pools = record.info.pools
    if any(len(candidate.call.tensors[name]) != pool.slots for name, pool in pools.items()):
        yield replace(candidate, places=dict(pools))


def _plain(call: Call) -> tuple[Call, Mapping[str, Tensor]]:
    """The call with contiguous tensors, and those that were not, as they were held."""
    layouts = {name: tensor for name, tensor in call.tensors.items() if not is_plain(tensor)}
    return with_tensors(call, {name: tensor.contiguous() for name, tensor in call.tensors.items()}), layouts


def default_out(store: Address, number: int) -> Path:
    """The default path of a shrunk record, in the current folder."""
    return Path(f"{store_name(store)}-{number}-small.zarr")
