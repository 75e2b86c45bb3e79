# SPDX-License-Identifier: Apache-2.0
"""The journal's writer: stores a captured call while the program waits.

`append` is one `os.writev` of a header and the tensors' own memory. Entries for which it has returned survive
the death of the process; the sealer moves them into the store later. `gdnbench.store.journal.format`
describes the format.

A folder `<store>/.journal/<segment>/` holds the journal of one process:

    writer.lock    held (flock) by the writer for its life; the kernel releases it however the process ends
    sealer.lock    held by the one sealer that works on this segment
    00000000.log   entries; a new file begins when the last one is full; the sealer deletes sealed files
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gdnbench.handlers import raised_by_handler
from gdnbench.record import RecordDraft, RecordInfo, TensorDraft
from gdnbench.store.journal.carry import SMALLEST_CARRIED, StateCarry
from gdnbench.store.journal.codec import Buffer, Carried, buffer_of, info_json, plain_json, tensors_json
from gdnbench.store.journal.format import Kind, checksum, padding
from gdnbench.store.journal.log import JournalLog

if TYPE_CHECKING:
    from torch import Tensor

MIB = 1 << 20
_POLL_SECONDS = 0.005  # while blocked; a sealer takes far longer to free a file
_STUCK_FACTOR = 10  # a live sealer that frees nothing is waited for this many times `patience_s`
_HEADER_ALLOWANCE = 16 << 10  # allowance for an entry's bytes besides its payloads


@dataclass(frozen=True, slots=True)
class JournalStats:
    records: int  # appended, or begun and ended
    bytes: int  # written to the journal in all
    dropped: int  # calls that are not in the journal: queue full, or write error
    queued_bytes: int  # in journal files that are not sealed yet
    blocked_seconds: float
    error: str | None  # why the journal turned itself off


class JournalWriter:
    """Appends records to the journal of a new segment. Thread safe; after a fork only the parent may use it.

    Disk errors do not raise: on the first, the writer turns itself off, keeps the error's text and counts
    later calls as dropped. BadInputError for a draft that is not contiguous on the CPU or whose fields JSON
    cannot hold; OSError only from the constructor, if the journal cannot be created.

    `limit_bytes` limits the bytes in unsealed files. Beyond it `append` waits for the sealer ("block") or
    drops the record ("drop"). A blocked writer whose segment has had no live sealer for `patience_s` seconds
    drops records until something is sealed again, so that the program never hangs for good. `compression` is
    the zstd level of the store, None for off. `keep_bytes` limits the sealed size of this journal; the oldest
    batches are dropped for new ones.
    """

    def __init__(
        self,
        store: Path,
        *,
        process: Mapping[str, Any],
        provenance: Mapping[str, Any],
        kind: str = "capture",
        limit_bytes: int = 4096 * MIB,
        when_full: Literal["block", "drop"] = "block",
        file_bytes: int = 64 * MIB,
        compression: int | None = 1,
        carry_bytes: int = 256 * MIB,
        patience_s: float = 30.0,
        keep_bytes: int | None = None,
    ) -> None:
        self._pid = os.getpid()
        self.segment = f"{time.time_ns() // 1_000_000}-{self._pid}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._limit = limit_bytes
        self._blocks = when_full == "block"
        # At least four files fit the queue, so that filling one never waits for its own sealing.
        self._file_bytes = min(file_bytes, max(limit_bytes // 4, 1))
        self._patience = patience_s
        self._carry = StateCarry(carry_bytes)
        self._records = self._dropped = 0
        self._blocked_seconds = 0.0
        self._given_up_at: int | None = None  # queued bytes when the last wait was given up
        self._error: str | None = None
        opening = {
            "kind": kind,
            "segment": self.segment,
            "compression": compression,
            "process": dict(process),
            "provenance": dict(provenance),
            **({} if keep_bytes is None else {"keep_bytes": keep_bytes}),
        }
        self._log = JournalLog(store, self.segment, plain_json(opening))
        _writers.add(self)

    def append(self, draft: RecordDraft) -> bool:
        """Write a finished call. False: it was dropped and counted."""
        return self._put(Kind.RECORD, draft.info, draft.before, draft.after) is not None

    def carried(self, layer: str, name: str, tensor: Tensor) -> Tensor | None:
        """The kept copy of `tensor`, if `layer` last left exactly these bytes in tensor `name`; else None.

        The copy does not change until the record that has it as an input is appended, begun or dropped.
        `tensor` is contiguous and on the CPU.
        """
        if tensor.nbytes < SMALLEST_CARRIED or os.getpid() != self._pid:
            return None
        with self._lock:
            return self._carry.lend(layer, name, tensor)

    def begin(self, info: RecordInfo, before: Mapping[str, TensorDraft]) -> int | None:
        """Write a call's inputs to disk; the returned token is for `end`. None: it was dropped and
        counted."""
        return self._put(Kind.BEGIN, info, before, {})

    def end(self, token: int | None, info: RecordInfo, after: Mapping[str, TensorDraft]) -> bool:
        """Finish the call that `token` began. Never waits for room, as its inputs are stored already."""
        return token is not None and self._put(Kind.END, info, {}, after, begun=token) is not None

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write that the process ended in order, with its summary. Idempotent."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._log.is_open:
                return
            closing = {
                "summary": dict(summary),
                "blocked_seconds": self._blocked_seconds,
                "error": self._error,
            }
            # On a full disk the segment ends like a killed one; its last entry has the count of drops so far.
            with contextlib.suppress(OSError):
                self._log.write(
                    Kind.CLOSE, plain_json(closing), (), records=self._records, dropped=self._dropped
                )
            self._log.release()

    @property
    def stats(self) -> JournalStats:
        with self._lock:
            return JournalStats(
                records=self._records,
                bytes=self._log.bytes_written,
                dropped=self._dropped,
                queued_bytes=self._log.queued_bytes(),
                blocked_seconds=self._blocked_seconds,
                error=self._error,
            )

    def _put(
        self,
        kind: Kind,
        info: RecordInfo,
        before: Mapping[str, TensorDraft],
        after: Mapping[str, TensorDraft],
        begun: int | None = None,
    ) -> int | None:
        """Write an entry and return its number; None if the call was dropped."""
        if os.getpid() != self._pid:
            return None
        entering = {name: buffer_of(name, draft.data) for name, draft in before.items()}
        leaving = {name: buffer_of(name, draft.data) for name, draft in after.items()}
        begin = "" if begun is None else f'"begin":{begun},'
        header = f'{{{begin}"info":{info_json(info)}'
        with self._lock:
            if self._error is not None or not self._log.is_open:
                self._dropped += 1
                return None
            try:
                nbytes = sum(map(len, entering.values())) + sum(map(len, leaving.values()))
                if kind is not Kind.END and not self._make_room(nbytes + _HEADER_ALLOWANCE):
                    self._dropped += 1
                    return None
                carried = self._find_carried(info.layer, entering)
                header += f',"before":{tensors_json(before, carried)},"after":{tensors_json(after, {})}}}'
                fresh = [buffer for name, buffer in entering.items() if name not in carried]
                number, places = self._write(kind, header.encode(), fresh, leaving)
                # First give back, then keep: a returned copy's memory takes its new state.
                for name, buffer in entering.items():
                    self._carry.give_back(info.layer, name, buffer)
                # Pure outputs are no call's inputs under that name; END does not know its inputs.
                for name in leaving.keys() & entering.keys() if kind is Kind.RECORD else leaving:
                    self._carry.keep(info.layer, name, after[name].data, places[name])
                if kind is Kind.BEGIN:
                    self._log.sync()
            except OSError as error:
                if raised_by_handler(error):
                    raise  # TimeoutError is an OSError
                self._error = f"{type(error).__name__}: {error}"
                self._dropped += 1
                return None
            if kind is not Kind.BEGIN:
                self._records += 1
            return number

    def _find_carried(self, layer: str, entering: Mapping[str, Buffer]) -> dict[str, Carried]:
        found = {name: self._carry.find(layer, name, buffer) for name, buffer in entering.items()}
        return {name: place for name, place in found.items() if place is not None}

    def _write(
        self, kind: Kind, header: bytes, fresh: list[Buffer], leaving: Mapping[str, Buffer]
    ) -> tuple[int, dict[str, Carried]]:
        """Write an entry; returns its number, and where the tensors in `leaving` are now."""
        payloads = (*fresh, *leaving.values())
        sums = [checksum(payload) if len(payload) >= SMALLEST_CARRIED else 0 for payload in payloads]
        # Small payloads are never referred to, and get one common sum: a sum takes at least 3 us.
        small = [bytes(payload) for payload in payloads if len(payload) < SMALLEST_CARRIED]
        padded = [payload.ljust(len(payload) + padding(len(payload)), b"\0") for payload in small]
        total = sum(sums) + checksum(b"".join(padded))
        number, offsets = self._log.write(
            kind, header, payloads, records=self._records, dropped=self._dropped, total=total
        )
        places = [Carried(at, its_sum) for at, its_sum in zip(offsets, sums, strict=True)]
        return number, dict(zip(leaving, places[len(fresh) :], strict=True))

    def _make_room(self, nbytes: int) -> bool:
        """Make room for `nbytes` more in a file and in the queue; False: drop the record."""
        if self._log.has_records and self._log.offset + nbytes > self._file_bytes:
            self._next_file()
        if not self._over_limit(nbytes):
            return True
        if self._log.has_records:  # close the file, since the sealer deletes only closed ones
            self._next_file()
        return self._blocks and self._wait_for_room(nbytes)

    def _over_limit(self, nbytes: int) -> bool:
        """Whether `nbytes` more exceed the limit. A record larger than the limit is admitted alone."""
        if self._log.queued_at_most + nbytes <= self._limit:
            return False
        queued = self._log.queued_bytes()
        alone = queued == self._log.offset and not self._log.has_records
        return queued + nbytes > self._limit and not alone

    def _wait_for_room(self, nbytes: int) -> bool:
        """Wait until the sealer frees a file. False if it shows no life, and until it frees one."""
        queued = self._log.queued_bytes()
        if self._given_up_at is not None and queued >= self._given_up_at:
            return False
        self._given_up_at = None
        started = freed = alive = now = time.monotonic()
        while over := self._over_limit(nbytes):
            if now - alive > self._patience or now - freed > _STUCK_FACTOR * self._patience:
                self._given_up_at = self._log.queued_bytes()
                break
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if self._log.sealer_lives():
                alive = now
            if (left := self._log.queued_bytes()) < queued:
                queued, freed = left, now
        self._blocked_seconds += now - started
        return not over

    def _next_file(self) -> None:
        self._log.next_file(records=self._records, dropped=self._dropped)
        self._carry.next_file()

    def _leave_to_parent(self) -> None:
        """In a forked child, close the descriptors: the lock must be released when the parent dies."""
        self._lock = threading.Lock()
        self._log.release()


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
