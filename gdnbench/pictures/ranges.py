"""Chart of the ranges of the captured calls' inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gdnbench.pictures.canvas import BLUE, GREEN, ORANGE, PURPLE, panels
from gdnbench.pictures.labels import drawable_text

MOST_RECORDS = 500
"""Records drawn one by one; more are merged in runs of neighbours."""

_FORMS = ((BLUE, "_"), (ORANGE, "x"), (GREEN, "^"), (PURPLE, "D"))


def range_chart(title: str, records: Sequence[Sequence[Mapping[str, Any]]]) -> Figure | None:
    """A panel for each range, by name; None if no record has any. `records` holds `capture` of each record,
    in order."""
    names: dict[str, Mapping[str, Any]] = {}
    for record in records:
        for one in record:
            names.setdefault(str(one["name"]), one)
    if not names:
        return None
    figure, axes = panels(title, len(names), height=1.6)
    for axis, (name, first) in zip(axes, names.items(), strict=True):
        by_record = [{str(one["name"]): one["values"] for one in record}.get(name, {}) for record in records]
        unit = (
            "exponent of 2" if first.get("unit") == "2^" else drawable_text(str(first.get("unit") or ""), 20)
        )
        axis.set_title(drawable_text(str(first.get("label", name))) + (f" ({unit})" if unit else ""))
        figures = list(dict.fromkeys(str(what) for values in by_record for what in values))
        for what, (colour, mark) in zip(figures, _FORMS, strict=False):
            x, y = _series([values.get(what) for values in by_record], largest=what != "min")
            axis.plot(x, y, mark, color=colour, ms=6, mew=1.4, ls="none", label=drawable_text(what, 20))
        if {"min", "max"} <= set(figures):
            x, low = _series([values.get("min") for values in by_record], largest=False)
            _, high = _series([values.get("max") for values in by_record], largest=True)
            axis.vlines(x, low, high, color=BLUE, alpha=0.35, lw=2)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set_xlim(-0.7, len(records) - 0.3)
        axis.grid(axis="y", alpha=0.3)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    axes[-1].set_xlabel("record, in the order captured")
    return figure


def _series(values: Sequence[Any], largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of records, NaN where missing or not finite; runs of many records are reduced to
    their maximum or minimum."""
    found = np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
    found[~np.isfinite(found)] = np.nan
    each = -(-len(found) // MOST_RECORDS)
    if each <= 1:
        return np.arange(len(found)), found
    edge = -np.inf if largest else np.inf
    padded = np.pad(found, (0, -len(found) % each), constant_values=np.nan).reshape(-1, each)
    filled = np.where(np.isnan(padded), edge, padded)
    pooled = filled.max(axis=1) if largest else filled.min(axis=1)
    return np.arange(len(pooled)) * each, np.where(np.isinf(pooled), np.nan, pooled)
