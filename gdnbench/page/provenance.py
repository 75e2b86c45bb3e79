# SPDX-License-Identifier: Apache-2.0
"""Compares the provenance of runs, and of the captures that they replayed, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gdnbench.report.runs import Run

# The fields of a process that describe where and how it ran; pid and ranks are omitted.
_PROCESS = ("host", "time", "cwd", "argv")

# Fields that differ between any two processes: shown, never marked.
_ALWAYS_DIFFERENT = frozenset({"time", "argv", "cwd"})


def provenance(runs: Sequence[Run]) -> dict[str, Any]:
    """`{columns: [{title, of}], rows: [{name, values, differs}]}`: who captured and who replayed each run.

    Captures shared by several runs appear once. A value is text, or None if unknown; `differs` if two columns
    have different known values.
    """
    columns: list[dict[str, str]] = []
    sides: list[dict[str, str]] = []

    def add(title: str, of: str, side: dict[str, str]) -> None:
        column = {"title": title, "of": of}
        for number, known in enumerate(sides):
            if known == side and columns[number] == column:
                return
        columns.append(column)
        sides.append(side)

    for run in runs:
        store = run.header.get("store", run.path)
        for source in filter(None, _distinct(run.captured.values())):  # synthetic records have no provenance
            add("captured", store, source)
    for run in runs:
        side = _side({**run.provenance, **run.process})
        if side:
            add("replayed", run.path, side)
    names = dict.fromkeys(name for side in sides for name in side)
    return {
        "columns": columns,
        "rows": [_row(name, [side.get(name) for side in sides]) for name in sorted(names, key=_rank)],
    }


def _distinct(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The distinct processes of a capture, regardless of their times."""
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for source in sources:
        side = _side({**source.get("provenance", {}), **source.get("process", {})})
        alike = tuple((name, value) for name, value in side.items() if name not in _ALWAYS_DIFFERENT)
        found.setdefault(alike, side)
    return list(found.values())


def _side(values: Mapping[str, Any]) -> dict[str, str]:
    return dict(_flat(values, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if not prefix and name in ("pid", "rank", "world_size", "local_rank"):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        elif isinstance(value, list | tuple):
            yield prefix + name, " ".join(map(str, value))
        elif value is not None:
            yield prefix + name, str(value)


def _row(name: str, values: list[str | None]) -> dict[str, Any]:
    known = {value for value in values if value is not None}
    differs = name not in _ALWAYS_DIFFERENT and (len(known) > 1 or (bool(known) and None in values))
    return {"name": name, "values": values, "differs": differs}


def _rank(name: str) -> tuple[int, str]:
    """Sort key: what kernels depend on first (code, packages, machine), then the process."""
    first = name.split()[0]
    order = (
        "kernel",
        "git",
        "packages",
        "gpus",
        "cuda",
        "driver",
        "simulator",
        "python",
        "os",
        "cpu",
        *_PROCESS,
    )
    return (order.index(first) if first in order else len(order), name)
