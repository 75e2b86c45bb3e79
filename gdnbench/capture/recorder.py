# SPDX-License-Identifier: Apache-2.0
"""Writes the records of one process into its journal, and counts them."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from gdnbench.capture.access_collector import AccessCollector
from gdnbench.capture.adapter import NotCaptured
from gdnbench.capture.device_provenance import device_provenance
from gdnbench.capture.device_snapshot import DeviceSnapshot
from gdnbench.capture.digest_buffer import Chunk, DigestBuffer
from gdnbench.capture.digest_record import DigestRecord
from gdnbench.capture.graph_digests import DigestBatch, EagerBatch, joined
from gdnbench.capture.inflight import PendingRecord
from gdnbench.capture.options import CaptureOptions
from gdnbench.capture.pretrigger import Ring
from gdnbench.capture.selection import Selection
from gdnbench.capture.streams import Streams
from gdnbench.capture.transfer import Queued, Transferred, Transfers
from gdnbench.capture.trigger import Triggers
from gdnbench.handlers import raised_by_handler
from gdnbench.record import Status
from gdnbench.store.journal import JournalWriter

HANDLER_RAISED = "a signal handler of the program raised an error while they were recorded"


@dataclass(slots=True)
class Counts:
    """What happened in this process. Failures are errors of capture: hooks, adapters, journal."""

    records: int = 0
    digested: int = 0  # calls whose accesses are logged
    unfinished: int = 0
    bytes: int = 0
    dropped: int = 0
    failures: int = 0
    first_failure: str | None = None
    skipped_compiling: int = 0  # calls compiled into a graph, or in a CUDA graph that is not recorded
    skipped: dict[str, int] = field(default_factory=dict)  # the same, by function and reason
    graph_calls: int = 0  # calls in CUDA graphs whose replays can be recorded
    graph_replays: int = 0  # replays of which at least one call was recorded
    passed_over: dict[str, int] = field(default_factory=dict)  # calls that adapters did not record, by reason
    uncaptured: dict[str, dict[str, Any]] = field(default_factory=dict)  # see `count_uncaptured`
    reached_max_bytes: bool = False
    first_over_bytes: int = 0  # of the first record that `--max-bytes` had no room for
    looked_at: int = 0  # calls that a trigger evaluated
    triggered: int = 0  # calls that a trigger held for
    unclaimed: dict[str, int] = field(default_factory=dict)  # steps or calls without requests, by error
    ring_short: int = 0  # calls that --around asked for and --ring-bytes had no room for

    unfollowed: list[str] = field(default_factory=list)  # layers that --on-lineage could not check to the end

    def fail(self, error: BaseException) -> None:
        """Count a call that was not recorded.

        Raises `error` again if a signal handler of the program raised it while capture was running.
        """
        if isinstance(error, NotCaptured):
            self._pass_over(str(error))
            return
        if raised_by_handler(error):
            self._pass_over(HANDLER_RAISED)
            raise error
        self.failures += 1
        if self.first_failure is None:
            self.first_failure = _one_line(error)

    def fail_claims(self, error: BaseException) -> None:
        """Count a step or a call whose requests could not be told; the call is recorded all the same."""
        if raised_by_handler(error):
            raise error
        reason = _one_line(error)
        self.unclaimed[reason] = self.unclaimed.get(reason, 0) + 1

    def _pass_over(self, reason: str) -> None:
        self.passed_over[reason] = self.passed_over.get(reason, 0) + 1

    def skip(self, target: str, reason: str) -> None:
        """Count a call in a graph that is not recorded."""
        self.skipped_compiling += 1
        name = f"{target}: {reason}"
        self.skipped[name] = self.skipped.get(name, 0) + 1

    def count_uncaptured(self, function: str, reason: str, *, once: bool) -> bool:
        """Count a call of a function that no adapter records; returns whether it is the first of it.

        `once`: the call makes part of a CUDA graph or of compiled code, whose runs are not counted.
        """
        found = self.uncaptured.get(function)
        first = found is None
        if found is None:
            found = self.uncaptured[function] = {"calls": 0, "once": 0, "reason": reason}
        found["calls"] += 1
        found["once"] += once
        return first

    def summary(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _one_line(error: BaseException) -> str:
    """The error, and the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())


