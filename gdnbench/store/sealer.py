"""Moves journals into the store: batches of finished records, each visible at once or not at all.

What is sealed is read off the store itself: a batch is named by the number of its first record and says how
many it holds. A sealer that is killed at any instant and started again goes on after the last visible batch,
so no record is lost and none comes twice. A journal file is deleted only when all its records are visible.

    python -m gdnbench.store.sealer STORE [--until-stdin-closes] [--host NAME]

runs it as a low-priority process: until standard input closes if so asked, and in any case until every
journal it saw has been sealed and nothing new came for a second. Journals of other hosts are theirs to seal,
but for those named by `--host`, which must have ended.
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
from gdnbench.store.journal.host import elsewhere, unborn_mark
from gdnbench.store.journal.log import UNBORN, WRITER_LOCK
from gdnbench.store.journal.reader import writer_lives
from gdnbench.store.layout import JOURNAL, is_name
from gdnbench.store.segment_sealer import SegmentSealer
from gdnbench.store.upload import uploading

IDLE_SECONDS = 0.05
LINGER_SECONDS = 1.0
UNBORN_SECONDS = 60.0
UNBORN_ELSEWHERE_SECONDS = 86400.0  # also more than clocks of two hosts are apart


class Tally(NamedTuple):
    """What a sealer has done of one segment."""

    records: int
    bytes: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sealer has done since it was made, and what is left."""

    records: int = 0  # sealed
    bytes: int = 0  # of the journal entries sealed
    queued_bytes: int = 0  # in journal files
    dropped: int = 0  # calls that never reached a journal, as far as the journals tell
    live: tuple[str, ...] = ()  # segments whose process lives
    busy: tuple[str, ...] = ()  # segments that another sealer works on
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # segments left to other hosts -> host
    ended: tuple[str, ...] = ()  # segments that this sealer finished
    refused: tuple[str, ...] = ()  # why a journal cannot be sealed
    of_segment: Mapping[str, Tally] = field(default_factory=dict)  # of those that this sealer works on


class Sealer:
    """Seals every journal of the store at `store`, old ones and those that appear. One thread at a time.

    `dead_only` leaves alone the journals of processes that live. Those of other hosts are always left
    alone, but for the ones named in `hosts`.
    """

    def __init__(self, store: Path, *, dead_only: bool = False, hosts: Collection[str] = ()) -> None:
        self._store = store
        self._dead_only = dead_only
        self._hosts = hosts
        self._segments: dict[str, SegmentSealer] = {}
        self._refused: dict[str, str] = {}

    def poll(self) -> Progress:
        """Seal what is ready now. StoreError if the store cannot be written; the journals are kept then."""
        live, busy, left = [], [], {}
        for name in self._journals():
            if name in self._segments or name in self._refused:
                continue
            folder = self._store / JOURNAL / name
            if (host := elsewhere(folder / WRITER_LOCK, self._hosts)) is not None:
                left[name] = host
            elif self._dead_only and writer_lives(folder):
                live.append(name)
            elif (sealer := SegmentSealer.take(self._store, name)) is not None:
                self._segments[name] = sealer
            else:
                busy.append(name)
        for name, sealer in self._segments.items():
            if not sealer.ended and name not in self._refused:
                refusal = sealer.step()
                if refusal is not None:
                    self._refused[name] = refusal
        return self._progress(live, busy, left)

    def run(self, stop: Callable[[], bool], progress: Callable[[Progress], None]) -> Progress:
        """Poll, telling `progress` each time, until `stop()` holds; then once more, and let go.

        On return every journal whose process had ended when `stop()` first held is sealed. StoreError as
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
        """Let go of the segments; whoever comes next goes on with them."""
        for sealer in self._segments.values():
            sealer.close()

    def _journals(self) -> list[str]:
        """Segments that have a journal, oldest first. Hidden ones are in the making, or were left so."""
        folder = self._store / JOURNAL
        try:
            # A link may lead into another store, or anywhere: what is there is not ours to seal and delete.
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
        """Remove a journal whose process died while making it, which takes far less than the wait here."""
        with contextlib.suppress(OSError):
            is_ours = folder.name.startswith(f"{UNBORN}{unborn_mark()}.")
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
    """Decides when the sealer process may end: nothing to do and nothing new for `LINGER_SECONDS`."""

    def __init__(self, until_stdin_closes: bool) -> None:
        self._waits_for_stdin = until_stdin_closes
        self._latest = Progress()
        self._quiet_since = time.monotonic()

    def see(self, progress: Progress) -> None:
        if progress.live or progress.busy or len(progress.ended) > len(self._latest.ended):
            self._quiet_since = time.monotonic()
        self._latest = progress

    def is_over(self) -> bool:
        if self._waits_for_stdin:
            self._waits_for_stdin = not _stdin_closed()
            self._quiet_since = time.monotonic()
        return time.monotonic() - self._quiet_since >= LINGER_SECONDS


def _stdin_closed() -> bool:
    """Whether whoever holds the other end of standard input has let go of it."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and os.read(0, 4096) == b""


def main(arguments: list[str] | None = None) -> int:
    """The sealer process; the exit code is that of the error it met."""
    parser = argparse.ArgumentParser(
        prog="python -m gdnbench.store.sealer", description=__doc__.split("\n")[0]
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
    # An interrupt from the terminal is for the program being captured; what it wrote is still to be sealed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    patience = _Patience(options.until_stdin_closes)
    try:
        with uploading(options.store) as upload:
            last = Sealer(options.store, hosts=options.host).run(patience.is_over, patience.see)
        if upload is not None and upload.error is not None:
            raise upload.error
    except GdnbenchError as error:
        print(f"gdnbench sealer: {error}", file=sys.stderr)
        return int(error.exit_code)
    for refusal in last.refused:
        print(f"gdnbench sealer: {refusal}", file=sys.stderr)
    return 2 if last.refused else 0


if __name__ == "__main__":
    sys.exit(main())
