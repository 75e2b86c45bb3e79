"""Moves journals into the store: batches of finished records, each visible at once or not at all.

What is sealed is read off the store itself: a batch is named by the number of its first record and says how many it
holds. A sealer that is killed at any instant and started again goes on after the last visible batch, so no record is
lost and none comes twice. A journal file is deleted only when all its records are visible.

    python -m gdnbench.store.sealer STORE [--until-stdin-closes]

runs it as a low-priority process: until standard input closes if so asked, and in any case until every journal it
saw has been sealed and nothing new came for a second.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gdnbench.errors import GdnbenchError
from gdnbench.store.layout import JOURNAL, is_name
from gdnbench.store.segment_sealer import SegmentSealer

IDLE_SECONDS = 0.05
LINGER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sealer has done since it was made, and what is left."""

    records: int  # sealed
    bytes: int  # of the journal entries sealed
    queued_bytes: int  # in journal files
    dropped: int  # calls that never reached a journal, as far as the journals tell
    live: tuple[str, ...]  # segments whose process lives
    busy: tuple[str, ...]  # segments that another sealer works on
    ended: tuple[str, ...]  # segments that this sealer finished
    refused: tuple[str, ...]  # journals that cannot be read or sealed, each with the reason

    @property
    def settled(self) -> bool:
        """Whether nothing is left that this sealer could do, now or once a process ends."""
        return not self.live and not self.busy


class Sealer:
    """Seals every journal of the store at `store`, old ones and those that appear. One thread at a time."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._segments: dict[str, SegmentSealer] = {}
        self._refused: dict[str, str] = {}

    def poll(self) -> Progress:
        """Seal what is ready now. StoreError if the store cannot be written; the journals are then still there."""
        busy = []
        for name in self._journals():
            if name not in self._segments and name not in self._refused:
                sealer = SegmentSealer.take(self._store, name)
                if sealer is None:
                    busy.append(name)
                else:
                    self._segments[name] = sealer
        for name, sealer in self._segments.items():
            if not sealer.ended and name not in self._refused:
                refusal = sealer.step()
                if refusal is not None:
                    self._refused[name] = refusal
        return self._progress(busy)

    def run(self, stop: Callable[[], bool], progress: Callable[[Progress], None]) -> Progress:
        """Poll, telling `progress` each time; once `stop()` holds, until all is settled and nothing new comes.

        StoreError as `poll`.
        """
        quiet_since = time.monotonic()
        while True:
            asked = stop()
            now = self.poll()
            progress(now)
            if not asked or not now.settled or self._unseen():
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= LINGER_SECONDS:
                return now
            time.sleep(IDLE_SECONDS)

    def close(self) -> None:
        """Let go of the segments; whoever comes next goes on with them."""
        for sealer in self._segments.values():
            sealer.close()

    def _journals(self) -> list[str]:
        """Segments that have a journal, oldest first. Hidden ones are still being made."""
        try:
            names = os.listdir(self._store / JOURNAL)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if is_name(name))

    def _unseen(self) -> bool:
        return any(name not in self._segments and name not in self._refused for name in self._journals())

    def _progress(self, busy: list[str]) -> Progress:
        sealers = self._segments.values()
        return Progress(
            records=sum(sealer.sealed_here for sealer in sealers),
            bytes=sum(sealer.bytes_here for sealer in sealers),
            queued_bytes=sum(sealer.queued_bytes() for sealer in sealers),
            dropped=sum(sealer.reader.dropped for sealer in sealers),
            live=tuple(n for n, s in self._segments.items() if not s.ended and n not in self._refused),
            busy=tuple(busy),
            ended=tuple(name for name, sealer in self._segments.items() if sealer.ended),
            refused=tuple(self._refused.values()),
        )


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
    options = parser.parse_args(arguments)
    # An interrupt from the terminal is for the program being captured; what it wrote is still to be sealed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(19)
    sealer = Sealer(options.store)
    closed = False

    def may_end() -> bool:
        nonlocal closed
        closed = closed or not options.until_stdin_closes or _stdin_closed()
        return closed

    try:
        last = sealer.run(may_end, lambda _: None)
    except GdnbenchError as error:
        print(f"gdnbench sealer: {error}", file=sys.stderr)
        return int(error.exit_code)
    for refusal in last.refused:
        print(f"gdnbench sealer: {refusal}", file=sys.stderr)
    return 2 if last.refused else 0


if __name__ == "__main__":
    sys.exit(main())
