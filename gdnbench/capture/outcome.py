# SPDX-License-Identifier: Apache-2.0
"""The result of a captured command: its exit status and the summary on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnbench.capture.report import segments_in
from gdnbench.errors import Exit, StoreError
from gdnbench.store.journal.reader import writer_lives
from gdnbench.store.layout import JOURNAL
from gdnbench.store.sealer import Progress
from gdnbench.store.segment_sealer import dropped_oldest, sealed_records
from gdnbench.store.summary import UncapturedCalls, segment_summary, uncaptured_calls
from gdnbench.units import counted, human_bytes


def _module(target: str) -> str:
    return target.partition(":")[0]


def _by_module(targets: Iterable[str]) -> tuple[str, ...]:
    """`module (function, function)` for each module; a target without a function as it is."""
    functions: dict[str, list[str]] = {}
    for target in targets:
        module, _, function = target.partition(":")
        functions.setdefault(module, []).extend([function] if function else [])
    return tuple(f"{name} ({', '.join(found)})" if found else name for name, found in functions.items())


def _total_by_reason(closed: Iterable[Mapping[str, Any]], counts: str) -> dict[str, int]:
    totals: dict[str, int] = {}
    for note in closed:
        for reason, count in note.get(counts, {}).items():
            totals[reason] = totals.get(reason, 0) + count
    return totals


def _total_uncaptured(notes: Iterable[Mapping[str, Any]]) -> dict[str, UncapturedCalls]:
    """Of all processes, by function. A process that was killed has noted the function and no count."""
    totals: dict[str, UncapturedCalls] = {}
    for note in notes:
        if note["event"] == "uncaptured":
            found = {str(note.get("function")): UncapturedCalls(0, 0, str(note.get("reason")))}
        else:
            found = uncaptured_calls(note)
        for function, more in found.items():
            known = totals.get(function, UncapturedCalls(0, 0, more.reason))
            totals[function] = UncapturedCalls(known.calls + more.calls, known.once + more.once, known.reason)
    return totals


def _not_stored(store: Path, segment: str) -> tuple[str, ...]:
    """What the end of a segment says of records that could not be stored; empty while it has no end."""
    try:
        summary = segment_summary(store, segment)
    except StoreError:
        return ()
    return () if summary is None else summary.damage


@dataclass(frozen=True, slots=True)
class Outcome:
    child_status: int  # as a shell reports it
    records: int
    bytes: int
    dropped: int
    digested: int  # calls of which an access log was kept
    recovered: int  # records of other processes that were in the store's journal
    unsealed: tuple[str, ...]  # segments of processes that outlive the command
    never_imported: tuple[str, ...]  # modules of selected targets, with the functions
    never_called: tuple[str, ...]  # selected targets that were wrapped
    called: tuple[str, ...]
    processes: int  # Python processes in which capture started
    failures: int
    skipped: Mapping[str, int]  # calls in graphs that were not recorded, by function and reason
    graph_calls: int  # captured into CUDA graphs
    graph_replays: int  # replays that were recorded
    passed_over: Mapping[str, int]  # calls that adapters did not record, by reason
    unclaimed: Mapping[str, int]  # steps or calls whose requests are unknown, by error
    uncaptured: Mapping[str, UncapturedCalls]  # calls of functions that no adapter records, by function
    reached_max_bytes: bool
    first_over_bytes: int  # of the smallest record that `--max-bytes` had no room for; 0 without one
    not_stored: tuple[str, ...]  # why records of a journal are not in the store
    dropped_oldest: int  # sealed records deleted for later ones
    looked_at: int  # calls that a trigger evaluated
    triggered: int
    ring_short: int  # calls that --around asked for and --ring-bytes had no room for
    unfollowed: tuple[str, ...]  # layers that --on-lineage could not check to the end
    problems: tuple[str, ...]
    not_arrived: str | None = None  # what has not reached the object store, why, and what to do
    judged: bool = False  # the records wait to be judged, in a store that is deleted then

    @classmethod
    def from_notes(
        cls,
        store: Path,
        returncode: int,
        progress: Progress,
        targets: Sequence[str],
        notes: Sequence[Mapping[str, Any]],
        sealer_error: str | None,
        *,
        judged: bool = False,
    ) -> Outcome:
        """Build the outcome from the child's return code, the sealer's last figures and the processes'
        events.

        The sealer of another command may have sealed part of a journal, so record counts come from the store.
        """

        def noted(event: str) -> list[Mapping[str, Any]]:
            return [note for note in notes if note["event"] == event]

        def total(count: str) -> int:
            return sum(int(note.get(count, 0)) for note in closed)

        called = {note.get("target") for note in noted("called")}
        wrapped = {note.get("target") for note in noted("wrapped")}
        imported = {note.get("module") for note in noted("imported")}
        imported |= {_module(name) for name in called if name is not None}
        closed = noted("closed")
        failures = [note["first_failure"] for note in closed if note.get("first_failure")]
        problems = [note["text"] for note in noted("problem") if "text" in note]
        mine = segments_in(notes)
        if mine is None:
            mine = frozenset(progress.of_segment)
        here = [tally for name, tally in progress.of_segment.items() if name in mine]
        records = {name: tally.records for name, tally in progress.of_segment.items()}
        records |= {name: sealed_records(store, name) for name in mine}
        oldest = {name: dropped_oldest(store, name) for name in mine}
        recovered = sum(count for name, count in records.items() if name not in mine)
        live = progress.live
        if sealer_error is not None:
            # The sealer's last figures are of a time when the processes may still have been running.
            live = tuple(name for name in sorted(mine) if writer_lives(store / JOURNAL / name))
            problems.append(
                f"the journal could not be sealed, and its calls are lost: {sealer_error}"
                if judged
                else f"the journal could not be sealed, and is kept: {sealer_error}"
            )
        return cls(
            child_status=128 - returncode if returncode < 0 else returncode,
            records=sum(records[name] - oldest[name] for name in mine),
            bytes=max(sum(tally.bytes for tally in here), total("bytes")),
            dropped=max(sum(tally.dropped for tally in here), total("dropped")),
            digested=total("digested"),
            recovered=recovered,
            unsealed=tuple(name for name in live if name in mine),
            never_imported=_by_module(name for name in targets if _module(name) not in imported),
            never_called=tuple(name for name in targets if name in wrapped and name not in called),
            called=tuple(name for name in targets if name in called),
            processes=len(noted("started")),
            failures=total("failures"),
            skipped=_total_by_reason(closed, "skipped"),
            graph_calls=total("graph_calls"),
            graph_replays=total("graph_replays"),
            passed_over=_total_by_reason(closed, "passed_over"),
            unclaimed=_total_by_reason(closed, "unclaimed"),
            uncaptured=_total_uncaptured((*noted("uncaptured"), *closed)),
            reached_max_bytes=any(note.get("reached_max_bytes") for note in closed),
            first_over_bytes=min(filter(None, (note.get("first_over_bytes") for note in closed)), default=0),
            not_stored=tuple(what for name in sorted(mine) for what in _not_stored(store, name)),
            looked_at=total("looked_at"),
            triggered=total("triggered"),
            ring_short=total("ring_short"),
            unfollowed=tuple(sorted({name for note in closed for name in note.get("unfollowed", ())})),
            dropped_oldest=sum(oldest.values()),
            problems=(*progress.refused, *problems, *dict.fromkeys(failures)),
            judged=judged,
        )

    @property
    def exit_status(self) -> int:
        if self.child_status:
            return self.child_status
        if self.not_arrived is not None:
            return Exit.CANNOT_RUN
        return Exit.PASS if self.records else Exit.MISMATCH

    def summary(self, store: Path | str) -> list[str]:
        """Lines for stderr; the first says what was captured."""
        lines = [self._captured(store)]
        if not self.records:
            lines += self._why_nothing()
        if self.failures:
            lines.append(f"{self.failures} calls could not be recorded (the program was not disturbed)")
        lines += [f"{count} calls were not recorded: {reason}" for reason, count in self.passed_over.items()]
        lines += [f"{count} calls were not recorded: {reason}" for reason, count in self.skipped.items()]
        lines += [
            f"{count} steps or calls are recorded without their requests: {error}"
            for error, count in self.unclaimed.items()
        ]
        lines += [f"not captured: {calls.of(name)}" for name, calls in self.uncaptured.items()]
        if self.graph_calls:
            lines.append(
                f"{self.graph_calls} calls were captured into CUDA graphs; {self.graph_replays} replays were"
                " recorded"
            )
        if self.looked_at:
            lines.append(f"{self.looked_at} calls were looked at; a trigger held for {self.triggered}")
        if self.ring_short:
            lines.append(
                f"{self.ring_short} calls did not wait as long as --around asks for; give more --ring-bytes"
            )
        if self.unfollowed:
            lines.append(
                f"--on-lineage did not check {counted(len(self.unfollowed), 'layer')} to the end: calls came"
                " out of order, from several threads or from two layers of one name; the first:"
                f" {self.unfollowed[0]}"
            )
        if self.reached_max_bytes and self.records:
            lines.append("--max-bytes was reached; later calls were not recorded")
        if self.not_stored:
            lines.append(
                f"{counted(len(self.not_stored), 'part')} of the journal could not be stored; the first:"
                f" {self.not_stored[0]}"
            )
        if self.dropped_oldest:
            lines.append(f"{self.dropped_oldest} older records were dropped to stay within --max-bytes")
        if self.recovered:
            lines.append(
                f"{self.recovered} records of other processes were in its journal and are sealed now"
            )
        if self.unsealed:
            lines.append(self._living_on(len(self.unsealed)))
        if self.not_arrived is not None:
            lines.append(self.not_arrived)
        return lines + [f"problem: {text}" for text in self.problems]

    def _living_on(self, count: int) -> str:
        if self.judged:
            processes = "1 process" if count == 1 else f"{count} processes"
            return f"later calls of {processes} of the command, alive after its end, are not judged"
        if count == 1:
            return "1 process of the command lives on and is still being recorded"
        return f"{count} processes of the command live on and are still being recorded"

    def _captured(self, store: Path | str) -> str:
        dropped = f", {self.dropped} dropped" if self.dropped else ""
        status = f"; the command ended with status {self.child_status}" if self.child_status else ""
        # The byte count includes records that were deleted again.
        size = "" if self.dropped_oldest else f", {human_bytes(self.bytes)}"
        if self.judged:
            return f"{counted(self.records, 'call')} recorded to be judged{size}{dropped}{status}"
        if self.digested:
            return f"{counted(self.digested, 'call')} logged as digests{size} in {store}{dropped}{status}"
        return f"{counted(self.records, 'record')}{size} in {store}{dropped}{status}"

    def _why_nothing(self) -> list[str]:
        lines = ["nothing was captured:"]
        if not self.processes:
            lines[0] += (
                " the command started no Python in which gdnbench is installed and that imported anything; "
                "install gdnbench into the environment that the command uses"
            )
        if self.reached_max_bytes:
            lines.append(
                f"  the first call needs {self.first_over_bytes:,} bytes, more than --max-bytes allows;"
                " give it more"
            )
        for what, names in (
            ("called but not selected or not recorded", self.called),
            ("imported but never called", self.never_called),
            ("never imported", self.never_imported),
        ):
            lines += [f"  {what}: {name}" for name in names]
        return lines
