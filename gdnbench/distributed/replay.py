# SPDX-License-Identifier: Apache-2.0
"""Replays a store on many workers; the report is the same as that of `gdnbench.replay.replay.replay`."""

from __future__ import annotations

import json
import secrets
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from os import getcwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench import phases
from gdnbench.distributed import worker
from gdnbench.distributed.job import Job, Task, code_version
from gdnbench.errors import EXPECTED_ERRORS, BadInputError, GdnbenchError
from gdnbench.replay.record import JudgedRecord, finish_record
from gdnbench.replay.replay import Progress, replay_options, select
from gdnbench.replay.save import RunWriter
from gdnbench.replay.simulated import SIM
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.sim.errors import SimError
from gdnbench.store.address import Address
from gdnbench.store.reader import StoredRecord
from gdnbench.store.recover import open_store
from gdnbench.workers.dask_dispatch import TaskDispatcher, WorkerDied
from gdnbench.workers.dask_pool import WorkerPool, open_pool
from gdnbench.workers.interrupt import recorded_interrupt
from gdnbench.workers.tensor_pickle import dumps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdnbench.sim import Accepted


def replay_distributed(
    store_path: Address,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    records: Sequence[int] | None = None,
    op: str | None = None,
    save: str | Path | None = None,
    save_outputs: bool = True,
    time: object = None,
    accepted: Accepted | None = None,
    trace: object = None,
    progress: Progress | None = None,
    within: WorkerPool | None = None,
    **options: Any,
) -> ReplayReport:
    """Replays the store at `store_path` on the workers of the pool `within`, or of one that `open_pool` opens
    for `workers` and `scheduler`. `options` are the other arguments of `replay`. Prints on stderr how many
    records were tried again because a worker died.

    A record that kills every worker that tries it is a crash. BadInputError for `time` and `trace`, which
    need one process; errors of `replay`; CannotRunError for a worker with another gdnbench or torch,
    StoreError for a worker that sees another store.
    """
    for name, given in (("--time", time), ("--trace", trace)):
        if given is not None:
            raise BadInputError(f"{name} is done in one process: omit --workers and --scheduler")
    options["grids"] = bool(options.get("grids")) or save is not None
    replay_request = replay_options(**options)
    results: list[RecordResult] = []
    with ExitStack() as stack:
        store = stack.enter_context(open_store(store_path))
        chosen = select(store, records, op)
        report = replay_request.report(store)
        on = replay_request.on
        phases.enter("start workers")
        pool = within or stack.enter_context(open_pool(workers, scheduler, on, pin_cores=on == SIM))
        stack.enter_context(pool.told_by_workers(worker.PHASES, _tell_phase))
        keep = save is not None and save_outputs
        job = Job(secrets.token_hex(8), str(store_path), getcwd(), replay_request, pool.threads, keep=keep)
        tasks = [Task.of_record(store.records[number]) for number in chosen]
        interrupt = stack.enter_context(recorded_interrupt())
        answer = partial(worker.run_task, None if pool.local else code_version(), dumps(job))
        dispatcher = TaskDispatcher(pool, answer, tasks, interrupt, limit_ahead=keep)
        stack.callback(_end_job, dispatcher, pool, job)
        saved: RunWriter | None = None
        for number, answer in zip(chosen, dispatcher, strict=True):
            record = store.records[number]
            judged = _judged(record, answer)
            if save is not None and saved is None:  # now that a worker has answered
                machines = _machines(pool)
                saved = RunWriter(
                    Path(save), report.header, store, chosen, outputs=save_outputs, workers=machines
                )
                stack.enter_context(saved)
            results.append(finish_record(record, judged, saved=saved, accepted=accepted))
            if progress is not None:
                progress(len(results), len(chosen), results[-1])
    return replace(report, records=tuple(results))


def _end_job(dispatcher: TaskDispatcher, pool: WorkerPool, job: Job) -> None:
    """Cancels tasks in flight, and has workers that outlive the pool close what the job opened."""
    if dispatcher.retried:
        records = f"{dispatcher.retried} record{'' if dispatcher.retried == 1 else 's'}"
        print(f"gdnbench: workers died; {records} tried again", file=sys.stderr)
    dispatcher.cancel()
    if not pool.local:
        pool.call_on_each(worker.end_job, job.token)


def _tell_phase(parts: Sequence[str]) -> None:
    phases.tell(phases.State(*parts))


def _machines(pool: WorkerPool) -> list[dict[str, Any]]:
    """The machines of the workers, each kind once."""
    found = {json.dumps(one, sort_keys=True): one for one in pool.call_on_each(worker.describe_machine)}
    return [found[key] for key in sorted(found)]


def _judged(
    record: StoredRecord, answer: JudgedRecord | WorkerDied | GdnbenchError | SimError
) -> JudgedRecord:
    if isinstance(answer, EXPECTED_ERRORS):
        raise answer
    if isinstance(answer, WorkerDied):
        reason = f"the worker it ran on died, {answer.attempts} times of {answer.attempts}"
        return JudgedRecord(RecordResult.from_record(record, Outcome.CRASH, reason))
    return answer
