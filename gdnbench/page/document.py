# SPDX-License-Identifier: Apache-2.0
"""Turns runs into the page's data: an index of all records, read at once, and packed blocks of record
details.

The page unpacks only the blocks that the reader looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gdnbench.page.embed import packed_json
from gdnbench.page.provenance import provenance
from gdnbench.page.repeat import repeat_command
from gdnbench.report.captured import captured_ranges
from gdnbench.report.growth import error_growth, round_for_chart
from gdnbench.report.history import changes, closest_limits, package_versions, run_commit, run_time, tracks
from gdnbench.report.ranking import Entry, rank_records, severities
from gdnbench.report.runs import Run, as_replayed
from gdnbench.version import __version__

BLOCK = 32
"""Records in one packed block: enough to share common text, few enough to unpack at a keystroke."""

GRID_CHARACTERS = 96 << 20
"""Limit of all grids on a page, as JSON. Beyond it, the passing records furthest from their limits have
none."""


MOST_NAMED = 3
"""Kernels that a title names; of more it gives the number."""


def page_title(runs: Sequence[Run]) -> str:
    """The names of the kernels that were replayed, or of the stores that were compared, without folders."""
    names = list(dict.fromkeys(_title(run.header) for run in runs))
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} kernels"


def _title(header: Mapping[str, str]) -> str:
    if header.get("command") == "diff":
        return f"{_last(header.get('a', '?'))} against {_last(header.get('b', '?'))}"
    place, colon, function = header.get("kernel", "?").rpartition(":")
    return f"{_last(place)}{colon}{function}"


def _last(path: str) -> str:
    """The last part of a path or URL; all of a name without slashes."""
    return path.rstrip("/").rpartition("/")[2] or path


def page_data(
    runs: Sequence[Run], title: str, grid_characters: int = GRID_CHARACTERS
) -> tuple[dict[str, Any], list[str]]:
    """The index, and the blocks: `packed_json` of lists of records. BadInputError for a run with invalid
    content."""
    with as_replayed(f"{', '.join(run.path for run in runs)}: a record"):
        return _document(runs, title, grid_characters)


def _document(runs: Sequence[Run], title: str, grid_characters: int) -> tuple[dict[str, Any], list[str]]:
    entries = rank_records(runs)
    kept = _grids_kept(entries, grid_characters)
    blocks = [
        packed_json(
            [
                _details(runs[entry.run], entry, place in kept)
                for place, entry in enumerate(entries[start : start + BLOCK], start)
            ]
        )
        for start in range(0, len(entries), BLOCK)
    ]
    without_grid = sum(
        place not in kept and _grid_characters(entry.record) > 0 for place, entry in enumerate(entries)
    )
    return page_index(runs, entries, title, without_grid), blocks


def page_index(
    runs: Sequence[Run], entries: Sequence[Entry], title: str, without_grid: int = 0
) -> dict[str, Any]:
    """The index of the ranked records `entries`, of which `without_grid` have no grid on the page."""
    strings: dict[str, int] = {}
    columns, history = _columns(entries, strings), _history(runs, entries, strings)
    return {
        "schema": 1,
        "version": __version__,
        "title": title,
        "runs": [_run(run) for run in runs],
        "severities": severities(),
        "columns": columns,
        "history": history,
        "strings": list(strings),
        "block": BLOCK,
        "failures": sum(entry.failed for entry in entries),
        "provenance": provenance(runs),
        "growth": error_growth([(entry.run, entry.record) for entry in entries]),
        "captured": captured_ranges(runs),
        "without_grid": without_grid,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "path": run.path,
        "header": run.header,
        "exit_code": int(run.exit_code),
        "outcomes": run.outcomes,
        "records": len(run.records),
        "expected": run.expected,
        "cwd": run.process.get("cwd"),
        "host": run.process.get("host"),
    }


def _history(runs: Sequence[Run], entries: Sequence[Entry], strings: dict[str, int]) -> dict[str, Any] | None:
    """The tracks of `runs`: `{tracks: [[run]], times: [text], commits: [text], versions: [text],
    changes: [[text]], limits: [[[tensor, error / limit, error, limit, failed]]]}`, None without tracks.

    times, commits, versions: by run. changes: by run, since the run before it in its track. limits: by entry,
    with the tensor as an index into `strings`; empty for an entry in no track.
    """
    found = tracks(runs)
    if not found:
        return None
    before = {after: first for track in found for first, after in pairwise(track)}
    shown = {run for track in found for run in track}

    def limits(entry: Entry) -> list[Any]:
        if entry.run not in shown:
            return []
        return [
            [strings.setdefault(name, len(strings)), *rest] for name, *rest in closest_limits(entry.record)
        ]

    return {
        "tracks": found,
        "times": [run_time(run) for run in runs],
        "commits": [run_commit(run) for run in runs],
        "versions": [
            ", ".join(f"{name} {value}" for name, value in package_versions(run).items()) for run in runs
        ],
        "changes": [
            changes(runs[before[number]], run) if number in before else [] for number, run in enumerate(runs)
        ],
        "limits": [limits(entry) for entry in entries],
    }


def _columns(entries: Sequence[Entry], strings: dict[str, int]) -> dict[str, list[Any]]:
    """The columns of the record list; texts as indices into `strings`."""

    def interned(text: object) -> int:
        return strings.setdefault(str(text), len(strings))

    return {
        "run": [entry.run for entry in entries],
        "number": [entry.record["number"] for entry in entries],
        "step": [entry.record["step"] for entry in entries],
        "ratio": [round_for_chart(entry.ratio) for entry in entries],
        "severity": [entry.severity for entry in entries],
        **{
            name: [interned(entry.record[name]) for entry in entries]
            for name in ("op", "layer", "outcome", "key")
        },
        "reason": [interned(_first_reason(entry.record)) for entry in entries],
    }


def _first_reason(record: Mapping[str, Any]) -> str:
    """One line why a record did not pass, as specific as possible."""
    for tensor in record["tensors"]:
        for reason in tensor["reasons"]:
            return f"{tensor['tensor']}: {reason}"
    return str(next(iter(record["faults"]), record["reason"]))


def _details(run: Run, entry: Entry, with_grid: bool) -> dict[str, Any]:
    record = dict(entry.record)
    record["command"] = repeat_command(run.header, record, run.process.get("argv") or ())
    if not with_grid:
        record["tensors"] = [{**tensor, "grid": None} for tensor in record["tensors"]]
        record["grid_left_out"] = _grid_characters(entry.record) > 0
    return record


def _grids_kept(entries: Sequence[Entry], characters: int) -> set[int]:
    """Indices of the records whose grids are shown: all failures, then the closest to failing while there is
    room."""
    kept, used = set(), 0
    for place, entry in enumerate(entries):
        used += _grid_characters(entry.record)
        if entry.failed or used <= characters:
            kept.add(place)
    return kept


def _grid_characters(record: Mapping[str, Any]) -> int:
    return sum(
        len(part)
        for tensor in record["tensors"]
        for part in (tensor.get("grid") or {}).values()
        if isinstance(part, str)
    )