def _not_logged(counts: Counts) -> int:
    """Calls of which an access log has nothing, so that slots may have been written unseen."""
    uncaptured: int = sum(one["calls"] for one in counts.uncaptured.values())
    passed = sum(counts.passed_over.values())
    return counts.dropped + counts.failures + counts.skipped_compiling + uncaptured + passed


class Recorder:
    """Writes records to the journal: CPU records at once, GPU records after their copies have arrived. Thread
    safe."""

    def __init__(
        self,
        store: Path,
        options: CaptureOptions,
        process: Mapping[str, Any],
        provenance: Mapping[str, Any],
        selection: Selection,
        counts: Counts,
        triggers: Triggers,
    ) -> None:
        self._triggers = triggers
        self._ring = Ring(options.around, options.ring_bytes)
        self._selection = selection
        self._counts = counts
        self._lock = threading.Lock()
        self._journal = JournalWriter(
            store,
            process=process,
            provenance={**provenance, **device_provenance()},
            limit_bytes=options.queue_bytes,
            when_full=options.when_full,
            compression=options.zstd,
            keep_bytes=options.max_bytes if options.when_over == "drop-oldest" else None,
        )
        self._accesses = AccessCollector(
            self._journal,
            sample=options.digest_sample,
            max_bytes=options.max_bytes if options.when_over == "drop-oldest" else None,
            lost=lambda: _not_logged(counts),
            failed=self._failed,
        )
        self._transfers = Transfers(
            self._write_or_count,
            self._failed,
            arrive=self._arrive,
            written=self._recycle,
            when_full=options.when_full,
        )
        self._buffer: DigestBuffer | None = None

    @property
    def segment(self) -> str:
        return self._journal.segment

    def carried(self, layer: str, name: str, tensor: Tensor) -> Tensor | None:
        """The journal's copy of the CPU tensor `tensor`, if the last call of `layer` left exactly those
        bytes."""
        return self._journal.carried(layer, name, tensor)

    def reserve(self, nbytes: int, calls: int = 1) -> bool:
        """Reserve room for device copies of the inputs of `calls` calls; may wait. False: the calls are
        dropped."""
        if self._transfers.reserve(nbytes):
            return True
        self._count(dropped=calls)
        return False

    def abandon(self, reserved: int) -> None:
        """Release the room reserved for calls that will not be recorded."""
        self._transfers.release(reserved)

    def digest_buffer(self, streams: Streams) -> DigestBuffer:
        """Where digests are collected; made at the first call of this."""
        if self._buffer is None:
            with self._lock:
                if self._buffer is None:
                    self._buffer = DigestBuffer(streams, self._transfers.reserve, self._transfers.enqueue)
        return self._buffer

    def _recycle(self, queued: Queued) -> None:
        if isinstance(queued, Chunk) and self._buffer is not None:
            self._buffer.recycle(queued)

    def begin_graph(self) -> None:
        if self._buffer is not None:
            self._buffer.flush()
        self._transfers.begin_quiet()

    def end_graph(self) -> None:
        self._transfers.end_quiet()

    def begin(self, pending: PendingRecord) -> None:
        """Write the inputs to disk before the call starts."""
        pending.arrive()
        before = pending.finish_inputs()
        nbytes = pending.nbytes
        if not self._room_for(nbytes):
            return
        pending.token = self._journal.begin(pending.finish_info(), before)
        if pending.token is None:
            self._count(dropped=1)
        else:
            self._count(bytes=nbytes)
        pending.begun = True
        pending.before.clear()

    def finish(self, pending: PendingRecord) -> None:
        """Record a call that ended; its tensors may still be in flight from a GPU."""
        if pending.begun:
            if pending.token is not None:
                pending.arrive()
                written = self._journal.end(pending.token, pending.finish_info(), pending.finish_outputs())
                self._count_record(pending, written, pending.nbytes)
            self.release_reservation(pending)
        elif self._selection.full or not (self._triggers.any or self._room_for(pending.nbytes)):
            self.release_reservation(pending)
        elif pending.device is not None:
            if self._buffer is not None:
                self._buffer.flush()  # rows are logged in the order of the calls
            self._transfers.enqueue(pending)
        elif not self._triggers.any:
            self._write(pending)
        else:
            for record in self._decided(pending):
                self._write_or_count(record)

    def finish_batch(self, batch: DigestBatch) -> None:
        """Log the calls of a replay once their digests have arrived."""
        assert self._buffer is not None
        kept = not self._selection.full and self._room_for(batch.nbytes)
        self._buffer.finish(batch.taken, batch if kept else None)

    def give_up_batch(self, batch: DigestBatch, *, unfinished: bool = False) -> None:
        """Leave the room of a replay that will not be recorded, or of a call that raised."""
        assert self._buffer is not None
        self._count(unfinished=unfinished)
        self._buffer.finish(batch.taken, None)

    def finish_on_device(self, pending: PendingRecord, outputs: DeviceSnapshot, streams: Streams) -> None:
        """Record a call on a device that ended: copy `outputs` and send them after the inputs."""
        assert pending.device is not None
        pending.device.reserved += outputs.nbytes
        self._transfers.reserve_more(outputs.nbytes)
        try:
            pending.device.after.join(outputs.pack().send(streams))
            pending.flags = self._triggers.flags(pending, streams)
            pending.small_parts = self._triggers.small_parts(pending, streams)
            self.finish(pending)
        except Exception:
            self.release_reservation(pending)
            raise

    def release_reservation(self, pending: PendingRecord) -> None:
        """Release the room reserved for a call that will not be written. Idempotent."""
        if pending.device is not None:
            self._transfers.release(pending.device.reserved)
            pending.device.reserved = 0

    def _decided(self, pending: PendingRecord) -> Sequence[PendingRecord]:
        """The records to write now that `pending` is complete: only `pending` if there is no trigger."""
        if not self._triggers.any:
            return [pending]
        reason = self._triggers.after(pending)
        if reason is not None and not self._selection.triggers(pending.layer):
            reason = None
        found = self._ring.offer(pending, reason)
        self._count(looked_at=1, triggered=reason is not None)
        # If `--max-bytes` ends here, keep the triggering call first, then the latest calls before it.
        return [record for record in reversed(found) if self._room_for(record.nbytes)][::-1]

    def _arrive(self, pending: Queued) -> Sequence[Transferred]:
        """Wait for the copies of the records to write; returns the records that have arrived."""
        arrived: list[Transferred] = []
        if isinstance(pending, Chunk):
            pending.arrive()
            return joined(pending.records)
        for record in self._decided(pending):
            try:
                record.arrive()
                arrived.append(record)
            except Exception as error:
                self._failed(error)
        return arrived

    def _write_or_count(self, pending: Transferred) -> None:
        """Write a record, or count the failure, so that later records are still written."""
        try:
            self._write(pending)
        except Exception as error:
            self._failed(error)

    def _write(self, pending: Transferred) -> None:
        nbytes = pending.nbytes
        if isinstance(pending, DigestBatch | EagerBatch):
            self._accesses.add(pending)
            self._count(digested=pending.calls, bytes=nbytes)
            return
        if isinstance(pending, DigestRecord):
            if pending.info.status is Status.COMPLETE:
                self._accesses.add(pending)
                self._count(digested=1, bytes=nbytes)
            else:
                self._count(unfinished=1)  # it may have written states: its step counts as missing
            return
        self._count_record(pending, self._journal.append(pending.draft()), nbytes)

    def _count_record(self, pending: PendingRecord, written: bool, nbytes: int) -> None:
        if not written:
            self._count(dropped=1)
        elif pending.info.status is Status.UNFINISHED:
            self._count(unfinished=1, bytes=nbytes)
        else:
            self._count(records=1, bytes=nbytes)

    def _room_for(self, nbytes: int) -> bool:
        if self._selection.has_room(nbytes):
            return True
        if not self._counts.reached_max_bytes:
            self._counts.reached_max_bytes = True
            self._counts.first_over_bytes = nbytes
        return False

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._counts, name, getattr(self._counts, name) + amount)

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            self._counts.fail(error)

    def wait_until_written(self) -> None:
        """Wait until records in flight from a device are in the journal."""
        if self._buffer is not None:
            self._buffer.flush()
        self._transfers.wait_until_written()

    def close(self) -> None:
        """Write the records in flight, then end the journal with the summary."""
        if self._buffer is not None:
            self._buffer.close()
        self._transfers.close()
        self._accesses.close()
        self._counts.ring_short = self._ring.short
        self._counts.unfollowed = self._triggers.unfollowed()
        error = self._journal.stats.error
        if error is not None and self._counts.first_failure is None:
            self._counts.first_failure = f"the journal cannot be written: {error}"
        self._journal.close(self._counts.summary())
