# SPDX-License-Identifier: Apache-2.0
"""Opens a store for a user; first seals what dead processes left in its journal."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gdnbench.errors import StoreError
from gdnbench.printable import printable
from gdnbench.store.address import Address, is_url, local_path
from gdnbench.store.layout import JOURNAL, METADATA, is_name
from gdnbench.store.reader import Store
from gdnbench.store.summary import SegmentSummary, segment_summary
from gdnbench.units import counted

if TYPE_CHECKING:
    from gdnbench.store.sealer import Progress


def open_store(path: Address, *, notes: TextIO | None = None) -> Store:
    """The store at `path`, after sealing the journals of dead processes if it is a writable folder.

    Prints on `notes` (default stderr) what was recovered and what was not. StoreError if there is no store,
    or as `Store.open`.
    """
    if is_url(path):  # journals never leave the machine that writes them
        return Store.open(path)
    place = local_path(path)
    seal_dead(place, sys.stderr if notes is None else notes)
    if _journals(place) and not (place / METADATA).exists():
        raise StoreError(
            f"{place} has no sealed record yet, only journals; try again once its program has recorded for a"
            " few seconds"
        )
    return Store.open(place)


def seal_dead(place: Path, stream: TextIO) -> None:
    """Seal the journals of dead processes in the store at `place`, if it is writable; prints the result on
    `stream`."""
    segments = _journals(place)
    if segments and os.access(place, os.W_OK) and os.access(place / JOURNAL, os.W_OK):
        try:
            _seal(place, stream)
        except StoreError as error:
            _print_note(f"the journal of {place} is kept, it cannot be sealed: {error}", stream)
    elif segments:
        _print_note(
            f"{place} cannot be written; what its {len(segments)} journals hold is not listed", stream
        )


def _journals(place: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(place / JOURNAL) if is_name(name))
    except OSError:
        return []  # opening the store reports its own error


def _seal(place: Path, stream: TextIO) -> None:
    # Imported here: sealing needs torch, and most stores have nothing to seal.
    from gdnbench.store.sealer import Sealer

    sealer = Sealer(place, dead_only=True)
    try:
        progress = sealer.poll()
    finally:
        sealer.close()
    for line in _account(place, progress):
        _print_note(line, stream)


def _print_note(text: str, stream: TextIO) -> None:
    print(f"gdnbench: {printable(text)}", file=stream)


def _account(place: Path, progress: Progress) -> Iterator[str]:
    for segment in progress.ended:
        summary = segment_summary(place, segment)
        if summary is not None:
            yield f"recovered the journal of segment {segment}: {', '.join(_findings(summary))}"
    for segment in progress.live:
        yield f"segment {segment} is still being written; what is in its journal is not listed"
    for segment, host in progress.elsewhere.items():
        yield (
            f"segment {segment} is being recorded on host {host}; what is in its journal is not "
            "listed; if nothing records there any more: python -P -m gdnbench.store.sealer "
            f"{shlex.quote(str(place))} --host {shlex.quote(host)}"
        )
    for segment in progress.busy:
        yield f"segment {segment} is being sealed by another process; what is in its journal is not listed"
    for reason in progress.refused:
        yield f"a journal is kept: {reason}"


def _findings(summary: SegmentSummary) -> Iterator[str]:
    yield counted(summary.records, "record")
    if summary.dropped_oldest:
        yield f"the oldest {summary.dropped_oldest} of them dropped to stay within --max-bytes"
    if summary.unfinished:
        yield f"{summary.unfinished} of them with inputs only, their calls never came back"
    if summary.torn:
        yield f"skipped {summary.torn}"
    if summary.dropped:
        yield f"{summary.dropped} calls had been dropped"
    if summary.error:
        yield f"its process stopped recording: {summary.error}"
    yield from (f"skipped {damage}" for damage in summary.damage)
