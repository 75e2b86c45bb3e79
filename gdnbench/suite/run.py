# SPDX-License-Identifier: Apache-2.0
"""Runs a suite entry by entry, and keeps finished results however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gdnbench.errors import (
    CANNOT_RUN_ERRORS,
    EXPECTED_ERRORS,
    BadInputError,
    Exit,
    exit_code_of,
)
from gdnbench.judge.rule import Rule, make_rule
from gdnbench.prove.records import MadeRecord, read_made, write_made
from gdnbench.replay.simulated import SIM
from gdnbench.report.report import RecordResult
from gdnbench.sim import Accepted
from gdnbench.store.address import Address
from gdnbench.store.recover import open_store
from gdnbench.suite.baseline import Baseline
from gdnbench.suite.distribution import Replays
from gdnbench.suite.lineage import run_lineage
from gdnbench.suite.plan import Entry, Known, Options, Suite, TensorRule
from gdnbench.suite.result import EntryResult, SuiteResult
from gdnbench.suite.results import Results
from gdnbench.suite.verdict import judge_record

Progress = Callable[[Entry, int, int], None]
"""Called with an entry, the number of its records done, and their total; 0 of 0 when it begins."""


def run_suite(
    suite: Suite,
    folder: Path,
    *,
    today: date,
    whole: bool = True,
    records: Sequence[range] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> SuiteResult:
    """Replay all entries and write the results so far into `folder` after each entry.

    - today: the day on which known failures are checked for expiry
    - whole: see `SuiteResult`
    - records: replay only records in these ranges, and check no lineage
    - workers, scheduler: see `gdnbench.distributed`

    An interrupt ends the run and is noted in the result. BadInputError for a folder with other content or in
    use by another run, or an unreadable baseline.
    """
    baseline = None if suite.baselines is None else Baseline.read(suite.baselines)
    if records is not None:
        among = [_of_records(entry, records) for entry in suite.entries]
        suite = replace(suite, entries=tuple(entry for entry in among if entry is not None))
        suite = replace(suite, lineage=())  # they are of whole captures
        if not suite.entries:
            raise BadInputError("--records: no entry has any of these records")
        whole = False
    found: list[EntryResult] = []
    with Results(folder) as results, Replays(workers, scheduler) as replays:
        result = SuiteResult(suite, folder, (), whole=whole)
        results.begin(result)
        lineage = tuple(map(run_lineage, suite.lineage))
        if lineage:
            result = replace(result, lineage=lineage)
            results.write(result, finished=not suite.entries)
        for entry in suite.entries:
            one = _run(entry, suite.known, baseline, today, results, replays, progress)
            found.append(one)
            result = SuiteResult(suite, folder, tuple(found), one.interrupted, whole, lineage)
            results.write(result, finished=len(found) == len(suite.entries))
            if one.interrupted:
                break
    return result


def _of_records(entry: Entry, ranges: Sequence[range]) -> Entry | None:
    """`entry` restricted to records in `ranges`; None if there are none."""
    options = entry.options
    if entry.made:
        ops = [record.op for record in made_of(entry)]
    else:
        with open_store(entry.path) as store:
            ops = [record.info.op for record in store.records]
    own = range(len(ops)) if options.records is None else options.records
    kept = [
        number for number in own if options.op in (None, ops[number]) and any(number in one for one in ranges)
    ]
    return replace(entry, options=replace(options, records=tuple(kept))) if kept else None


def made_of(entry: Entry) -> list[MadeRecord]:
    """The made records of an entry: those of its operation and, on the simulator, small enough for it."""
    assert isinstance(entry.path, Path)
    return [
        record
        for record in read_made(entry.path)
        if entry.options.op in (None, record.op) and (record.sim or entry.on != SIM)
    ]


@contextmanager
def store_of(entry: Entry) -> Iterator[Address]:
    """The store of an entry: its capture, or one in a temporary folder of its made records."""
    if not entry.made:
        yield entry.path
        return
    with TemporaryDirectory(prefix="gdnbench-made-") as folder:
        path = Path(folder) / "made.zarr"
        write_made(path, made_of(entry))
        yield path


def _run(
    entry: Entry,
    known: Sequence[Known],
    baseline: Baseline | None,
    today: date,
    results: Results,
    replays: Replays,
    progress: Progress | None,
) -> EntryResult:
    records: list[RecordResult] = []
    expected, error, code, interrupted = 0, "", Exit.PASS, False

    def finished(done: int, total: int, record: RecordResult) -> None:
        nonlocal expected
        expected = total
        records.append(record)
        if progress is not None:
            progress(entry, done, total)

    begin = time.monotonic()
    try:
        if progress is not None:
            progress(entry, 0, 0)
        options = {**replay_arguments(entry), "save": results.run_store(entry.name), "save_outputs": False}
        options["progress"] = finished
        with store_of(entry) as path:
            records = list(replays.replay(path, **options).records)
    except KeyboardInterrupt:
        interrupted = True
    except CANNOT_RUN_ERRORS as refusal:
        error, code = str(refusal), Exit.PASS if entry.options.optional else Exit.CANNOT_RUN
    except (*EXPECTED_ERRORS, OSError) as refusal:
        error = str(refusal)
        code = exit_code_of(refusal) if isinstance(refusal, EXPECTED_ERRORS) else Exit.BAD_INPUT
    verdicts = [judge_record(entry, record, known, baseline, today) for record in records]
    seconds = time.monotonic() - begin
    return EntryResult(entry, tuple(verdicts), error, code, expected or len(records), seconds, interrupted)


def replay_arguments(entry: Entry) -> dict[str, Any]:
    """Keyword arguments for `replay` from an entry."""
    options: Options = entry.options
    return {
        "kernel": entry.kernel,
        "against": options.against,
        "on": entry.on,
        "records": options.records,
        "op": options.op,
        "k": options.rule.k,
        "tol": options.rule.tol,
        "bitwise": options.rule.bitwise,
        "rules": {name: _rule(rule) for name, rule in options.tensors.items()},
        "stages": options.stages,
        "check": options.check,
        "accepted": None if options.accept is None else Accepted.read(options.accept),
        "timeout": options.timeout,
        "isolate": options.isolate,
        "machine": options.machine,
        "sms": options.sms,
    }


def _rule(rule: TensorRule) -> Rule:
    return make_rule(rule.k, None, rule.tol, rule.bitwise)
