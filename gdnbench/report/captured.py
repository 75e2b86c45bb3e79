# SPDX-License-Identifier: Apache-2.0
"""Ranges of the captured calls' inputs, by operation, over all records of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gdnbench.report.growth import round_for_chart
from gdnbench.report.runs import Run

MOST_POINTS = 500
"""Records with points of their own; of more, neighbours share one."""

MOST_FIGURES = 4
"""Figures of one input, such as its minimum and maximum."""


def captured_ranges(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """`[{op, records, each, inputs: [{label, unit, values: {figure: [number]}}]}]` for each operation with
    ranges; a record replayed by several runs counts once.

    records: how many, in the order captured. A number is the extreme of `each` neighbouring records, the
    smallest for "min" and the largest for other figures; None if no record has a finite one.
    """
    by_op: dict[str, dict[tuple[str, str], dict[str, Mapping[str, Any]]]] = {}
    for run in runs:
        store = str(run.header.get("store", run.path))
        for record in run.records:
            found = by_op.setdefault(str(record["op"]), {})
            found.setdefault((store, str(record["key"])), _inputs(record.get("capture")))
    made = [_operation(op, list(records.values())) for op, records in sorted(by_op.items())]
    return [one for one in made if one["inputs"]]


def _inputs(capture: object) -> dict[str, Mapping[str, Any]]:
    """The entries of a record's `capture` by name; nothing for another form."""
    entries = capture if isinstance(capture, list | tuple) else ()
    return {
        str(one.get("name")): one
        for one in entries
        if isinstance(one, Mapping) and isinstance(one.get("values"), Mapping)
    }


def _operation(op: str, records: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    each = max(1, -(-len(records) // MOST_POINTS))
    first: dict[str, Mapping[str, Any]] = {}
    for record in records:
        first = {**record, **first}
    inputs = []
    for name, one in first.items():
        values = [record[name]["values"] if name in record else {} for record in records]
        figures = list(dict.fromkeys(str(figure) for by_figure in values for figure in by_figure))
        inputs.append(
            {
                "label": str(one.get("label", name)),
                "unit": str(one.get("unit") or ""),
                "values": {
                    figure: _extremes([_finite(of.get(figure)) for of in values], each, figure == "min")
                    for figure in figures[:MOST_FIGURES]
                },
            }
        )
    return {"op": op, "records": len(records), "each": each, "inputs": inputs}


def _extremes(values: Sequence[float | None], each: int, smallest: bool) -> list[Any]:
    pick = min if smallest else max
    blocks = (values[start : start + each] for start in range(0, len(values), each))
    return [
        round_for_chart(pick((value for value in block if value is not None), default=None))
        for block in blocks
    ]


def _finite(value: Any) -> float | None:
    """A number, or its text as JSON has it; None for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
