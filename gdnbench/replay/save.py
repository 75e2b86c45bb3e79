# SPDX-License-Identifier: Apache-2.0
"""Saves what a kernel computed, and its results, as a run store: for `diff` to compare with a run from
another machine, and for `report` to show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from gdnbench.bits import logical, meta_of
from gdnbench.judge.calls import conventions_of
from gdnbench.provenance import git_state, gpu_provenance, process_info, provenance
from gdnbench.record import RecordDraft, TensorDraft
from gdnbench.replay.execute import Execution
from gdnbench.replay.kernels import source_folder
from gdnbench.report.export import record_json
from gdnbench.report.report import RecordResult
from gdnbench.store.reader import Store, StoredRecord
from gdnbench.store.writer import StoreWriter
from gdnbench_kernels.contract import Operation

if TYPE_CHECKING:
    from gdnbench.timing.result import RecordTiming

_BATCH_RECORDS = 256
_BATCH_BYTES = 64 << 20
_ROW_BYTES = 40  # what the number of a pool's row takes as text, twice over: a batch's text is limited too


class RunWriter:
    """Writes one run. A record holds the outputs, the stages that were asked for, the digests of the inputs,
    and of the inputs themselves only the index tensors, from which it is known to whom each row belongs; with
    them its result, errors by chunk and head included. Without `outputs` it is the result alone.

    header: a report's; records: the numbers of those that are replayed; workers: the machines that replay,
    where this one does not. What wrote the captured store is kept too, so that a run says where both sides
    come from (`gdnbench.report.runs` reads it).
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, str],
        captured: Store,
        records: Sequence[int],
        *,
        outputs: bool = True,
        workers: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._header, self._outputs = header, outputs
        if header["on"] == "cuda" and not workers:
            # Else nobody knows the GPU yet; the oracle runs on it in any case.
            torch.cuda.init()  # type: ignore[no-untyped-call]
        replays = {
            "header": dict(header),
            "records": len(records),
            "captured": {
                segment.name: {"process": dict(segment.process), "provenance": dict(segment.provenance)}
                for segment in {
                    captured.records[number].segment.name: captured.records[number].segment
                    for number in records
                }.values()
            },
        }
        self._writer = StoreWriter(
            path,
            kind="run",
            process={**process_info(), "replays": replays},
            provenance={
                **provenance(),
                **gpu_provenance(),
                **_kernel_provenance(header["kernel"]),
                **({"workers": list(workers)} if workers else {}),
            },
        )
        self._drafts: list[RecordDraft] = []
        self._bytes = 0
        self._written = 0

    def add(
        self,
        record: StoredRecord,
        operation: Operation,
        result: RecordResult,
        execution: Execution | None,
        timing: RecordTiming | None = None,
    ) -> None:
        """Keep one record; without an execution only its result. `timing`: what timing found on it."""
        conventions = conventions_of(record, operation)
        outputs = {} if execution is None or not self._outputs else {**execution.stages, **execution.outputs}
        after = {}
        for name, tensor in outputs.items():
            after[name] = TensorDraft(tensor, meta_of(tensor, operation.spec(name).axes_in(conventions)))
        before = {
            name: TensorDraft(handle.read(), handle.meta)
            for name, handle in record.before.items()
            if self._outputs
            and name not in record.info.pools
            and not logical(handle.meta.dtype).torch_dtype.is_floating_point
        }
        run: dict[str, Any] = {
            **{name: self._header[name] for name in ("kernel", "against", "on")},
            "outcome": str(result.outcome),
            "reason": result.reason,
            "source": record.key,
            "inputs": {name: handle.digest for name, handle in record.before.items()},
            "segment": record.segment.name,
            "handed": {} if execution is None else execution.conventions,
            "result": {**record_json(result, grids=True), "timing": None},
        }
        # A batch's text is limited, and a record's is in it twice over at most.
        self._bytes += 2 * len(json.dumps(run["result"]))
        if timing is not None:
            run["timing"] = timing.to_json()
            self._bytes += 2 * len(timing.dumps())
        info = replace(record.info, target=self._header["kernel"], conventions=conventions, run=run)
        self._drafts.append(RecordDraft(info, before, after))
        self._bytes += sum(_size(draft.data) for draft in (*before.values(), *after.values()))
        self._bytes += _ROW_BYTES * sum(len(pool.rows) for pool in info.pools.values())
        # Times took a while to measure: each record's are on disk before the next one's are begun.
        if timing is not None or self._bytes >= _BATCH_BYTES or len(self._drafts) >= _BATCH_RECORDS:
            self._flush()

    def _flush(self) -> None:
        if self._drafts:
            self._writer.write(f"{self._written:08d}", self._drafts, first=self._written)
            self._written += len(self._drafts)
            self._drafts, self._bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit what there is, after an interruption too: every record in it is complete."""
        try:
            self._flush()
        finally:
            self._writer.close()


def _kernel_provenance(kernel: str) -> dict[str, Any]:
    """`kernel`: the git state of a user's function, whose repository need not be the script's."""
    folder = source_folder(kernel)
    state = None if folder is None or not folder.is_dir() else git_state(folder)
    return {} if state is None else {"kernel": {"git": state}}


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
