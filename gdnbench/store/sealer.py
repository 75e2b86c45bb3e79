# SPDX-License-Identifier: Apache-2.0
"""Moves journals into the store: batches of finished records, each committed atomically.

The store itself records the progress: a batch is named by the number of its first record and states its
record count. A sealer that is killed and restarted continues after the last committed batch, so no record is
lost or stored twice. A journal file is deleted only when all its records are in the store.

    python -P -m gdnbench.store.sealer STORE [--until-stdin-closes] [--host NAME]

runs the sealer as a low-priority process. It ends when every journal that it saw is sealed and nothing new
has come for a second; with the first option, not before standard input closes. It leaves journals of other
hosts to those hosts, except hosts named by `--host`, whose processes must have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gdnbench.errors import GdnbenchError, StoreError
from gdnbench.printable import printable
from gdnbench.store.journal.host import host_mark, other_host
from gdnbench.store.journal.log import UNBORN, WRITER_LOCK
from gdnbench.store.journal.reader import writer_lives
from gdnbench.store.layout import JOURNAL, is_name
from gdnbench.store.segment_sealer import SegmentSealer
from gdnbench.store.upload import uploading

IDLE_SECONDS = 0.05
LINGER_SECONDS = 1.0
UNBORN_SECONDS = 60.0
UNBORN_ELSEWHERE_SECONDS = 86400.0  # more than the clocks of two hosts differ


class Tally(NamedTuple):
    """What a sealer has done for one segment."""

    records: int
    bytes: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sealer has done since it was created, and what is left."""

    records: int = 0  # sealed
    bytes: int = 0  # of the sealed journal entries
    queued_bytes: int = 0  # in journal files
    dropped: int = 0  # calls that never reached a journal, as the journals count them
    live: tuple[str, ...] = ()  # segments whose process lives
    busy: tuple[str, ...] = ()  # segments of another sealer
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # segments left to other hosts -> host
    ended: tuple[str, ...] = ()  # segments that this sealer finished
    refused: tuple[str, ...] = ()  # why a journal cannot be sealed
    of_segment: Mapping[str, Tally] = field(default_factory=dict)  # for the segments of this sealer


