# SPDX-License-Identifier: Apache-2.0
"""Candidates, and whether one still fails: a store of one record, replayed in a worker process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from gdnbench.bisect import cache_key
from gdnbench.bisect.input.layout import in_layout_of
from gdnbench.bisect.session import Session
from gdnbench.bisect.trial import Trial, trial_question
from gdnbench.bisect.verdict import CONTENT, Verdict
from gdnbench.bisect.verdict_cache import Question
from gdnbench.bisect.workers import TIMEOUT, OutOfTimeError, ReusedWorker
from gdnbench.record import Pool, RecordDraft, RecordInfo
from gdnbench.store.compression import Compression
from gdnbench.store.reader import StoredRecord
from gdnbench.store.writer import StoreWriter
from gdnbench.synth import drafted
from gdnbench_kernels.contract import Call, Operation

KIND = "synth"
"""Of the stores of shrunk records: made, not captured."""
BATCH = "0"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call, and which of its tensors lie as the caller's did; the others are contiguous. `places`: where
    the rows of its pools are in the caller's, where those are not pools of these rows alone."""

    call: Call
    laid: frozenset[str] = frozenset()
    places: Mapping[str, Pool] = field(default_factory=dict)


def question_with_timeout(trial: Trial, timeout: float) -> Question:
    """The question of `trial`, with the timeout if it is not the default: a kernel that hangs for 2 s may
    pass within 600."""
    return trial_question(trial) if timeout == TIMEOUT else {**trial_question(trial), "timeout": timeout}


class CandidateProber:
    """Probes candidates. `info` is the record that they come from, `layouts` its tensors in the caller's
    layout, `deadline` on the monotonic clock. With `apart` each has a process of its own."""

    def __init__(
        self,
        session: Session,
        operation: Operation,
        info: RecordInfo,
        layouts: Mapping[str, Tensor],
        trial: Trial,
        worker: ReusedWorker,
        deadline: float | None,
        timeout: float = TIMEOUT,
        *,
        apart: bool = False,
    ) -> None:
        self.operation = operation
        self.candidates_probed = 0
        self._session = session
        self._info = info
        self._layouts = layouts
        self._trial = trial
        self._run_trial = worker.run_trial_apart if apart else worker.run_trial
        self._deadline = deadline
        self._question = {**question_with_timeout(trial, timeout), **({"apart": True} if apart else {})}

    def verdict(self, label: str, candidate: Candidate) -> Verdict:
        """The verdict on `candidate`. OutOfTimeError after the deadline; BadInputError if it makes no
        record."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise OutOfTimeError
        self.candidates_probed += 1
        draft = self.draft(candidate)
        question = self._question_of(draft)

        def probe() -> Verdict:
            path = self._session.folder / "candidate.zarr"
            shutil.rmtree(path, ignore_errors=True)
            write_record(path, draft)
            return self._run_trial(replace(self._trial, store=str(path), records=(0,), op=None))

        return self._session.find_or_probe(label, question, probe)

    def reuse_verdict(self, candidate: Candidate, record: StoredRecord, verdict: Verdict) -> None:
        """Stores the verdict on `record` for `candidate` too, if both give a replay the same inputs."""
        draft = self.draft(candidate)
        inputs = replace(draft, after={})
        if cache_key.digest_drafts([inputs]) == cache_key.digest_inputs(record):
            question = self._question_of(draft)
            if self._session.verdicts.find(question) is None:
                self._session.verdicts.add(question, verdict)

    def _question_of(self, draft: RecordDraft) -> Question:
        return {**self._question, CONTENT: cache_key.digest_drafts([draft])}

    def draft(self, candidate: Candidate, outputs: Mapping[str, Tensor] | None = None) -> RecordDraft:
        """The candidate's record with `outputs`."""
        call = candidate.call
        info = replace(self._info, scalars=dict(call.scalars))
        tensors = {
            name: in_layout_of(tensor, self._layouts[name]) if name in candidate.laid else tensor
            for name, tensor in call.tensors.items()
        }
        found = drafted(self.operation, replace(call, tensors=tensors), info, outputs or {})
        return self._placed(found, candidate) if candidate.places else found

    def _placed(self, draft: RecordDraft, candidate: Candidate) -> RecordDraft:
        """The draft with its rows where the caller's pools have them."""
        shrinking = self.operation.shrinking
        assert shrinking is not None
        assert shrinking.placed is not None
        places = candidate.places
        indices = shrinking.placed(candidate.call, {name: pool.rows for name, pool in places.items()})
        before = {
            name: replace(one, data=indices[name]) if name in indices else one
            for name, one in draft.before.items()
        }
        pools = {
            name: Pool(places[name].slots, tuple(places[name].rows[row] for row in pool.rows))
            for name, pool in draft.info.pools.items()
        }
        return RecordDraft(replace(draft.info, pools=pools), before, draft.after)


def write_record(
    path: Path, draft: RecordDraft, *, provenance: Mapping[str, object] | None = None, durable: bool = False
) -> None:
    """A store of one record."""
    compression = None if durable else Compression(None)
    with StoreWriter(
        path, kind=KIND, provenance=provenance, compression=compression, durable=durable
    ) as writer:
        writer.write(BATCH, [draft])
