"""`gdnbench.replay.replay.replay` over workers: the same report, in the same order."""

from __future__ import annotations

import json
import secrets
from contextlib import ExitStack
from dataclasses import replace
from os import getcwd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnbench.distributed import worker
from gdnbench.distributed.dispatch import Died, Dispatch
from gdnbench.distributed.interrupt import kept_interrupt
from gdnbench.distributed.job import Job, Task, code
from gdnbench.distributed.pool import Pool, pool, say
from gdnbench.errors import BadInputError, GdnbenchError
from gdnbench.replay.judged import Judged, conclude
from gdnbench.replay.replay import Progress, replay_options, select
from gdnbench.replay.save import RunWriter
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult, ReplayReport
from gdnbench.store.address import Address
from gdnbench.store.reader import StoredRecord
from gdnbench.store.recover import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdnbench.sim.checker.accept import Accepted


def replay_spread(
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
    within: Pool | None = None,
    **options: Any,
) -> ReplayReport:
    """As `replay` of the store at `store_path`, whose other arguments `options` are, by the workers of a
    `pool`, or of the one `within` which this is. Says on stderr how often a record was tried again because
    its worker died.

    A record that kills every worker it is given to is a crash. BadInputError for `time` and `trace`, which
    are of one process; errors of `replay`; CannotRunError for workers that have another gdnbench or torch,
    StoreError for those that see another store.
    """
    for name, given in (("--time", time), ("--trace", trace)):
        if given is not None:
            raise BadInputError(f"{name} is done in one process: leave --workers and --scheduler out")
    options["grids"] = bool(options.get("grids")) or save is not None
    asked = replay_options(**options)
    results: list[RecordResult] = []
    with ExitStack() as stack:
        store = stack.enter_context(open_store(store_path))
        chosen = select(store, records, op)
        report = asked.report(store)
        used = stack.enter_context(pool(workers, scheduler, asked.on)) if within is None else within
        keep = save is not None and save_outputs
        job = Job(secrets.token_hex(8), str(store_path), getcwd(), asked, used.threads, keep=keep)
        tasks = [Task.of(store.records[number]) for number in chosen]
        interrupt = stack.enter_context(kept_interrupt())
        dispatch = Dispatch(used, job, tasks, None if used.local else code(), interrupt)
        stack.callback(_conclude, dispatch)
        saved: RunWriter | None = None
        for number, answer in zip(chosen, dispatch, strict=True):
            record = store.records[number]
            judged = _judged(record, answer)
            if save is not None and saved is None:  # workers can do it, and know what they are
                about = _machines(used)
                saved = RunWriter(
                    Path(save), report.header, store, chosen, outputs=save_outputs, workers=about
                )
                stack.enter_context(saved)
            results.append(conclude(record, judged, saved=saved, accepted=accepted))
            if progress is not None:
                progress(len(results), len(chosen), results[-1])
    return replace(report, records=tuple(results))


def _conclude(dispatch: Dispatch) -> None:
    if dispatch.retried:
        again = f"{dispatch.retried} record{'' if dispatch.retried == 1 else 's'}"
        say(f"workers died; {again} tried again")
    dispatch.close()


def _machines(used: Pool) -> list[dict[str, Any]]:
    """What the workers are, each kind once."""
    found = {json.dumps(one, sort_keys=True): one for one in used.everywhere(worker.about)}
    return [found[key] for key in sorted(found)]


def _judged(record: StoredRecord, answer: Judged | Died | GdnbenchError) -> Judged:
    if isinstance(answer, GdnbenchError):
        raise answer
    if isinstance(answer, Died):
        reason = f"the worker it ran on died, {answer.attempts} times of {answer.attempts}"
        return Judged(RecordResult.of(record, Outcome.CRASH, reason))
    return answer