class Sealer:
    """Seals every journal of the store at `store`, existing and new. Not thread safe.

    `dead_only` skips journals of live processes. Journals of other hosts are skipped, except of those in
    `hosts`.
    """

    def __init__(self, store: Path, *, dead_only: bool = False, hosts: Collection[str] = ()) -> None:
        self._store = store
        self._dead_only = dead_only
        self._hosts = hosts
        self._segments: dict[str, SegmentSealer] = {}
        self._refused: dict[str, str] = {}

    def poll(self) -> Progress:
        """Seal what is ready now. StoreError, with the journals kept, if the store cannot be written."""
        live, busy, left = [], [], {}
        for name in self._journals():
            if name in self._segments or name in self._refused:
                continue
            folder = self._store / JOURNAL / name
            if (host := other_host(folder / WRITER_LOCK, self._hosts)) is not None:
                left[name] = host
            elif self._dead_only and writer_lives(folder):
                live.append(name)
            elif (sealer := SegmentSealer.try_lock(self._store, name)) is not None:
                self._segments[name] = sealer
            else:
                busy.append(name)
        for name, sealer in self._segments.items():
            if not sealer.ended and name not in self._refused:
                refusal = sealer.step()
                if refusal is not None:
                    self._refused[name] = refusal
        return self._progress(live, busy, left)

    def run_until(self, stop: Callable[[], bool], progress: Callable[[Progress], None]) -> Progress:
        """Poll, passing the state to `progress`, until `stop()` is true; then poll once more and release the
        segments.

        On return every journal whose process had ended when `stop()` first was true is sealed. StoreError as
        `poll`.
        """
        try:
            while True:
                is_last = stop()
                now = self.poll()
                progress(now)
                if is_last:
                    return now
                time.sleep(IDLE_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """Release the segments; another sealer may continue with them."""
        for sealer in self._segments.values():
            sealer.close()

    def _journals(self) -> list[str]:
        """Segments that have a journal, oldest first. Hidden folders are journals in the making, or abandoned
        ones."""
        folder = self._store / JOURNAL
        try:
            # Skip links: they may lead to another store, whose files are not ours to delete.
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        if folder.is_symlink():
            raise StoreError(f"{folder} is a symbolic link; a store holds only its own files")
        for name in names:
            if not is_name(name):
                self._clear_unborn(self._store / JOURNAL / name)
        return sorted(name for name in names if is_name(name))

    def _clear_unborn(self, folder: Path) -> None:
        """Remove a journal whose process died while making it; making one takes far less time than the wait
        here."""
        with contextlib.suppress(OSError):
            is_ours = folder.name.startswith(f"{UNBORN}{host_mark()}.")
            wait = UNBORN_SECONDS if is_ours else UNBORN_ELSEWHERE_SECONDS
            old = time.time() - folder.stat().st_mtime > wait
            if old and folder.name.startswith(UNBORN) and not writer_lives(folder):
                shutil.rmtree(folder)

    def _progress(self, live: list[str], busy: list[str], left: Mapping[str, str]) -> Progress:
        sealers = self._segments.values()
        live += [name for name, s in self._segments.items() if not s.ended and name not in self._refused]
        tallies = {
            name: Tally(sealer.sealed_here, sealer.bytes_here, sealer.reader.dropped)
            for name, sealer in self._segments.items()
        }
        return Progress(
            records=sum(tally.records for tally in tallies.values()),
            bytes=sum(tally.bytes for tally in tallies.values()),
            queued_bytes=sum(sealer.queued_bytes() for sealer in sealers),
            dropped=sum(tally.dropped for tally in tallies.values()),
            live=tuple(live),
            busy=tuple(busy),
            elsewhere=left,
            ended=tuple(name for name, sealer in self._segments.items() if sealer.ended),
            refused=tuple(self._refused.values()),
            of_segment=tallies,
        )


class _Patience:
    """Decides when the sealer process ends: when there was nothing to do for `LINGER_SECONDS`."""

    def __init__(self, until_stdin_closes: bool) -> None:
        self._waits_for_stdin = until_stdin_closes
        self._latest = Progress()
        self._quiet_since = time.monotonic()

    def record_progress(self, progress: Progress) -> None:
        if progress.live or progress.busy or len(progress.ended) > len(self._latest.ended):
            self._quiet_since = time.monotonic()
        self._latest = progress

    def is_over(self) -> bool:
        if self._waits_for_stdin:
            self._waits_for_stdin = not _stdin_closed()
            self._quiet_since = time.monotonic()
        return time.monotonic() - self._quiet_since >= LINGER_SECONDS


def _stdin_closed() -> bool:
    """Whether the other end of standard input is closed."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and os.read(0, 4096) == b""


def main(arguments: list[str] | None = None) -> int:
    """The sealer process; returns the exit code of the error that it met, if any."""
    parser = argparse.ArgumentParser(
        prog="python -P -m gdnbench.store.sealer", description=__doc__.split("\n")[0]
    )
    parser.add_argument("store", type=Path, help="folder of the store")
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="do not end before standard input does, even if idle",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="also seal what host NAME was recording; none of its processes may still be",
    )
    options = parser.parse_args(arguments)
    # An interrupt from the terminal is for the captured program; its records must still be sealed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    patience = _Patience(options.until_stdin_closes)
    try:
        with uploading(options.store) as upload:
            last = Sealer(options.store, hosts=options.host).run_until(
                patience.is_over, patience.record_progress
            )
        if upload is not None and upload.error is not None:
            raise upload.error
    except GdnbenchError as error:
        print(f"gdnbench sealer: {printable(error)}", file=sys.stderr)
        return int(error.exit_code)
    for refusal in last.refused:
        print(f"gdnbench sealer: {printable(refusal)}", file=sys.stderr)
    return 2 if last.refused else 0


if __name__ == "__main__":
    sys.exit(main())
