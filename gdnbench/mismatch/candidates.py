# SPDX-License-Identifier: Apache-2.0
"""Judges waiting records: copies those that fail into the store, and drops the others."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from gdnbench.errors import StoreError
from gdnbench.judge.result import Side, TensorResult
from gdnbench.record import RecordDraft, Status, TensorDraft
from gdnbench.replay.replay import RECORDED, Replayer, replay_options, replaying
from gdnbench.report.outcome import Outcome
from gdnbench.report.report import RecordResult
from gdnbench.store.layout import METADATA
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.segment_sealer import batch_name
from gdnbench.store.summary import SegmentSummary, write_summary
from gdnbench.store.writer import StoreWriter


@dataclass(slots=True)
class Tally:
    """The number of calls with each outcome."""

    judged: int = 0
    kept: int = 0
    raised: int = 0  # calls that raised, kept with their inputs
    not_judged: int = 0  # dropped for later calls before they were judged
    refused: int = 0  # calls that cannot be judged
    first_refused: str | None = None


class Candidates:
    """The calls in the store `candidates`, which is being written; those that fail are copied to `store`.

    The rule is that of `gdnbench replay --against recorded`: at most `k` times the error of torch's kernel,
    both against the fp64 oracle.
    """

    def __init__(self, candidates: Path, store: Path, k: float) -> None:
        self._candidates = candidates
        self._store = store
        self._options = replay_options(kernel="torch", against=RECORDED, on="cpu", k=k)
        self._done: dict[str, set[int]] = {}  # numbers of entries, by segment
        self._writers: dict[str, StoreWriter] = {}
        self._kept: dict[str, int] = {}
        self._lost = 0
        self.tally = Tally()

    def poll(self) -> int:
        """Judge the new calls, oldest first; returns their number. StoreError if `store` cannot be
        written."""
        if not (self._candidates / METADATA).is_file():
            return 0
        judged = 0
        with ExitStack() as stack:
            store = stack.enter_context(Store.open(self._candidates, cached=False))
            new = [one.number for one in store.listed() if not self._is_done(one.key)]
            replayer = stack.enter_context(replaying(store, self._options))
            for number in new:
                try:
                    record = store.records[number]
                    result = self._replayed(record, replayer)
                except (StoreError, FileNotFoundError):
                    continue  # dropped for a later call meanwhile
                self._judged(record.key)
                self._keep_if_wrong(record, result)
                judged += 1
        return judged

    def _replayed(self, record: StoredRecord, replayer: Replayer) -> RecordResult:
        """The result of the record's call; FileNotFoundError if the record is dropped meanwhile. What oracle
        or torch raise, such as torch for memory that there is not, becomes the outcome of this call alone."""
        try:
            result = replayer.replay(record)
        except (StoreError, FileNotFoundError):
            raise
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            result = RecordResult.from_record(record, Outcome.CRASH, said)
        if result.outcome not in (Outcome.PASS, Outcome.MISMATCH):
            for handle in (*record.before.values(), *record.after.values()):
                os.stat(self._candidates / handle.location.array)
        return result

    def _is_done(self, key: str) -> bool:
        segment, _, entry = key.partition("/")
        return int(entry) in self._done.get(segment, ())

    def _judged(self, key: str) -> None:
        segment, _, entry = key.partition("/")
        self._done.setdefault(segment, set()).add(int(entry))

    def _keep_if_wrong(self, record: StoredRecord, result: RecordResult) -> None:
        if record.info.status is Status.UNFINISHED:
            self.tally.raised += self._keep(record, "raised")
            return
        if result.outcome not in (Outcome.PASS, Outcome.MISMATCH):
            self.tally.refused += 1
            self.tally.first_refused = self.tally.first_refused or f"{result.outcome}: {result.reason}"
            return
        self.tally.judged += 1
        why = describe_mismatch(result)
        if why is not None:
            self.tally.kept += self._keep(record, f"mismatch:{why}")

    def _keep(self, record: StoredRecord, trigger: str) -> bool:
        try:
            draft = _draft(record, trigger)
        except (StoreError, FileNotFoundError):
            self._lost += 1  # as above
            return False
        self._writer(record).write(batch_name(_entry(record)), [draft], _entry(record))
        self._kept[record.segment.name] = self._kept.get(record.segment.name, 0) + 1
        return True

    def _writer(self, record: StoredRecord) -> StoreWriter:
        segment = record.segment
        if segment.name not in self._writers:
            self._writers[segment.name] = StoreWriter(
                self._store,
                kind="capture",
                segment=segment.name,
                process=segment.process,
                provenance=segment.provenance,
            )
        return self._writers[segment.name]

    def close(self) -> Tally:
        """End the written segments and count the calls that were not judged."""
        for name, writer in self._writers.items():
            write_summary(self._store, name, SegmentSummary(closed=True, records=self._kept.get(name, 0)))
            writer.close()
        done = sum(map(len, self._done.values()))
        self.tally.not_judged = self._recorded() - done + self._lost
        return self.tally

    def _recorded(self) -> int:
        """The number of entries of all segments: from their ends or, without an end, the highest entry
        seen."""
        found = {name: max(entries) + 1 for name, entries in self._done.items()}
        if (self._candidates / METADATA).is_file():
            with Store.open(self._candidates, cached=False) as store:
                for segment in store.segments:
                    said = 0 if segment.end is None else int(segment.end["records"])
                    found[segment.name] = max(found.get(segment.name, 0), said)
        return sum(found.values())


def describe_mismatch(result: RecordResult) -> str | None:
    """The recorded tensors that are wrong, and the worst error / limit; None if none is wrong."""
    wrong = [one for one in result.tensors if one.side is Side.AGAINST and not one.passed]
    if not wrong:
        strays = any(fault.startswith("recorded ") for fault in result.faults)
        return "untouched slots" if strays else None
    names = ",".join(dict.fromkeys(one.tensor for one in wrong))
    worst = max(map(_over, wrong))
    return f"{names} {worst:.3g}x" if worst else names


def _over(tensor: TensorResult) -> float:
    return max((held.ratio for held in tensor.held), default=0.0)


def _entry(record: StoredRecord) -> int:
    return int(record.key.partition("/")[2])


def _draft(record: StoredRecord, trigger: str) -> RecordDraft:
    info = replace(record.info, dispatch={**record.info.dispatch, "trigger": trigger})
    before, after = (
        {name: TensorDraft(handle.read(), handle.meta) for name, handle in handles.items()}
        for handles in (record.before, record.after)
    )
    return RecordDraft(info, before, after)
