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
from gdnbench.bisect.flakiness import Steadiness
from gdnbench.bisect.input.failure import Signature
from gdnbench.bisect.input.layout import is_plain
from gdnbench.bisect.input.probing import Candidate, CandidateProber, Enough, question_with_timeout
from gdnbench.bisect.input.shrinker import Shrinker
from gdnbench.bisect.session import Session, lock_session
from gdnbench.bisect.trial import SCHEDULES, Trial, trial_question
from gdnbench.bisect.verdict import State, Verdict
from gdnbench.bisect.workers import TIMEOUT, TrialRunner, TrialWorker
from gdnbench.errors import BadInputError
from gdnbench.judge import calls
from gdnbench.ops import operation
from gdnbench.replay import bind, kernels
from gdnbench.replay.simulated import SIM
from gdnbench.store.address import Address, store_name
from gdnbench.store.reader import StoredRecord
from gdnbench_kernels.contract import Call, Operation
from gdnbench_kernels.shrinking import with_tensors

WHOLE_POOLS = 256 << 20
"""Bytes of pools up to which slots that the call does not touch are there to begin with: a failure may need
one. Of larger ones there are those that were stored, with new numbers, or the caller's where they matter."""
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Options:
    """`budget` in seconds from the beginning, `timeout` of a probe in seconds."""

    same_tensor: bool = False
    budget: float | None = None
    timeout: float = TIMEOUT


@dataclass(slots=True)
class Shrunk:
    """The result. `shrinker` None: nothing was shrunk, and `reason` says why. `first` is the verdict on the
    original record, `begun` its call. `complete`: nothing more can be removed."""

    operation: Operation
    number: int
    key: str
    content: str
    trial: Trial
    first: Verdict
    reason: str = ""
    asker: CandidateProber | None = None
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
    begin = time.monotonic()
    probers = prober or (lambda: TrialWorker(timeout=options.timeout))
    trial, first, flaky = _look(trial, session, probers, options.timeout)
    found = Shrunk(
        found_operation, record.number, record.key, str(trial_question(trial)["content"]), trial, first, flaky
    )
    if flaky or first.state is not State.BAD:
        passes = "it passes" if first.state is State.GOOD else f"{first.kind}, {first.reason}"
        found.reason = flaky or passes
        return found
    deadline = None if options.budget is None else begin + options.budget
    with lock_session(session.folder), closing(probers()) as probing:
        _shrink(found, record, options, session, probing, deadline, keep)
    return found


def _shrink(
    found: Shrunk,
    record: StoredRecord,
    options: Options,
    session: Session,
    probing: TrialRunner,
    deadline: float | None,
    keep: Keep,
) -> None:
    call, layouts = _plain(_begin(record, found.operation))
    found.asker = CandidateProber(
        session, found.operation, record.info, layouts, found.trial, probing, deadline, options.timeout
    )
    found.begun = call
    candidate = Candidate(call, frozenset(layouts))
    failure, takes = Signature.of_verdict(found.first), _takes(found.trial, found.operation)
    try:
        for first in (candidate, *_placed(candidate, record)):
            shrinker = Shrinker(found.asker, first, failure, options.same_tensor, takes)
            if shrinker.check_failure():
                found.shrinker = shrinker
                shrinker.shrink()
                found.complete = True
                return
        found.reason = "it does not fail in the same way once it is written anew"
    except Enough:
        spent = f"the budget of {options.budget:g} s is spent"
        session.report(spent)
        found.reason = "" if found.shrinker is not None else spent
    finally:
        if found.shrinker is not None:
            keep(found)


def _look(
    trial: Trial, session: Session, prober: Callable[[], TrialRunner], timeout: float
) -> tuple[Trial, Verdict, str]:
    """The trial to go on with, the verdict on the record, and why it cannot be shrunk where it is flaky."""
    end = replay_endpoint(session, "the record", question_with_timeout(trial, timeout), trial, prober)
    if end.steadiness is Steadiness.FLAKY:
        return trial, end.verdict, f"it is flaky: {end.spread}"
    if end.steadiness is Steadiness.STEADY:
        return trial, end.verdict, ""
    session.report(f"{end.spread}: bad under any schedule is bad")
    trial = replace(trial, schedules=SCHEDULES)
    with closing(prober()) as probing:
        label = "the record under all schedules"
        return (
            trial,
            session.find_or_probe(
                label, question_with_timeout(trial, timeout), lambda: probing.run_trial(trial)
            ),
            "",
        )


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
